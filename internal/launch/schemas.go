package launch

import (
	"encoding/json"
	"errors"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

func (l *Launcher) checkOutputSchema(schema json.RawMessage) error {
	if err := l.usable(schema); err != nil {
		return refusal.New(refusal.Unprocessable, refusal.CodeBadOutputSchema, "output_schema: %s", err.Error())
	}
	return nil
}

// checkToolSchemas checks the schemas of tools: with an invalid one every call would be refused.
func (l *Launcher) checkToolSchemas(tools []events.ToolSpec) error {
	for _, t := range tools {
		if err := l.usable(t.Schema); err != nil {
			return refusal.New(refusal.Unprocessable, refusal.CodeBadToolSchema,
				"the tool %q is announced with an invalid schema: %s", t.Name, err.Error()).With(map[string]any{"tool": t.Name})
		}
	}
	return nil
}

// usable returns why a schema is invalid. The instance does not have to satisfy it.
func (l *Launcher) usable(schema json.RawMessage) error {
	if l.cfg.Validator == nil || len(schema) == 0 {
		return nil
	}
	err := l.cfg.Validator.Validate(schema, "{}")
	var unsatisfied *tool.Failure
	if errors.As(err, &unsatisfied) {
		return nil
	}
	return err
}
