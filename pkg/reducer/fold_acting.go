package reducer

import (
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// The prefixes of an observation.
const (
	SuccessPrefix  = "SUCCESS: "
	ErrorPrefix    = "ERROR: "
	RejectedPrefix = "REJECTED: "
)

// The codes that the log itself uses; a tool's own are its own matter.
const (
	CodeNoActor           = "no_actor"
	CodeOutcomeUnknown    = "outcome_unknown"
	CodeAttemptsExhausted = "attempts_exhausted"
	CodeRejected          = "rejected"
	CodePoison            = "poison"
	CodeSafetyCap         = "safety_cap_exceeded"
	CodeNoCurrentCall     = "no_current_call"
	CodeNoHandler         = "no_handler_for_state"
	CodeInvalidTransition = "invalid_transition"
	CodeWallTime          = "budget_wall_time"
	CodeStalled           = "stalled"
)

func (mem *Memory) foldActing(e *events.Event) {
	switch p := e.Data.(type) {
	case *events.ToolCallDispatched:
		mem.Call(p.CallID).Dispatched = e.N
	case *events.ToolCallStarted:
		mem.Call(p.CallID).Started = e.N
	case *events.HandedOff:
		mem.handOff(p)
	case *events.ToolCallResult:
		mem.answerBatchCall(&p.ToolOutcome)
	case *events.ToolSuccess:
		mem.answerSingleCall(p.Outcome)
	case *events.ToolFailure:
		mem.answerSingleCall(p.Outcome)
	}
}

// AbandonedBatch is the event that ends a batch whose results are all in, but of
// whose pools none has an actor left that could end it. It says nothing of the
// results: some of them may be successes.
func AbandonedBatch() *events.ToolFailure {
	return &events.ToolFailure{Outcome: &events.ToolOutcome{Code: CodeNoActor}}
}

// joinPool returns the pool whose actor ends the batch if o is its last result:
// the call's own, but where nobody served that the one of the last call that
// somebody did serve, if there is any.
func (mem *Memory) joinPool(o *events.ToolOutcome) string {
	if o.Success || o.Code != CodeNoActor {
		return mem.poolOf(o.CallID)
	}
	for _, r := range slices.Backward(mem.ParallelResults) {
		if r.Success || r.Code != CodeNoActor {
			return mem.poolOf(r.ID)
		}
	}
	return mem.poolOf(o.CallID)
}

func (mem *Memory) answerBatchCall(o *events.ToolOutcome) {
	call := mem.Call(o.CallID)
	call.Answered = true
	mem.Control.LastResult = mem.joinPool(o)
	mem.ParallelResults = append(mem.ParallelResults, ToolResult{
		ToolCall: ToolCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments},
		Success:  o.Success, Observation: o.Observation, Code: o.Code, LatencyMS: o.LatencyMS,
	})
	mem.setResult(o)
}

func (mem *Memory) answerSingleCall(o *events.ToolOutcome) {
	if o == nil || mem.Control.Batch {
		return
	}
	mem.Call(o.CallID).Answered = true
	observation := o.Observation
	mem.LastObservation = &observation
	mem.setResult(o)
	mem.Control.Last = &ToolResult{
		ToolCall: *mem.CurrentToolCall, Success: o.Success, Observation: o.Observation, Code: o.Code, LatencyMS: o.LatencyMS,
	}
}

func (mem *Memory) setResult(o *events.ToolOutcome) {
	record := mem.ToolCalls[o.CallID]
	if record == nil {
		return
	}
	record.Ref, record.Run = o.Ref, o.Run
	mem.settle(o)
	if o.Success {
		record.Result = &CallResult{Success: &Success{Content: strings.TrimPrefix(o.Observation, SuccessPrefix)}}
	} else {
		record.Result = &CallResult{Failed: &Failed{Error: o.Observation}}
	}
}

// foldObserving commits the reply's results to the history and clears what
// belongs to the reply.
func (mem *Memory) foldObserving(e *events.Event) {
	switch p := e.Data.(type) {
	case *events.Continue, *events.NeedsReflection, *events.NeedsPaging:
		mem.commit()
	case *events.ReflectDone:
		mem.foldReflection(p)
	case *events.PageDone:
		mem.foldPaged(p)
	}
}

func (mem *Memory) commit() {
	c := &mem.Control
	if c.Last != nil {
		mem.commitResult(*c.Last)
	}
	for _, r := range mem.ParallelResults {
		mem.commitResult(r)
	}
	for _, r := range c.Refused {
		mem.commitResult(ToolResult{
			ToolCall:    ToolCall{ID: r.ID, Name: r.Name, Arguments: r.Arguments},
			Observation: r.Observation, Code: r.Code,
		})
	}
	mem.CurrentToolCall, mem.LastObservation = nil, nil
	mem.PendingToolCalls, mem.ParallelResults = []ToolCall{}, []ToolResult{}
	c.Calls, c.Refused, c.Batch, c.Last = nil, nil, false, nil
}

func (mem *Memory) commitResult(r ToolResult) {
	mem.History = append(mem.History, HistoryEntry{
		Step: mem.Step, Tool: r.ToolCall, Observation: r.Observation, Success: r.Success, Code: r.Code,
	})
}

func (mem *Memory) foldReflection(p *events.ReflectDone) {
	c := &mem.Control
	if p.Usage != nil {
		mem.addUsage(*p.Usage)
	}
	if !c.LowPending {
		mem.RetryCount = 0
	}
	c.LowPending = false
	if p.Summary == "" {
		return
	}
	mem.History = []HistoryEntry{{
		Step: mem.Step, Tool: ToolCall{Name: SummaryTool}, Observation: p.Summary, Success: true, Code: "ok",
	}}
	// The conversation stays; the calls that the summary replaces go. A new
	// slice: the old turns may still be read elsewhere.
	turns := make([]Turn, 0, len(c.Turns))
	open := []string{}
	for _, t := range c.Turns {
		switch {
		case t.Kind == TurnSummary:
		case len(t.Calls) == 0:
			turns = append(turns, t)
		case mem.unanswered(t.Calls):
			turns = append(turns, t)
			open = append(open, t.Calls...)
		case t.Content != "":
			turns = append(turns, Turn{Kind: TurnReply, Content: t.Content})
		}
	}
	c.Turns = append(turns, Turn{Kind: TurnSummary, Content: p.Summary})
	c.Asked = lastAsked(c.Turns)
	if r := mem.ReactContext; r != nil {
		r.ToolCallIDs = open // what was summarized is shown again when it is asked for
		r.changeEdits(func(e *Edit) { e.CallIDs = nil })
	}
	// What was shown is not shown any more, so nothing may say that it is.
	c.Internal = slices.DeleteFunc(slices.Clone(c.Internal), func(call InternalCall) bool { return !slices.Contains(open, call.ID) })
}

// unanswered reports whether one of the calls has no result yet: then its
// reply stays as it is, so that no result is parted from its call.
func (mem *Memory) unanswered(ids []string) bool {
	for _, id := range ids {
		if record := mem.ToolCalls[id]; record != nil && record.Result == nil {
			return true
		}
	}
	return false
}
