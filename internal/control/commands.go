package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Pause keeps a run from starting model calls and tools. It does not change a paused run, except
// one that a restore paused: from then on it is paused by the caller.
func (c *Controller) Pause(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return c.Change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if mem.Control.Paused && !mem.Control.Restored {
			return nil, nil
		}
		return runs.One(events.Control, &events.Paused{By: by})
	})
}

// Resume lets a paused run's work start again. Work in flight continues: model calls and calls
// of `once` tools in flight, in any process, do not start again. A call of a pure or idempotent
// tool may run again under the same key, if another actor gets the resumed run; the first
// outcome counts. A run that is not paused is a conflict, not_paused.
func (c *Controller) Resume(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return c.Change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if !mem.Control.Paused {
			return nil, runs.Conflict(mem, refusal.CodeNotPaused, "the run is in state %s and not paused, so there is nothing to resume", mem.State)
		}
		return runs.One(events.Control, &events.Resumed{By: by})
	})
}

// Release is [Controller.Resume] for a run that a restore paused. Any other run is a conflict,
// not_paused.
func (c *Controller) Release(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	return c.Change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if !mem.Control.Paused || !mem.Control.Restored {
			return nil, runs.Conflict(mem, refusal.CodeNotPaused, "the run is in state %s and not paused by a restore; resume it without `restored`", mem.State)
		}
		return runs.One(events.Control, &events.Resumed{By: by})
	})
}

// Close ends a conversation that waits for its user; a run in any other state is a
// conflict, not_waiting.
func (c *Controller) Close(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	result, err := c.Change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if mem.State != events.WaitingForUser {
			return nil, runs.Conflict(mem, refusal.CodeNotWaiting, "the run is in state %s and not waiting for its user; cancel it to end it now", mem.State)
		}
		return runs.One(events.WaitingForUser, &events.Closed{By: by})
	})
	var ended *refusal.Error
	if errors.As(err, &ended) && ended.Code == refusal.CodeRunEnded {
		ended.Code = refusal.CodeNotWaiting // a run that has ended does not wait
	}
	return result, err
}

// RaiseBudget replaces the limits that budget names (those that are not 0).
func (c *Controller) RaiseBudget(ctx context.Context, ns, id string, budget events.Budget, by events.By) (runs.Result, error) {
	if budget == (events.Budget{}) {
		return runs.Result{}, refusal.New(refusal.Invalid, refusal.CodeBadRequest,
			"names no limit; give at least one of max_input_tokens, max_output_tokens, max_total_tokens, max_cost_usd, max_wall_time")
	}
	if err := budget.Check(); err != nil {
		return runs.Result{}, refusal.New(refusal.Invalid, refusal.CodeBadRequest, "%s", err.Error())
	}
	result, err := c.Change(ctx, ns, id, func(*reducer.Memory) ([]runlog.Draft, error) {
		return runs.One(events.Control, &events.BudgetRaised{Budget: budget, By: by})
	})
	if err != nil || budget.MaxWallTime == 0 {
		return result, err
	}
	// The deadline may be earlier now than the run's timer.
	return result, c.View(ctx, ns, id, func(run *runlog.Run) error { return c.timers.Reset(ctx, run) })
}

// Input is an input from outside to a run. The set of types is closed.
type Input interface{ isInput() }

// MaxMessageID is the longest id of a message, in bytes.
const MaxMessageID = 256

// UserMessage is a message of the user. A message with a known id is accepted and changes
// nothing. Parts are its content where that is more than text; Content is then empty.
type UserMessage struct {
	MessageID, Content string
	Parts              []events.Part
}

// ExpandContextWindow widens the model's view by Increment messages; 0: by the agent's
// expand_context_window_size. In a chat that waits for its user it applies to the next turn.
type ExpandContextWindow struct{ Increment int }

// AddToolCallsToContext shows older calls to the model again. The ids are the log's or the
// provider's.
type AddToolCallsToContext struct{ CallIDs []string }

// ToolCallStarted says that the client began with a call of one of its tools, or, with the id
// of no call while a model outside is asked, that the model calls this tool. Arguments is JSON.
type ToolCallStarted struct{ CallID, Name, Arguments string }

// ToolCallResult is the client's result of a call: its content, or its error. [ClientTools] sets Kept, the part
// that is in the log, and Ref, the place of the complete result if that is not all.
type ToolCallResult struct {
	CallID     string
	Success    bool
	Text, Kept string
	Ref        *events.Ref
}

// LLMChunk is a piece of the text that a model outside is writing.
type LLMChunk struct{ MessageID, Chunk string }

// LLMMessageComplete is the reply of a model outside. Content nil: what its chunks said.
// Key is that of the request; empty: the pending one. Model is the name of the model that
// answered; empty: the one that was asked.
type LLMMessageComplete struct {
	MessageID string
	Model     string
	Content   *string
	Calls     []events.Call
	Usage     *events.Usage
	Key       string
}

// KeepCustom keeps a value in the run's custom memory, see [reducer.Memory.Keep]. Make returns
// the value for the run as it is when the inputs are appended, so it may also refuse them all.
// It may be called several times. No value: nothing is kept.
type KeepCustom struct {
	Key  string
	Make func(mem *reducer.Memory) (json.RawMessage, error)
}

func (UserMessage) isInput()           {}
func (KeepCustom) isInput()            {}
func (ExpandContextWindow) isInput()   {}
func (AddToolCallsToContext) isInput() {}
func (ToolCallStarted) isInput()       {}
func (ToolCallResult) isInput()        {}
func (LLMChunk) isInput()              {}
func (LLMMessageComplete) isInput()    {}

// InputsResult is the number of accepted inputs and of the run's events after them.
type InputsResult struct {
	Accepted int    `json:"accepted" jsonschema:"How many inputs were accepted."`
	N        uint64 `json:"n" jsonschema:"The number of the run's events."`
}

// Inputs appends inputs to a run in order, all or none. Refusals are Conflict for a run that has
// ended and for inputs of a model or tool that is not outside, Unprocessable for an unknown call
// to add to the context, and those of [ClientTools]. A result
// whose call is past its deadline ends the call with its timeout instead.
func (c *Controller) Inputs(ctx context.Context, ns, id string, inputs []Input) (InputsResult, error) {
	if len(inputs) == 0 {
		return InputsResult{}, refusal.New(refusal.Invalid, refusal.CodeBadInput, "there are no inputs")
	}
	if c.ClientTools == nil {
		return InputsResult{}, errors.New("control: nothing takes the results of clients' tools; set ClientTools")
	}
	if result, mine, err := c.modelInputs(ctx, ns, id, inputs); mine {
		return result, err
	}
	inputs = slices.Clone(inputs)
	for i, in := range inputs { // every attempt of the commit uses the same ids, texts and references
		switch in := in.(type) {
		case UserMessage:
			in.MessageID = cmp.Or(in.MessageID, c.Store.NewID())
			if len(in.Parts) > 0 {
				in.Content = events.TextOf(in.Parts)
			}
			inputs[i] = in
		case ToolCallResult:
			in.Text = c.cfg.Results.Redact(in.Text) // once: a pattern may match what stands for a secret
			inputs[i] = in
		}
	}
	if err := c.keepInputs(ctx, ns, id, inputs); err != nil {
		return InputsResult{}, c.ClientTools.Explain(ctx, ns, id, err)
	}
	var late error
	result, err := c.Change(ctx, ns, id, func(mem *reducer.Memory) (drafts []runlog.Draft, err error) {
		for i, in := range inputs {
			if drafts, late = c.ClientTools.Late(mem, in); late != nil {
				late = at(late, i)
				return drafts, nil
			}
		}
		return c.inputDrafts(mem, inputs, false)
	})
	if refusal.Is(err, refusal.CodeRunEnded) {
		err = c.repeated(ctx, ns, id, inputs, err, &result)
	}
	if err = cmp.Or(err, late); err != nil {
		return InputsResult{}, c.ClientTools.Explain(ctx, ns, id, err)
	}
	return InputsResult{Accepted: len(inputs), N: result.N}, nil
}

// keepInputs makes inputs what the log has of them, and stores parts of messages and large results, as far as
// the run takes them: nothing removes what a refused request stored. The error is also that of inputs which
// the run refuses.
func (c *Controller) keepInputs(ctx context.Context, ns, id string, inputs []Input) error {
	large, err := c.ClientTools.Keep(ctx, inputs, nil)
	var withParts []int
	for i, in := range inputs {
		if m, ok := in.(UserMessage); ok && len(m.Parts) > 0 {
			withParts = append(withParts, i)
		}
	}
	if err != nil || !large && len(withParts) == 0 {
		return err
	}
	takes := false
	err = c.View(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		if c.Table.Terminal(mem.State) || mem.Control.Poison != nil {
			return nil // it takes none, as the commit says
		}
		for _, in := range inputs {
			if _, late := c.ClientTools.Late(mem, in); late != nil {
				return nil // the commit ends the calls
			}
		}
		withParts = slices.DeleteFunc(withParts, func(i int) bool { return mem.Knows(inputs[i].(UserMessage).MessageID) })
		drafts, err := c.inputDrafts(mem, inputs, false)
		takes = len(drafts) > 0
		return err
	})
	if err != nil || !takes {
		return err
	}
	for _, i := range withParts {
		m := inputs[i].(UserMessage)
		if m.Parts, err = c.keepParts(ctx, refusal.CodeBadInput, fmt.Sprintf("input %d: content", i), m.Parts); err != nil {
			return err
		}
		inputs[i] = m
	}
	_, err = c.ClientTools.Keep(ctx, inputs, c.cfg.Blobs)
	return err
}

// repeated returns nil if a run that has ended accepted all these inputs before: then the
// client did not get the answer and repeats its request. Otherwise it returns what is wrong
// with the first of them that is new, or the refusal ended.
func (c *Controller) repeated(ctx context.Context, ns, id string, inputs []Input, ended error, result *runs.Result) error {
	return c.View(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		result.State, result.N = mem.State, mem.N
		for _, in := range inputs {
			switch in := in.(type) {
			case UserMessage:
				if !mem.Knows(in.MessageID) {
					return ended
				}
			case ToolCallStarted, ToolCallResult:
			default:
				return ended
			}
		}
		_, err := c.inputDrafts(mem, inputs, true)
		return err
	})
}

// inputDrafts returns the events of the inputs. They are not drafted for a run that has ended:
// the error says whether there would be any.
func (c *Controller) inputDrafts(mem *reducer.Memory, inputs []Input, ended bool) ([]runlog.Draft, error) {
	var drafts []runlog.Draft
	var sent []string
	event := c.ClientTools.Begin(mem, ended)
	state := mem.State
	for i, in := range inputs {
		draft := runlog.Draft{Origin: events.Control}
		switch in := in.(type) {
		case UserMessage:
			if mem.Knows(in.MessageID) || slices.Contains(sent, in.MessageID) {
				continue
			}
			sent = append(sent, in.MessageID)
			draft.Payload = &events.UserMessage{MessageID: in.MessageID, Content: in.Content, Parts: in.Parts}
			if state == events.WaitingForUser {
				draft.Origin = state
			}
		case KeepCustom:
			value, err := in.Make(mem)
			if err != nil {
				return nil, err
			}
			if len(value) == 0 {
				continue
			}
			draft.Payload = &events.CustomMemorySet{Key: in.Key, Value: value}
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
		case ToolCallStarted, ToolCallResult:
			p, err := event(in)
			if err != nil {
				return nil, at(err, i)
			}
			if p == nil {
				continue
			}
			draft.Payload = p
		case LLMChunk, LLMMessageComplete:
			return nil, refusal.New(refusal.Conflict, refusal.CodeNotYours,
				"input %d: comes from the run's own model and tools; this run declares none that are outside", i).With(map[string]any{"index": i})
		}
		if next, ok := c.Table.Next(state, events.TypeOf(draft.Payload)); ok {
			state = next
		}
		drafts = append(drafts, draft)
	}
	return drafts, nil
}

// at names the input that a refusal is about.
func at(err error, i int) error {
	var refused *refusal.Error
	if errors.As(err, &refused) {
		refused.Message = fmt.Sprintf("input %d: %s", i, refused.Message)
		refused.Fields["index"] = i
	}
	return err
}

// knownCalls returns the log's ids of the calls in input i.
func knownCalls(mem *reducer.Memory, i int, named []string) ([]string, error) {
	ids := make([]string, len(named))
	for k, id := range named {
		if ids[k] = callname.Find(mem, id); mem.ToolCalls[ids[k]] == nil {
			return nil, refusal.New(refusal.Unprocessable, refusal.CodeUnknownCall, "input %d: the run has no tool call %q", i, id).
				With(map[string]any{"index": i, "call_id": id})
		}
	}
	return ids, nil
}
