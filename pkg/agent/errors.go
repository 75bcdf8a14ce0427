package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Failed is the error of a run that ended without an answer. The more specific errors of
// this package contain it.
//
// Calls are the calls that failed since the last one that succeeded, the oldest first and at
// most three: tools that panicked, calls that were refused because the model named an unknown
// tool or wrong arguments, and answers that the output schema refused. They ended no run, but
// may be why the model got no further.
type Failed struct {
	Code, Message string
	Calls         []FailedCall
}

// FailedCall is a call, or an answer, whose failure the model saw. Tool is empty for an
// answer. Code is that of its event, such as panic, not_found or output_schema.
type FailedCall struct{ Tool, Code, Observation string }

// String returns the tool, the code and the text that the model saw.
func (c FailedCall) String() string {
	return fmt.Sprintf("%s (%s): %s", cmp.Or(c.Tool, "the answer"), c.Code, strings.TrimPrefix(c.Observation, codes.ErrorPrefix))
}

// Error returns code and message.
func (f *Failed) Error() string {
	text := fmt.Sprintf("the agent failed: %s: %s", f.Code, f.Message)
	for i, call := range f.Calls {
		if i == 0 {
			text += "; before that failed"
		}
		text += "\n\t" + call.String()
	}
	return text
}

// As lets [errors.As] find the Failed in the more specific errors.
func (f *Failed) As(target any) bool {
	plain, ok := target.(**Failed)
	if ok {
		*plain = f
	}
	return ok
}

// Is says that a run which ended at its deadline exceeded one, for [errors.Is].
func (f *Failed) Is(target error) bool {
	return target == context.DeadlineExceeded && f.Code == codes.WallTime
}

// InvalidTransition says that a handler returned an event for which the table has no row.
type InvalidTransition struct{ Failed }

// NoHandlerForState says that no handler serves a state.
type NoHandlerForState struct{ Failed }

// SafetyCapExceeded says that a run changed its state too often.
type SafetyCapExceeded struct{ Failed }

// LLMError says that a model provider gave no reply. The code is its [llm.ErrorKind].
type LLMError struct{ Failed }

// ToolError says that a run had to call a tool and had no call. The failure of a tool never
// ends a run: it is an observation for the model.
type ToolError struct{ Failed }

// MemoryError says that a record of the log cannot be folded.
type MemoryError struct{ Failed }

// BuildError says which setting is missing or wrong.
type BuildError struct{ Err error }

// Error returns what is wrong.
func (e *BuildError) Error() string { return "cannot build the agent: " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *BuildError) Unwrap() error { return e.Err }

// ErrStepwise says that a run was not started by [Agent.Stepwise], or cannot be.
var ErrStepwise = errors.New("the run is not stepwise")

// ErrWaits says that a run cannot be advanced since it waits for a human.
var ErrWaits = host.ErrWaits

// Refused is the error of a request that a run cannot meet, such as a decision on a call
// that does not wait, or a message to a run that has ended. Nothing was changed. Code is a
// code of the HTTP interface, such as not_waiting.
type Refused struct{ Code, Message string }

// Error returns the message.
func (r *Refused) Error() string { return r.Message }

// refused converts a refusal of the request into a *[Refused]. It returns other errors
// unchanged.
func refused(err error) error {
	if answer, is := errors.AsType[*refusal.Error](err); is && answer.Kind < refusal.Internal {
		return &Refused{Code: answer.Code, Message: answer.Message}
	}
	return err
}

// errReleased is returned to waiters of a released run.
var errReleased = errors.New("the run was released before it ended")

// outcome returns the result of a run that has ended.
func outcome(mem *reducer.Memory, calls []FailedCall) (string, error) {
	switch {
	case mem.State == events.Cancelled:
		return "", &Failed{Code: "cancelled", Message: "the run was cancelled"}
	case mem.Error != nil:
		return "", failure(mem, calls)
	case mem.FinalAnswer == nil:
		return "", nil
	}
	return *mem.FinalAnswer, nil
}

// failure returns the typed error of a run that ended in Error.
func failure(mem *reducer.Memory, calls []FailedCall) error {
	f := Failed{Code: mem.Error.Code, Message: mem.Error.Message, Calls: calls}
	switch f.Code {
	case codes.NoHandler:
		return &NoHandlerForState{f}
	case codes.SafetyCap:
		return &SafetyCapExceeded{f}
	case codes.Poison:
		return &MemoryError{f}
	case codes.InvalidTransition:
		return &InvalidTransition{f}
	case codes.NoCurrentCall:
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
