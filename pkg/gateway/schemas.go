package gateway

import (
	"encoding/json"
	"errors"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// checkOutputSchema reports a schema of answers that cannot be used.
func (g *Gateway) checkOutputSchema(schema json.RawMessage) error {
	if err := g.usable(schema); err != nil {
		return unprocessable(CodeBadOutputSchema, "output_schema: %s", err.Error())
	}
	return nil
}

// checkToolSchemas reports the tool whose schema cannot be used: no call of it
// could ever be let through.
func (g *Gateway) checkToolSchemas(tools []events.ToolSpec) error {
	for _, t := range tools {
		if err := g.usable(t.Schema); err != nil {
			e := unprocessable(CodeBadToolSchema, "the tool %q is announced with a schema that cannot be used: %s", t.Name, err.Error())
			e.Fields = map[string]any{"tool": t.Name}
			return e
		}
	}
	return nil
}

// usable says what is wrong with a schema. Any instance does for the check:
// whether it satisfies the schema does not matter.
func (g *Gateway) usable(schema json.RawMessage) error {
	if g.cfg.Validator == nil || len(schema) == 0 {
		return nil
	}
	err := g.cfg.Validator.Validate(schema, "{}")
	var unsatisfied *tool.Failure
	if errors.As(err, &unsatisfied) {
		return nil
	}
	return err
}
