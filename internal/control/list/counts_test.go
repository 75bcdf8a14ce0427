package list_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Counts and costs are of every event in the log, each once, forks and illegal events too, and a
// gateway that starts later says the same.
func TestCounts(t *testing.T) {
	onEveryBus(t, 2, func(t *testing.T, r *rig) {
		used := func(dollars float64) events.Reply {
			return events.Reply{Content: "42 pages", Usage: events.Usage{Input: 10, Output: 5, Total: 15, CostUSD: cost(dollars)}}
		}
		chat, dear, bad := r.start("news", "What is new?"), r.start("books", "Read"), r.start("news", "Fail")
		counts, err := r.Counts(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, list.RunCounts{Total: 3, ByState: map[events.State]int{events.Planning: 3}}, counts.Runs)
		r.Happens(chat, events.Planning, &events.LLMMessageComplete{MessageID: "a", Reply: used(0.5)})
		r.Happens(dear, events.Planning, &events.LLMFinalAnswer{MessageID: "m", Reply: used(0.75)})
		r.Happens(bad, events.Planning, &events.FatalError{Outcome: events.Outcome{Code: "auth", Message: "no"}})
		fork, err := r.Fork(t.Context(), "", dear, forking.Request{At: 1})
		require.NoError(t, err)
		r.Happens(fork.RunID, events.Planning, &events.LLMFinalAnswer{MessageID: "m2", Reply: used(0.25)})

		for _, from := range []*rig{r, newRig(t, r.Bus)} {
			counts, err := from.Counts(t.Context(), "")
			require.NoError(t, err)
			require.Equal(t, list.RunCounts{
				Total: 4, ByState: map[events.State]int{events.WaitingForUser: 1, events.Done: 2, events.Errored: 1}, Waiting: list.WaitingCounts{User: 1},
			}, counts.Runs)
			var all tally.Hour // the hour may end meanwhile
			for _, h := range counts.Hours {
				all.Started, all.Ended, all.Failed, all.Events = all.Started+h.Started, all.Ended+h.Ended, all.Failed+h.Failed, all.Events+h.Events
			}
			require.Equal(t, tally.Hour{Started: 4, Ended: 3, Failed: 1, Events: 8}, all)
			require.InDelta(t, 8.0/60, counts.Rates.Events, 1e-9)
			costs, err := from.Costs(t.Context(), "", "", time.Time{})
			require.NoError(t, err)
			require.Equal(t, []tally.Cost{
				{Key: "books", Use: tally.Use{Runs: 2, Calls: 2, Input: 20, Output: 10, CostUSD: cost(1)}},
				{Key: "news", Use: tally.Use{Runs: 2, Calls: 1, Input: 10, Output: 5, CostUSD: cost(0.5)}},
			}, costs.Rows)
		}
		_, err = r.Costs(t.Context(), "", "colour", time.Time{})
		require.True(t, refusal.Is(err, refusal.CodeBadParameter))
		_, err = r.Counts(t.Context(), "no namespace")
		require.True(t, refusal.Is(err, refusal.CodeBadNamespace))
	})
}
