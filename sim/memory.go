package sim

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

// memoryTool is a real tool of memory that is counted. Those of storage are in a
// pool of their own.
type memoryTool struct {
	tool.Tool
	p   *process
	def tool.Definition
}

func newMemoryTool(p *process, name string) memoryTool {
	made, err := builtin.New(name, builtin.Options{})
	p.w.require(err)
	def := made.Definition()
	if strings.HasPrefix(name, "storage_") {
		def.Pool = "web"
	}
	return memoryTool{made, p, def}
}

func (m memoryTool) Definition() tool.Definition { return m.def }

func (m memoryTool) UsesMemory() {}

func (m memoryTool) Run(ctx context.Context, c tool.Call) (string, error) {
	m.p.w.executed(m.def, c)
	return m.Tool.Run(ctx, c)
}

// memoryTools are those of the process's pools.
func (p *process) memoryTools() []tool.Tool {
	var all []tool.Tool
	for _, name := range builtin.MemoryNames() {
		if t := newMemoryTool(p, name); len(p.spec.Pools) == 0 || contains(p.spec.Pools, t.def.Pool) {
			all = append(all, t)
		}
	}
	return all
}

// memoryCall draws a call of a tool of memory.
func (d draw) memoryCall() scriptEntry {
	name := builtin.MemoryNames()[d.IntN(5)]
	tags := []string{"a b", "a b, c", "c", "d", "e", "f"}
	if name == "working_memory_add" || name == "working_memory_remove" {
		tags = tags[1:3] // so that what is removed is mostly there
	}
	arguments := map[string]any{"tags": tags[d.IntN(len(tags))]}
	if name == "working_memory_add" || name == "storage_save" {
		arguments["value"] = strings.Repeat("word ", 1+d.IntN(60))
	}
	return scriptEntry{"name": name, "arguments": arguments}
}

// memory draws how much working memory an agent has: mostly too little.
func (d draw) memory(c *events.Config) {
	switch d.IntN(4) {
	case 0:
		c.PagingLimit, c.HardLimit = 20+d.IntN(80), 10+d.IntN(50)
	case 1:
		c.PagingLimit, c.HardLimit = 20+d.IntN(80), 0
	case 2:
		c.PagingLimit, c.HardLimit = 10+d.IntN(150), 200
	}
}

// other returns other arguments for a call that waits for people.
func (a *auditor) other(run, call string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	record := a.run(run).mem.ToolCalls[call]
	switch {
	case record != nil && contains(agentNames, record.Name):
		return `{"task":"Do less."}`
	case record != nil && record.Name == handsOver:
		return `{"reason":"why not"}`
	case record == nil || !contains(builtin.MemoryNames(), record.Name):
		return `{"n":1}`
	case record.Name == "working_memory_add" || record.Name == "storage_save":
		return `{"tags":["people","c"],"value":"what people say"}`
	}
	return `{"tags":["people"]}`
}

// remembered checks that what was saved, and what left working memory, is in
// storage: under its tags there is something, maybe newer.
func (w *world) remembered() *violation {
	var all []events.Entry
	for _, rec := range w.audit.records {
		e, err := w.audit.machine.Codec().Decode(rec.Body)
		if err != nil {
			continue
		}
		switch p := e.Data.(type) {
		case *events.StorageSaved:
			all = append(all, p.Entry)
		case *events.PageDone:
			all = append(all, slices.Concat(p.Paged, p.Dropped)...)
		}
	}
	of := entrystore.Owner{Namespace: events.DefaultNamespace, Agent: w.scenario.Runs[0].Agent.Name}
	for _, entry := range all {
		if err := w.stored(of, entry.Tags); err != nil {
			return &violation{Invariant: "storage", Detail: "of " + of.String() + ": " + strings.Join(entry.Tags, " ") + ": " + err.Error()}
		}
	}
	return nil
}

// stored looks an entry up, however often the storage does not answer.
func (w *world) stored(of entrystore.Owner, tags []string) error {
	for {
		_, err := entrystore.New(w.journal.NewProcess()).Get(context.Background(), of, tags)
		if !errors.Is(err, simtest.ErrAway) {
			return err
		}
	}
}
