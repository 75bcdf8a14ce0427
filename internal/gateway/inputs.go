package gateway

import (
	"context"
	"errors"
	"slices"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Input is something that happens to a run from outside. The set is closed: the
// types of this file. [ParseInputs] reads them.
type Input interface{ isInput() }

// UserMessage is a message of the user's. A message whose id the run knows
// already is accepted and changes nothing.
type UserMessage struct{ MessageID, Content string }

// ExpandContextWindow widens the model's view by Increment messages; 0: by the
// agent's expand_context_window_size. While a chat waits for its user that is for the
// next turn.
type ExpandContextWindow struct{ Increment int }

// AddToolCallsToContext shows older calls to the model again. They are named as the
// log or as their provider names them.
type AddToolCallsToContext struct{ CallIDs []string }

// Foreign is an input that only the run's own model or tools may give: it is
// checked for its form and then refused. Type is its name.
type Foreign struct{ Type string }

func (UserMessage) isInput()           {}
func (ExpandContextWindow) isInput()   {}
func (AddToolCallsToContext) isInput() {}
func (Foreign) isInput()               {}

// InputsResult says how many inputs were accepted and how many events the run
// has then.
type InputsResult struct {
	Accepted int    `json:"accepted"`
	N        uint64 `json:"n"`
}

// Inputs gives a run its inputs, in order, all or none. Errors are *[Error]: 409
// for a run that has ended and for inputs that are not the caller's to give, 422
// for a call that the run does not know.
func (g *Gateway) Inputs(ctx context.Context, ns, id string, inputs []Input) (InputsResult, error) {
	if len(inputs) == 0 {
		return InputsResult{}, badRequest(CodeBadInput, "there are no inputs")
	}
	inputs = g.nameMessages(inputs)
	result, err := g.change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		return g.inputDrafts(mem, inputs)
	})
	var ended *Error
	if errors.As(err, &ended) && ended.Code == CodeRunEnded {
		if again := g.repeated(ctx, ns, id, inputs, &result); again {
			err = nil
		}
	}
	if err != nil {
		return InputsResult{}, err
	}
	return InputsResult{Accepted: len(inputs), N: result.N}, nil
}

// repeated reports whether the run, which has ended, took all the inputs before:
// then the client asks again because it never saw the answer.
func (g *Gateway) repeated(ctx context.Context, ns, id string, inputs []Input, result *Result) bool {
	known := true
	err := g.look(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		for _, in := range inputs {
			message, ok := in.(UserMessage)
			known = known && ok && mem.Knows(message.MessageID)
		}
		result.State, result.N = mem.State, mem.N
		return nil
	})
	return err == nil && known
}

// nameMessages gives every message an id, once for all tries of the commit.
func (g *Gateway) nameMessages(inputs []Input) []Input {
	inputs = slices.Clone(inputs)
	for i, in := range inputs {
		if m, ok := in.(UserMessage); ok && m.MessageID == "" {
			m.MessageID = g.store.NewID()
			inputs[i] = m
		}
	}
	return inputs
}

// inputDrafts turns the inputs into the events that they are for this run.
func (g *Gateway) inputDrafts(mem *reducer.Memory, inputs []Input) ([]runlog.Draft, error) {
	var drafts []runlog.Draft
	var sent []string
	state := mem.State
	for i, in := range inputs {
		draft := runlog.Draft{Origin: events.Control}
		switch in := in.(type) {
		case UserMessage:
			if mem.Knows(in.MessageID) || slices.Contains(sent, in.MessageID) {
				continue
			}
			sent = append(sent, in.MessageID)
			draft.Payload = &events.UserMessage{MessageID: in.MessageID, Content: in.Content}
			if state == events.WaitingForUser {
				draft.Origin = state
			}
		case ExpandContextWindow:
			increment := in.Increment
			if increment == 0 {
				increment = mem.Config.ExpandContextWindowSize
			}
			draft.Payload = &events.ContextWindowExpanded{Increment: increment, NextTurn: state == events.WaitingForUser}
		case AddToolCallsToContext:
			ids, err := knownCalls(mem, i, in.CallIDs)
			if err != nil {
				return nil, err
			}
			draft.Payload = &events.ToolCallsAddedToContext{CallIDs: ids, NextTurn: state == events.WaitingForUser}
		case Foreign:
			return nil, notYours(i, in)
		}
		if next, ok := g.table.Next(state, events.TypeOf(draft.Payload)); ok {
			state = next
		}
		drafts = append(drafts, draft)
	}
	return drafts, nil
}

// knownCalls are the log's names of the calls that input i names.
func knownCalls(mem *reducer.Memory, i int, named []string) ([]string, error) {
	ids := make([]string, len(named))
	for k, id := range named {
		if ids[k] = mem.CallID(id); mem.ToolCalls[ids[k]] == nil {
			e := unprocessable(CodeUnknownCall, "input %d: the run has no tool call %q", i, id)
			e.Fields = map[string]any{"index": i, "call_id": id}
			return nil, e
		}
	}
	return ids, nil
}

func notYours(i int, in Foreign) error {
	e := conflict(CodeNotYours, "input %d: %s comes from the run's own model and tools; this run declares none that are outside", i, in.Type)
	e.Fields = map[string]any{"index": i}
	return e
}
