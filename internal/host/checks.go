package host

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/tokens/o200k"
	"github.com/moorebus/moorebus/pkg/tool"
)

// CheckSchemas reports every tool whose schema cannot be used, and an output
// schema that cannot.
func CheckSchemas(tools *tool.Registry, output json.RawMessage) error {
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

// validators are what checks arguments and policies.
func validators() (tool.Validator, *approval.Policies) {
	return schema.New(schema.Options{}), approval.New()
}

// estimators are those of every host, and the application's own.
func (o Options) estimators() tokens.Set {
	return tokens.Set{tokens.O200K: o200k.Estimate}.With(o.Estimators)
}
