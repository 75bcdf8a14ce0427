package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

func (r *rig) stats() (all control.Stats) {
	r.T.Helper()
	a := r.do("GET", "/v1/stats", "")
	require.Equal(r.T, http.StatusOK, a.status, a.body)
	require.NoError(r.T, json.Unmarshal([]byte(a.body), &all))
	return all
}

func TestStats(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsBus(t, 2), nil)
	planning := func(s control.Stats) ports.Backlog {
		for _, b := range s.Backlog {
			if b.State == events.Planning {
				return b
			}
		}
		return ports.Backlog{}
	}
	require.Zero(t, planning(r.stats()).Waiting)
	r.start("task")
	r.start("chat")
	all := r.stats()
	require.Equal(t, 2, all.Runs.ByState[events.Planning])
	require.Equal(t, ports.Backlog{State: events.Planning, Waiting: 2}, planning(all))
	require.Contains(t, all.Backlog, ports.Backlog{State: events.Acting, Pool: "default"})
	require.Empty(t, all.BacklogReason)
	require.Equal(t, []announce.Worker{
		{Role: "planner", Instance: "p", Providers: []string{"openai", "scripted"}},
		{Role: "actor", Instance: "a", Pool: "default", Tools: []string{"search"}},
	}, all.Workers)
	costs := r.do("GET", "/v1/costs?by=day", "")
	require.Equal(t, http.StatusOK, costs.status, costs.body)
	require.Contains(t, costs.body, `"total":{"runs":2,`)
	for _, path := range []string{"/v1/costs?by=week", "/v1/costs?since=yesterday", "/v1/stats?all=true"} {
		r.fails(http.StatusBadRequest, refusal.CodeBadParameter, r.do("GET", path, ""))
	}
}

// A journal that does not tell of backlogs has all other counts.
func TestStatsWithoutBacklog(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	r.start("task")
	all := r.stats()
	require.Equal(t, 1, all.Runs.Total)
	require.Empty(t, all.Backlog)
	require.NotEmpty(t, all.BacklogReason)
}
