package agent

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// Func makes a tool of a function whose input is a struct, or a map with string
// keys, see package typed. A result that is a string is what the model sees, any
// other is shown as JSON. An error becomes an observation for the model. The
// function is called from several goroutines and returns soon after ctx ends.
//
// Without options nothing is known about what it does, so it is never run again
// when nobody knows whether it ran: see [Pure] and [Idempotent]. What is wrong with
// the definition is an error of [Builder.Build].
func Func[In, Out any](name, description string, fn func(ctx context.Context, in In) (Out, error), options ...func(*tool.Definition)) tool.Tool {
	def := tool.Definition{Name: name, Description: description}
	for _, option := range options {
		option(&def)
	}
	t, err := typed.Result(def, fn)
	if err != nil {
		return &brokenTool{def: def, err: err}
	}
	return t
}

// Pure says that a tool of [Func] changes nothing: it may run any number of times.
func Pure(d *tool.Definition) { d.Effect = tool.Pure }

// Idempotent says that running a tool of [Func] twice for one call is like running
// it once.
func Idempotent(d *tool.Definition) { d.Effect = tool.Idempotent }

// Risk says how much harm a tool of [Func] can do, for approval policies.
func Risk(risk tool.Risk) func(*tool.Definition) {
	return func(d *tool.Definition) { d.Risk = risk }
}

// brokenTool stands for one that could not be made.
type brokenTool struct {
	def tool.Definition
	err error
}

// Definition returns what was asked for.
func (t *brokenTool) Definition() tool.Definition { return t.def }

// Run fails.
func (t *brokenTool) Run(context.Context, tool.Call) (string, error) { return "", t.err }

// broken reports what is wrong with tools that could not be made.
func broken(tools []tool.Tool) error {
	var errs []error
	for _, t := range tools {
		switch t := t.(type) {
		case nil:
			errs = append(errs, errors.New("a tool is nil"))
		case *brokenTool:
			errs = append(errs, t.err)
		}
	}
	return errors.Join(errs...)
}
