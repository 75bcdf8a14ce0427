package list

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/pkg/events"
)

// What is kept of forks that wait for their parents is bounded, and is counted in any case.
func TestUncountedIsBounded(t *testing.T) {
	fork := &row{run: events.Run{Namespace: "default", ID: "fork"}, info: Run{ForkedFrom: &ForkPoint{Run: "gone", At: 1}}}
	x := &index{
		namespaces: map[string]*namespace{"default": {runs: map[string]*row{"fork": fork}}},
		forks:      map[*row]bool{fork: true}, counts: tally.New(), uncounted: map[*row][]tally.Event{},
	}
	now := time.Now()
	x.count(fork, tally.Event{First: true, Time: now, Stored: now, Data: &events.Forked{}}, maxUncounted)
	require.Len(t, x.uncounted, 1)
	x.count(fork, tally.Event{Time: now, Stored: now, Data: &events.Continue{}}, 1)
	require.Empty(t, x.uncounted)
	require.Equal(t, []tally.Cost{{Key: tally.Unknown, Use: tally.Use{Runs: 1}}}, x.counts.Costs("default", tally.ByAgent, time.Time{}, now).Rows)
}
