package e2e

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// schedule is what GET /v1/schedules/{name} shows of one.
type schedule struct {
	Pending []firing `json:"pending"`
	History []firing `json:"history"`
}

type firing struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	RunID   string    `json:"run_id"`
	Reason  string    `json:"reason"`
}

// scheduled waits until a schedule fulfils a condition.
func (c *cluster) scheduled(ctx context.Context, name, what string, until func(s schedule) bool) (s schedule) {
	c.t.Helper()
	for {
		s = schedule{}
		require.NoError(c.t, c.api.persist(ctx, http.MethodGet, "/v1/schedules/"+name, nil, &s), what)
		if until(s) {
			return s
		}
		require.NoError(c.t, wait(ctx, 50*time.Millisecond), "%s: %+v", what, s)
	}
}

// TestScheduleKill9 kills gateways, and the server once, at random moments around the firings of
// every second: each second has its one run.
func TestScheduleKill9(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for 20 firings
	}
	t.Parallel()
	c := startCluster(t, setup{gateways: 2, ackWait: quickAckWait})
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	definition := map[string]any{"llm": map[string]any{"provider": "scripted", "script": []any{map[string]any{"text": "Tick."}}}}
	require.NoError(t, c.api.persist(ctx, http.MethodPut, "/v1/agents/ticker", definition, nil))
	require.NoError(t, c.api.persist(ctx, http.MethodPut, "/v1/schedules/ticks", map[string]any{"every": "1s", "agent": "ticker", "task": "Tick.", "missed": "all"}, nil))
	seed := uint64(time.Now().UnixNano())
	chance := rand.New(rand.NewPCG(seed, 0))
	fired := map[time.Time]firing{} // the history itself is bounded
	collect := func(s schedule) int {
		for _, f := range s.History {
			fired[f.At.UTC()] = f
		}
		return len(fired)
	}
	for n := 1; n <= 10; n++ {
		c.scheduled(ctx, "ticks", "it fires", func(s schedule) bool { return collect(s) >= 2*n })
		require.NoError(t, wait(ctx, time.Duration(chance.IntN(1000))*time.Millisecond)) // the moment is what varies
		if n == 5 {
			c.bus.kill()
			c.startServer()
			continue
		}
		c.replace("gateway", chance.IntN(2))
	}
	require.NoError(t, c.api.persist(ctx, http.MethodPost, "/v1/schedules/ticks/pause", nil, nil))
	c.scheduled(ctx, "ticks", "nothing is pending", func(s schedule) bool { return collect(s) > 0 && len(s.Pending) == 0 })
	first := slices.MinFunc(slices.Collect(maps.Keys(fired)), time.Time.Compare)
	for i := range len(fired) {
		f, fires := fired[first.Add(time.Duration(i)*time.Second)]
		require.True(t, fires, "seed %d: none is left out, none comes twice: %+v", seed, fired)
		require.Equal(t, "started", f.Outcome, "seed %d: %+v", seed, f)
		require.Eventually(t, func() bool {
			var run struct {
				State  string `json:"state"`
				Memory struct {
					Custom map[string]struct{ At time.Time } `json:"custom"`
				} `json:"memory"`
			}
			err := c.api.get(ctx, "/v1/runs/"+f.RunID, &run)
			return err == nil && run.State == "done" && run.Memory.Custom["schedule"].At.Equal(f.At)
		}, startTime, 20*time.Millisecond, "seed %d: %+v", seed, f)
	}
	var runs struct {
		Runs []struct {
			ID string `json:"run_id"`
		} `json:"runs"`
	}
	require.NoError(t, c.api.get(ctx, "/v1/runs?agent=ticker&limit=1000", &runs))
	require.Len(t, runs.Runs, len(fired), "seed %d", seed)
	c.verifyAll()
}
