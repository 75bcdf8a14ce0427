package agentfile

import (
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

// memoryBuiltin stands for all tools by which an agent uses its memory.
const memoryBuiltin = "memory"

var memoryTools = []string{"storage_load", "storage_save", "storage_search", "working_memory_add", "working_memory_remove"}

// spread puts the tools of memory in the place of the one entry that stands for
// them. What it says of pool, timeout, retries, risk and breaker holds for each.
func (f *ToolFile) spread(node *strict.Node) []error {
	var errs []error
	spread := make([]ToolEntry, 0, len(f.Tools))
	for i, short := range f.Tools {
		if short.Builtin != memoryBuiltin {
			spread = append(spread, short)
			continue
		}
		if short.Name != memoryBuiltin || short.Description != "" || len(short.Schema) > 0 {
			errs = append(errs, node.Place("", fmt.Errorf("tools[%d]%w", i, errors.New(
				".builtin: memory stands for five tools; give name, description and schema to each of them by its own name"))))
		}
		for _, name := range memoryTools {
			short.Name, short.Builtin = name, name
			spread = append(spread, short)
		}
	}
	f.Tools = spread
	return errs
}
