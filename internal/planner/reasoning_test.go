package planner_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// thinking is a reply that reasoned in text and in a part that only the provider can read.
func thinking(r llm.ToolCalls, text string, back bool) llm.ToolCalls {
	r.Reasoning = events.Reasoning{
		{Kind: events.ReasoningText, Text: text}, {Kind: events.ReasoningSummary, Text: "short"}, {Kind: events.ReasoningOpaque, Data: json.RawMessage(`"sealed"`)},
	}
	r.ReasoningBack = back
	return r
}

// Reasoning that is too large for an event is in the object store, and goes back from there.
func TestLargeReasoningIsKeptApart(t *testing.T) {
	long := strings.Repeat("So it is. ", 10_000)
	first := thinking(ask(call("a", "alpha", "{}")), long, true)
	mock := scripted.NewMock(first, ask(call("b", "alpha", "{}")), say("It is 42."))
	var gone atomic.Bool
	bubbleWith(t, mock, func(t *testing.T, r *rig) {
		run := r.begin()
		facts := r.event(run, 2).Data.(*events.LLMToolCall).Facts
		require.Empty(t, facts.Reasoning)
		require.Greater(t, facts.ReasoningRef.Size, len(long))
		store := r.Journal.NewProcess()
		data, err := store.Blob(t.Context(), *facts.ReasoningRef)
		require.NoError(t, err)
		require.Equal(t, facts.ReasoningRef.SHA256, events.Hash(data))
		r.act(run, "one")
		r.event(run, 5)
		require.Equal(t, first.Reasoning, mock.Requests()[1].Messages[2].Reasoning)
		gone.Store(true)
		r.act(run, "two")
		r.AwaitEnd(run)
		require.Empty(t, mock.Requests()[2].Messages[2].Reasoning, "what was removed is left out")
	}, func(c *planner.Config) { c.Blobs = losing{c.KV.(journal.Blobs), &gone} })
}

// losing is an object store that loses what it has.
type losing struct {
	journal.Blobs
	gone *atomic.Bool
}

func (l losing) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	if l.gone.Load() {
		return nil, journal.ErrNotFound
	}
	return l.Blobs.Blob(ctx, ref)
}

// An agent that does not record reasoning keeps what has to go back.
func TestReasoningThatIsNotRecorded(t *testing.T) {
	no := false
	for back, want := range map[bool]int{false: 1, true: 3} {
		bubble(t, []any{thinking(ask(call("a", "alpha", "{}")), "So.", back), say("It is 42.")}, func(t *testing.T, r *rig) {
			run := r.begin(func(s *events.Start) { s.Agent.RecordReasoning = &no })
			facts := r.event(run, 2).Data.(*events.LLMToolCall).Facts
			require.Len(t, facts.Reasoning, want)
			require.JSONEq(t, `"sealed"`, string(facts.Reasoning[want-1].Data))
			r.act(run, "one")
			r.AwaitEnd(run)
			require.Len(t, r.mock.Requests()[1].Messages[2].Reasoning, want)
		})
	}
}
