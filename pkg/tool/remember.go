package tool

import "context"

// Verb is what an [Action] does to memory.
type Verb string

// The verbs. There are no others.
const (
	// Add puts an entry into working memory, in the place of one with the same
	// tags.
	Add Verb = "add"
	// Remove takes the entry with exactly these tags out of working memory.
	Remove Verb = "remove"
	// Load copies the entries of storage that have all of the tags into working
	// memory.
	Load Verb = "load"
	// Save puts an entry into storage, in the place of one with the same tags.
	Save Verb = "save"
	// Search shows the entries of storage that have all of the tags and the value
	// in theirs, and changes nothing.
	Search Verb = "search"
)

// Action is a change or a use of an agent's memory. Tags are as the model gave
// them: whoever carries the action out makes them a set.
type Action struct {
	Verb  Verb
	Tags  []string
	Value string
}

// Remembering is a tool that is not run: its calls ask for an [Action], which
// whoever knows the run's memory carries out, see [Registry.Perform]. Its Run
// fails, with code [CodeNoMemory].
type Remembering interface {
	Tool
	// Action reads the call. The error is a [Failure] that the call is answered
	// with.
	Action(call Call) (Action, error)
}

// CodeNoMemory is the code of a call that acts on memory where there is none.
const CodeNoMemory = "no_memory"

// AsRemembering returns the tool as one that acts on memory, if it is one under
// whatever definition.
func AsRemembering(t Tool) (Remembering, bool) {
	for t != nil {
		if r, ok := t.(Remembering); ok {
			return r, true
		}
		wrapper, ok := t.(interface{ Unwrap() Tool })
		if !ok {
			break
		}
		t = wrapper.Unwrap()
	}
	return nil, false
}

// Unwrap returns the tool under its own definition.
func (r *registered) Unwrap() Tool { return r.Tool }

// Unwrap returns the tool under its own definition.
func (r redefined) Unwrap() Tool { return r.Tool }

// perform is what an action comes to: text for the model.
type perform = func(ctx context.Context, a Action) (string, error)

type performKey struct{}

// Perform is [Registry.Execute] for a call of a tool that acts on memory: its
// action is handed to do, within the tool's timeout and gate and as often as its
// retries allow. Other tools are run as usual.
func (r *Registry) Perform(ctx context.Context, call Call, do func(ctx context.Context, a Action) (string, error)) Outcome {
	return r.Execute(context.WithValue(ctx, performKey{}, do), call)
}

// run runs the tool, or has its action performed.
func (r *registered) run(ctx context.Context, call Call) (string, error) {
	remembering, ok := AsRemembering(r.Tool)
	do, _ := ctx.Value(performKey{}).(perform)
	if !ok || do == nil {
		return r.Run(ctx, call)
	}
	action, err := remembering.Action(call)
	if err != nil {
		return "", err
	}
	return do(ctx, action)
}
