package agent

import (
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Failed is a run that ended without an answer. The more special errors of this
// package wrap it.
type Failed struct{ Code, Message string }

// Error returns code and message.
func (f *Failed) Error() string { return fmt.Sprintf("the agent failed: %s: %s", f.Code, f.Message) }

// As gives the plain failure of the more special errors to [errors.As].
func (f *Failed) As(target any) bool {
	plain, ok := target.(**Failed)
	if ok {
		*plain = f
	}
	return ok
}

// InvalidTransition is a handler's event for which the table has no row.
type InvalidTransition struct{ Failed }

// NoHandlerForState is a state that no handler serves.
type NoHandlerForState struct{ Failed }

// SafetyCapExceeded is a run that changes its state for ever.
type SafetyCapExceeded struct{ Failed }

// LLMError is a model provider that gave no reply; the code is its
// [llm.ErrorKind].
type LLMError struct{ Failed }

// ToolError is a run that came to its tools and had none to call. What a tool
// fails at never ends a run: it is an observation for the model.
type ToolError struct{ Failed }

// MemoryError is a log with a record that cannot be folded into memory.
type MemoryError struct{ Failed }

// BuildError is a setting that is missing or wrong.
type BuildError struct{ Err error }

// Error returns what is wrong.
func (e *BuildError) Error() string { return "cannot build the agent: " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *BuildError) Unwrap() error { return e.Err }

// ErrStepwise says that a run was not begun by [Agent.Stepwise], so that its roles
// run by themselves.
var ErrStepwise = errors.New("the run is not stepwise")

// ErrWaits says that nothing can be done in a run, since it waits for a human.
var ErrWaits = host.ErrWaits

// Refused is a request to a run that cannot be met: a decision on a call that does not
// wait or with arguments that its tool does not take, a message to a run that has ended.
// Nothing was changed. Code is one of those of the HTTP interface, such as not_waiting.
type Refused struct{ Code, Message string }

// Error returns the message.
func (r *Refused) Error() string { return r.Message }

// refused returns a refusal that blames the request as a *[Refused],
// other errors as they are.
func refused(err error) error {
	if answer, is := errors.AsType[*refusal.Error](err); is && answer.Kind < refusal.Internal {
		return &Refused{Code: answer.Code, Message: answer.Message}
	}
	return err
}

// errReleased is for who waits for a run that was let go of.
var errReleased = errors.New("the run was released before it ended")

// outcome is what a run came to that has ended.
func outcome(mem *reducer.Memory) (string, error) {
	switch {
	case mem.State == events.Cancelled:
		return "", &Failed{Code: "cancelled", Message: "the run was cancelled"}
	case mem.Error != nil:
		return "", failure(mem)
	case mem.FinalAnswer == nil:
		return "", nil
	}
	return *mem.FinalAnswer, nil
}

// failure is the typed error of a run that ended in Error.
func failure(mem *reducer.Memory) error {
	f := Failed{Code: mem.Error.Code, Message: mem.Error.Message}
	switch f.Code {
	case reducer.CodeNoHandler:
		return &NoHandlerForState{f}
	case reducer.CodeSafetyCap:
		return &SafetyCapExceeded{f}
	case reducer.CodePoison:
		return &MemoryError{f}
	case reducer.CodeInvalidTransition:
		return &InvalidTransition{f}
	case reducer.CodeNoCurrentCall:
		return &ToolError{f}
	}
	for _, kind := range []llm.ErrorKind{
		llm.KindRateLimited, llm.KindOverloaded, llm.KindNetwork, llm.KindAuth, llm.KindInvalid, llm.KindContextTooLong, llm.KindOther,
	} {
		if f.Code == string(kind) {
			return &LLMError{f}
		}
	}
	return &f
}
