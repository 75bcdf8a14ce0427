package reducer_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// scene is a run that a test leads somewhere; any step that is refused fails
// the test.
type scene struct {
	*reducertest.Run
	t *testing.T
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return &scene{Run: reducertest.NewRun(nil), t: t}
}

// started is a scene of a run in Planning.
func started(t *testing.T, change ...func(*events.Start)) *scene {
	t.Helper()
	s := newScene(t)
	p := reducertest.StartOf("find it", events.ModeTask)
	for _, c := range change {
		c(p)
	}
	return s.do(p)
}

func chat(p *events.Start) {
	p.Mode, p.Agent.Mode, p.Agent.Config.ContextWindowSize = events.ModeChat, events.ModeChat, 10
}

func withParent(p *events.Start) { p.Parent = &events.Parent{Run: "r", CallID: "c"} }

// origin is who usually publishes a payload.
func origin(mem *reducer.Memory, p events.Payload) events.State {
	switch p := p.(type) {
	case *events.LLMAttemptFailed:
		if p.Interrupted() {
			return events.Planning
		}
	case *events.CancelledRun, *events.Paused, *events.Resumed, *events.BudgetRaised, *events.CustomMemorySet, *events.Admitted:
		return events.Control
	case *events.UserMessage:
		if mem.State != events.WaitingForUser {
			return events.Control
		}
	case *events.ToolCallDispatched:
		return events.Planning
	}
	return mem.State
}

// do appends payloads one after another.
func (s *scene) do(payloads ...events.Payload) *scene {
	s.t.Helper()
	for _, p := range payloads {
		_, _, err := s.Append(origin(s.Mem, p), p)
		require.NoError(s.t, err, "%s in %s", events.TypeOf(p), s.Mem.State)
	}
	return s
}

// refuses requires that the payload cannot be drafted.
func (s *scene) refuses(p events.Payload, says string) {
	s.t.Helper()
	before := reducertest.Canonical(s.Mem)
	_, _, _, err := s.Draft(origin(s.Mem, p), p)
	require.Error(s.t, err, "%s in %s: %s", events.TypeOf(p), s.Mem.State, says)
	require.ErrorContains(s.t, err, says)
	require.Equal(s.t, before, reducertest.Canonical(s.Mem))
}

// route appends the payload and returns where it went: "<to>.<pool>".
func (s *scene) route(p events.Payload) string {
	s.t.Helper()
	subject, _, err := s.Append(origin(s.Mem, p), p)
	require.NoError(s.t, err)
	return string(subject.To) + "." + subject.Pool
}

// keys are the keys of the effects that the run wants.
func (s *scene) keys() []string {
	var keys []string
	for _, e := range s.Effects() {
		keys = append(keys, e.Key)
	}
	return keys
}

func (s *scene) effect(key string) effects.Effect {
	s.t.Helper()
	wants := s.Effects()
	at := slices.IndexFunc(wants, func(e effects.Effect) bool { return e.Key == key })
	require.GreaterOrEqual(s.t, at, 0, "%s is not among %v", key, s.keys())
	return wants[at]
}

func callOf(id, tool string) events.Call {
	return events.Call{ID: id, Name: tool, Arguments: `{"n":1.0}`}
}

func replyOf(calls ...events.Call) events.ToolCallReply {
	return events.ToolCallReply{Calls: calls, Confidence: 0.75, Model: "m", Usage: tokens(10, 5)}
}

func tokens(in, out int) events.Usage { return events.Usage{Input: in, Output: out, Total: in + out} }

func single(id, tool string) *events.LLMToolCall {
	return &events.LLMToolCall{ToolCallReply: replyOf(callOf(id, tool))}
}

func batchOf(calls ...events.Call) *events.LLMParallelToolCalls {
	return &events.LLMParallelToolCalls{ToolCallReply: replyOf(calls...)}
}

// oneBatch is in one pool, threeBatch in three.
func oneBatch() *events.LLMParallelToolCalls {
	return batchOf(callOf("b", "beta"), callOf("c", "gamma"))
}

func threeBatch() *events.LLMParallelToolCalls {
	return batchOf(callOf("a", "alpha"), callOf("b", "beta"), callOf("d", "delta"))
}

func outcome(id string, success bool, text string) events.ToolOutcome {
	if success {
		return events.ToolOutcome{CallID: id, Success: true, Observation: "SUCCESS: " + text, Code: "ok", LatencyMS: 7}
	}
	return events.ToolOutcome{CallID: id, Observation: "ERROR: " + text, Code: "failed", LatencyMS: 7}
}

func success(id, text string) *events.ToolSuccess {
	o := outcome(id, true, text)
	return &events.ToolSuccess{Outcome: &o}
}

func failure(id, text string) *events.ToolFailure {
	o := outcome(id, false, text)
	return &events.ToolFailure{Outcome: &o}
}

func result(id string, ok bool, text string) *events.ToolCallResult {
	return &events.ToolCallResult{ToolOutcome: outcome(id, ok, text)}
}

func approvalOf(ask []string, calls ...events.Call) *events.HumanApprovalRequired {
	p := &events.HumanApprovalRequired{ToolCallReply: replyOf(calls...)}
	for _, c := range calls {
		if slices.Contains(ask, c.ID) {
			p.Requests = append(p.Requests, events.Request{CallID: c.ID, Tool: c.Name, Arguments: c.Arguments, Risk: "high", Reason: "policy"})
		}
	}
	return p
}

func decision(id, what string) events.Decision {
	d := events.Decision{CallID: id, Decision: what, By: "ann"}
	switch what {
	case events.DecisionModified:
		d.Arguments = `{"n":2}`
	case events.DecisionRejected:
		d.Reason = "too dear"
	}
	return d
}

func decided(id, what string) *events.HumanDecision {
	return &events.HumanDecision{Decision: decision(id, what)}
}

func finalAnswer(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "answer", Reply: events.Reply{Content: text, Model: "m", Usage: tokens(1, 1)}}
}

func turnAnswer(text string) *events.LLMMessageComplete {
	return &events.LLMMessageComplete{Reply: events.Reply{Content: text, Model: "m", Usage: tokens(1, 1)}}
}

func user(id, text string) *events.UserMessage {
	return &events.UserMessage{MessageID: id, Content: text}
}

func fatal() *events.FatalError {
	return &events.FatalError{Outcome: events.Outcome{Code: "auth", Message: "bad key"}}
}

// in leads a new run into a state.
func in(t *testing.T, state events.State) *scene {
	t.Helper()
	if state == events.Idle {
		return newScene(t)
	}
	s := started(t)
	switch state {
	case events.Planning:
	case events.Acting:
		s.do(single("a", "beta"))
	case events.ParallelActing:
		s.do(threeBatch())
	case events.WaitingForHuman:
		s.do(approvalOf([]string{"a"}, callOf("a", "alpha")))
	case events.WaitingForUser:
		s = started(t, chat).do(turnAnswer("Hello there."))
	case events.Observing:
		s.do(single("a", "alpha"), success("a", "1"))
	case events.Reflecting:
		s.do(&events.LowConfidence{Confidence: 0.1, Usage: tokens(1, 1)})
	case events.Paging:
		s.do(single("a", "alpha"), success("a", "1"), &events.NeedsPaging{})
	case events.Done:
		s.do(finalAnswer("It is 42."))
	case events.Errored:
		s.do(fatal())
	case events.Cancelled:
		s.do(&events.CancelledRun{})
	}
	require.Equal(t, state, s.Mem.State)
	return s
}

// allStates are the states of SPEC section 2.
var allStates = []events.State{
	events.Idle, events.Planning, events.Acting, events.ParallelActing, events.WaitingForHuman, events.WaitingForUser,
	events.Observing, events.Reflecting, events.Paging, events.Done, events.Errored, events.Cancelled,
}

var terminalStates = []events.State{events.Done, events.Errored, events.Cancelled}
