package effects_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestOverWallTime(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	hour := &events.Budget{MaxWallTime: events.Duration(time.Hour)}
	for name, c := range map[string]struct {
		mem  reducer.Memory
		in   time.Duration
		over bool
	}{
		"not started": {reducer.Memory{Budget: hour}, 100 * time.Hour, false},
		"no budget":   {reducer.Memory{N: 1, Started: began}, 100 * time.Hour, false},
		"no limit":    {reducer.Memory{N: 1, Started: began, Budget: &events.Budget{MaxTotalTokens: 1}}, 100 * time.Hour, false},
		"before":      {reducer.Memory{N: 1, Started: began, Budget: hour}, time.Hour - 1, false},
		"at":          {reducer.Memory{N: 1, Started: began, Budget: hour}, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			o, over := effects.OverWallTime(&c.mem, began.Add(c.in))
			require.Equal(t, c.over, over)
			if over {
				require.Equal(t, events.Outcome{Code: "budget_wall_time", Message: "the run took longer than its 1h0m0s"}, o)
			}
			at, limited := effects.Deadline(&c.mem)
			require.Equal(t, c.mem.N > 0 && c.mem.Budget == hour, limited)
			if limited {
				require.Equal(t, began.Add(time.Hour), at)
			}
		})
	}
}
