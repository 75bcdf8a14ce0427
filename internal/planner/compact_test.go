package planner_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func tooLong() *llm.Error {
	return &llm.Error{Kind: llm.KindContextTooLong, Message: "9000 tokens are too many", Usage: &llm.Usage{Input: 9, Total: 9}}
}

// compacted are the events of a run whose second request is too long.
var compacted = []string{"Start", "LlmToolCall", "ToolSuccess", "Continue", "LlmAttemptFailed", "NeedsReflection", "ReflectDone"}

func TestTooLongRequestIsSummarized(t *testing.T) {
	replies := []any{ask(call("a", "alpha", "{}")), tooLong(), say("alpha said much"), say("It is 42.")}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin()
		r.act(run, strings.Repeat("much ", 2000))
		mem := r.AwaitEnd(run)
		require.Equal(t, events.Done, mem.State)
		require.Equal(t, append(compacted, "LlmFinalAnswer"), r.Types(run))
		failed := r.event(run, 5).Data.(*events.LLMAttemptFailed)
		require.Equal(t, codes.KindContextTooLong, failed.Kind)
		require.Equal(t, "plan/4", failed.Key)
		require.Equal(t, 9, failed.Usage.Input, "what was billed counts")
		require.Zero(t, mem.RetryCount)

		whole, summary, again := r.mock.Requests()[1], r.mock.Requests()[2], r.mock.Requests()[3]
		require.Equal(t, llm.PurposeReflect, summary.Purpose)
		require.Less(t, len(summary.Messages[0].Content), 6500, "as much again would be too long as well")
		require.Contains(t, summary.Messages[0].Content, "…\"")
		require.Len(t, whole.Messages, 4)
		require.Len(t, again.Messages, 3)
		require.Contains(t, again.Messages[2].Content, "alpha said much")
	})
}

// A request that stays too long ends the run and says that it was made shorter.
func TestTooLongTwice(t *testing.T) {
	replies := []any{ask(call("a", "alpha", "{}")), tooLong(), say("alpha said much"), tooLong()}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin()
		r.act(run, "much")
		mem := r.AwaitEnd(run)
		require.Equal(t, append(compacted, "FatalError"), r.Types(run))
		require.Equal(t, "context_too_long", mem.Error.Code)
		require.Equal(t, "9000 tokens are too many; the conversation was shortened, and the request is still too long", mem.Error.Message)
	})
}

// A summary whose own request is too long is asked for with less of the history, a few times.
func TestTooLongSummary(t *testing.T) {
	replies := []any{ask(call("a", "alpha", "{}")), tooLong()}
	for range 4 {
		replies = append(replies, tooLong())
	}
	replies = append(replies, tooLong())
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin()
		r.act(run, strings.Repeat("much ", 2000))
		mem := r.AwaitEnd(run)
		require.Equal(t, events.Errored, mem.State)
		types := append(compacted[:6:6], "LlmAttemptFailed", "LlmAttemptFailed", "LlmAttemptFailed", "ReflectDone", "FatalError")
		require.Equal(t, types, r.Types(run))
		require.Contains(t, r.event(run, 10).Data.(*events.ReflectDone).Failed, "context_too_long")
		for i, most := range []int{5600, 1800, 700, 600} {
			require.Less(t, len(r.mock.Requests()[2+i].Messages[0].Content), most)
		}
		require.Len(t, mem.History, 1)
		require.Equal(t, "alpha", mem.History[0].Tool.Name, "the history stays")
	})
}

// A run whose Start names no table counts as one of this build's: what is written into it and
// what its failures change agree, so its request is not repeated unchanged.
func TestTooLongInARunWithoutATable(t *testing.T) {
	unnamed := func(s *events.Start) { s.TableHash, s.Task = "", strings.Repeat("paste ", 100) }
	bubble(t, []any{say("Read."), tooLong(), say("Hello again.")}, func(t *testing.T, r *rig) {
		run := r.begin(chat, unnamed)
		r.AwaitState(run, events.WaitingForUser)
		r.Append(run, events.WaitingForUser, user("u2", "Hello."))
		r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.WaitingForUser && mem.Step == 2 })
		require.Equal(t, []string{"Start", "LlmMessageComplete", "UserMessage", "LlmAttemptFailed", "LlmMessageComplete"}, r.Types(run))
		require.Len(t, r.mock.Requests()[2].Messages, 3)
	})
}

// A run that cannot go on without a summary waits for a provider that is busy. That costs
// nothing of the history.
func TestABusyProviderIsAskedForTheSummaryAgain(t *testing.T) {
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}
	limited := &llm.Error{Kind: llm.KindRateLimited, Message: "slow down"}
	replies := []any{ask(call("a", "alpha", "{}")), tooLong(), busy, limited, say("alpha said much"), say("It is 42.")}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin()
		r.act(run, strings.Repeat("much ", 2000))
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		require.Equal(t, append(compacted[:6:6], "LlmAttemptFailed", "LlmAttemptFailed", "ReflectDone", "LlmFinalAnswer"), r.Types(run))
		require.Equal(t, r.mock.Requests()[2].Messages, r.mock.Requests()[4].Messages)
	})
}

// In a chat the window is narrowed first. A message that is too long alone ends the run.
func TestTooLongRequestNarrowsTheWindow(t *testing.T) {
	bubble(t, []any{say("Read."), tooLong(), say("Hello again."), tooLong()}, func(t *testing.T, r *rig) {
		run := r.begin(chat, func(s *events.Start) { s.Task = strings.Repeat("paste ", 100) })
		r.AwaitState(run, events.WaitingForUser)
		r.Append(run, events.WaitingForUser, user("u2", "Hello."))
		mem := r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.WaitingForUser && mem.Step == 2 })
		require.Equal(t, []string{"Start", "LlmMessageComplete", "UserMessage", "LlmAttemptFailed", "LlmMessageComplete"}, r.Types(run))
		require.Len(t, r.mock.Requests()[2].Messages, 3)
		require.Equal(t, "moorebus_load_messages", r.mock.Requests()[2].Tools[len(r.mock.Requests()[2].Tools)-3].Name, "the model can load the rest")
		require.Empty(t, mem.Control.Compacted)
	})
	bubble(t, []any{tooLong()}, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		require.Equal(t, "9000 tokens are too many", r.AwaitEnd(run).Error.Message)
		require.Equal(t, []string{"Start", "FatalError"}, r.Types(run))
	})
}
