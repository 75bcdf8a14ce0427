package agent

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/schema"
)

// checkSchemas reports every tool whose schema cannot be used, and an output
// schema that cannot.
func checkSchemas(tools *tool.Registry, output json.RawMessage) error {
	var errs []error
	for _, d := range tools.Definitions() {
		if err := schema.Check(d.Schema); err != nil {
			errs = append(errs, fmt.Errorf("tool %q: schema: %w", d.Name, err))
		}
	}
	if len(output) > 0 {
		if err := schema.Check(output); err != nil {
			errs = append(errs, fmt.Errorf("output schema: %w", err))
		}
	}
	return errors.Join(errs...)
}
