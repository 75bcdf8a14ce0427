package reducer

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Every event has a line in the trace that says more than its type.
func TestEveryEventIsDescribed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 2*traceTextLimit)
	call := events.Call{ID: "c1", Name: "search", Arguments: `{"q":"` + long + `"}`}
	calls := events.ToolCallReply{Calls: []events.Call{call}}
	reply := events.Reply{Content: long}
	refused := events.RefusedReply{Results: []events.Answer{{ID: "c1", Code: "blacklisted", Observation: long}}}
	entry := events.Entry{Tags: []string{"home"}, Value: long}
	outcome := events.ToolOutcome{CallID: "c1", Observation: long}
	reason := events.Outcome{Code: "stalled", Message: long}
	decision := events.Decision{CallID: "c1", Decision: events.DecisionModified, Arguments: "{}", Reason: long, By: "Ann"}
	by := events.By{Reason: long, By: "Ann"}
	described := map[events.Type]bool{}
	for _, p := range []events.Payload{
		&events.Start{Task: long}, &events.Forked{Run: "r", At: 3}, &events.LLMToolCall{ToolCallReply: calls}, &events.LLMParallelToolCalls{ToolCallReply: calls},
		&events.LLMFinalAnswer{Reply: reply}, &events.LLMMessageComplete{Reply: reply}, &events.LLMThought{Reply: reply}, &events.MaxSteps{Outcome: reason},
		&events.LowConfidence{Confidence: 0.3}, &events.AnswerTooShort{Content: long}, &events.ToolBlacklisted{RefusedReply: refused},
		&events.ReplyInvalid{RefusedReply: refused}, &events.HumanApprovalRequired{ToolCallReply: calls}, &events.HumanApproved{},
		&events.HumanModified{Decision: decision}, &events.HumanApprovedParallel{}, &events.HumanRejected{Decision: decision},
		&events.ApprovalExpired{}, &events.Closed{}, &events.ToolSuccess{Outcome: &outcome}, &events.ToolFailure{Outcome: &outcome},
		&events.Continue{}, &events.NeedsReflection{}, &events.NeedsPaging{}, &events.ReflectDone{Summary: long}, &events.PageDone{},
		&events.FatalError{Outcome: reason}, &events.BudgetExceeded{Outcome: reason}, &events.CancelledRun{By: by}, &events.UserMessage{Content: long},
		&events.LLMAttemptFailed{Kind: "network", Message: long}, &events.ToolCallDispatched{CallID: "c1"}, &events.ToolCallStarted{CallID: "c1"},
		&events.ToolCallResult{ToolOutcome: outcome}, &events.HumanDecision{Decision: decision}, &events.ContextWindowExpanded{Increment: 4},
		&events.ToolCallsAddedToContext{CallIDs: []string{"c1"}}, &events.WorkingMemoryAdded{Entry: entry},
		&events.WorkingMemoryRemoved{Tags: []string{"home"}}, &events.StorageSaved{Entry: entry}, &events.StorageLoaded{Tags: []string{"home"}},
		&events.Paused{By: by}, &events.Resumed{}, &events.BudgetRaised{By: by}, &events.HandedOff{Agent: events.Agent{Name: "writer"}, Reason: long},
	} {
		text := ruleFor(events.TypeOf(p)).trace(p)
		require.NotEmpty(t, strings.Trim(text, " :,"), "%s", events.TypeOf(p))
		require.LessOrEqual(t, utf8.RuneCountInString(text), traceTextLimit+1, "%s", events.TypeOf(p))
		described[events.TypeOf(p)] = true
	}
	for _, typ := range events.Types() {
		require.True(t, described[typ], "%s is not here", typ)
	}
	require.Equal(t, `{"x":1}`, customRule.trace(&events.Custom{Name: "Mine", Data: []byte(`{"x":1}`)}))
}
