package launch

import (
	"encoding/json"
	"errors"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// checkOutputSchema reports a schema of answers that cannot be used.
func (l *Launcher) checkOutputSchema(schema json.RawMessage) error {
	if err := l.usable(schema); err != nil {
		return refusal.New(refusal.Unprocessable, refusal.CodeBadOutputSchema, "output_schema: %s", err.Error())
	}
	return nil
}

// checkToolSchemas reports the tool whose schema cannot be used: no call of it
// could ever be let through.
func (l *Launcher) checkToolSchemas(tools []events.ToolSpec) error {
	for _, t := range tools {
		if err := l.usable(t.Schema); err != nil {
			return refusal.New(refusal.Unprocessable, refusal.CodeBadToolSchema,
				"the tool %q is announced with a schema that cannot be used: %s", t.Name, err.Error()).With(map[string]any{"tool": t.Name})
		}
	}
	return nil
}

// usable says what is wrong with a schema. Any instance does for the check:
// whether it satisfies the schema does not matter.
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
