package reducer_test

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// mayWrite lists, for every event type, the parts of memory that its fold may
// change, beside n, state, trace, updated and the runtime's own control.
var mayWrite = map[events.Type]string{
	events.TypeStart:                   "task task_type system_prompt mode budget messages tools react_context config blacklist started",
	events.TypeUserMessage:             "messages react_context retry_count final_answer",
	events.TypeLLMToolCall:             "step retry_count confidence_score total_usage current_tool_call messages tool_calls react_context",
	events.TypeLLMParallelToolCalls:    "step retry_count confidence_score total_usage pending_tool_calls parallel_results messages tool_calls react_context",
	events.TypeHumanApprovalRequired:   "step retry_count confidence_score total_usage current_tool_call pending_tool_calls parallel_results messages tool_calls react_context pending_approval",
	events.TypeLLMFinalAnswer:          "step total_usage final_answer messages react_context",
	events.TypeLLMMessageComplete:      "step total_usage final_answer messages react_context",
	events.TypeLLMThought:              "step total_usage thinking_log",
	events.TypeLowConfidence:           "step total_usage confidence_score retry_count",
	events.TypeAnswerTooShort:          "step total_usage",
	events.TypeToolBlacklisted:         "step total_usage messages tool_calls react_context",
	events.TypeReplyInvalid:            "step total_usage messages tool_calls react_context",
	events.TypeMaxSteps:                "error react_context",
	events.TypeBudgetExceeded:          "error react_context",
	events.TypeFatalError:              "error react_context total_usage",
	events.TypeCancelled:               "react_context",
	events.TypeClosed:                  "react_context",
	events.TypeHumanDecision:           "pending_approval",
	events.TypeHumanApproved:           "pending_approval",
	events.TypeHumanModified:           "pending_approval current_tool_call tool_calls",
	events.TypeHumanApprovedParallel:   "pending_approval pending_tool_calls parallel_results tool_calls",
	events.TypeHumanRejected:           "pending_approval last_observation parallel_results tool_calls",
	events.TypeApprovalExpired:         "pending_approval last_observation parallel_results tool_calls",
	events.TypeToolSuccess:             "last_observation tool_calls",
	events.TypeToolFailure:             "last_observation tool_calls",
	events.TypeToolCallResult:          "parallel_results tool_calls",
	events.TypeToolCallDispatched:      "",
	events.TypeToolCallStarted:         "",
	events.TypeContinue:                "history current_tool_call last_observation pending_tool_calls parallel_results",
	events.TypeNeedsReflection:         "history current_tool_call last_observation pending_tool_calls parallel_results",
	events.TypeNeedsPaging:             "history current_tool_call last_observation pending_tool_calls parallel_results",
	events.TypeReflectDone:             "history retry_count total_usage react_context",
	events.TypePageDone:                "working_memory",
	events.TypeLLMAttemptFailed:        "total_usage messages",
	events.TypeContextWindowExpanded:   "step total_usage messages react_context",
	events.TypeToolCallsAddedToContext: "step total_usage messages react_context",
	events.TypeWorkingMemoryAdded:      "working_memory",
	events.TypeWorkingMemoryRemoved:    "working_memory",
	events.TypeStorageSaved:            "working_memory",
	events.TypeStorageLoaded:           "working_memory",
	events.TypePaused:                  "",
	events.TypeResumed:                 "",
	events.TypeBudgetRaised:            "budget",
	events.TypeHandedOff:               "system_prompt tools config blacklist react_context",
}

func always(key string) bool {
	return slices.Contains([]string{"n", "state", "trace", "updated", "control"}, key)
}

func fields(t require.TestingT, mem *reducer.Memory) map[string]json.RawMessage {
	text := []byte(reducertest.Canonical(mem))
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &m))
	return m
}

// checkOwner requires that the event wrote only what its type and the state it
// came out of may write: SPEC section 3.
func checkOwner(t require.TestingT, before, after *reducer.Memory, e *events.Event) {
	a, b := fields(t, before), fields(t, after)
	changed := map[string]bool{}
	for key := range b {
		if string(a[key]) == string(b[key]) {
			continue
		}
		changed[key] = true
		if !always(key) {
			require.Contains(t, strings.Fields(mayWrite[e.Type()]), key, "%s in %s may not change %s", e.Type(), e.From, key)
		}
	}
	require.Len(t, b, len(a), "no field comes or goes")
	from := func(states ...events.State) bool { return slices.Contains(states, e.From) }
	if changed["step"] {
		require.True(t, from(events.Planning))
		require.Equal(t, before.Step+1, after.Step)
	}
	if changed["current_tool_call"] {
		cleared := from(events.Observing) && after.CurrentToolCall == nil
		require.True(t, from(events.Planning) || cleared || e.Type() == events.TypeHumanModified)
	}
	if changed["last_observation"] {
		cleared := from(events.Observing) && after.LastObservation == nil
		require.True(t, from(events.Acting, events.WaitingForHuman) || cleared)
	}
	if changed["final_answer"] && after.FinalAnswer == nil {
		require.Equal(t, events.ModeChat, after.Mode, "never cleared in task mode")
		require.Equal(t, events.TypeUserMessage, e.Type())
	} else if changed["final_answer"] {
		require.True(t, from(events.Planning))
	}
	if changed["error"] {
		require.NotNil(t, after.Error, "never cleared")
		require.Equal(t, events.Errored, after.State)
	}
	if changed["history"] && from(events.Observing) {
		require.Equal(t, before.History, after.History[:len(before.History)], "Observing appends")
	} else if changed["history"] {
		require.True(t, from(events.Reflecting))
		require.Len(t, after.History, 1)
		require.Equal(t, "[SUMMARY]", after.History[0].Tool.Name)
	}
	require.Len(t, after.Trace, len(before.Trace)+1, "every event is in the trace")
	require.Equal(t, before.Trace, after.Trace[:len(before.Trace)])
}
