package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/gateway"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/simulated"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// A purged run is gone, and says so; its id is not started again.
func TestPurgedRuns(t *testing.T) {
	stones := simulated.New(simulated.Options{})
	r := simulatedRig(t, func(cfg *gateway.Config) { cfg.Tombstones = stones })
	id := runlog.NewID()
	begin := `{"agent":` + inline + `,"task":"Say hi","run_id":"` + id + `"}`
	run := events.NewRun(events.DefaultNamespace, id, 1)
	require.NoError(t, stones.PutTombstone(t.Context(), run, journal.Tombstone{
		Run: id, Namespace: run.Namespace, Events: 12, PurgedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}))
	a := r.fails(http.StatusConflict, "run_purged", r.do("POST", "/v1/runs", begin))
	require.Equal(t, "2026-01-02T03:04:05Z", a.text(t, "purged_at"))
	require.Equal(t, id, a.text(t, "run"))
	require.Empty(t, r.records(id))
	for _, path := range []string{"", "?at=1", "/events"} {
		r.fails(http.StatusNotFound, "run_purged", r.do("GET", "/v1/runs/"+id+path, ""))
	}
	r.fails(http.StatusNotFound, "run_purged", r.do("POST", "/v1/runs/"+id+"/cancel", ""))
	r.fails(http.StatusNotFound, "run_not_found", r.do("GET", "/v1/runs/"+runlog.NewID(), ""))

	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", begin, "Moorebus-Namespace", "other").status)
	require.NoError(t, stones.DeleteTombstone(t.Context(), run))
	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", begin).status)

	// While it is there and about to go, nothing is forked from it.
	require.NoError(t, stones.PutTombstone(t.Context(), run, journal.Tombstone{Run: id, Namespace: run.Namespace}))
	r.fails(http.StatusNotFound, "run_purged", r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1}`))
	require.NoError(t, stones.DeleteTombstone(t.Context(), run))
	require.Equal(t, http.StatusOK, r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1}`).status)
}

// away are tombstones that cannot be read.
type away struct{ journal.Tombstones }

func (away) Tombstone(context.Context, events.Run) (journal.Tombstone, error) {
	return journal.Tombstone{}, errors.New("the bus is away")
}

// As long as it is not known whether a run was purged it is not started.
func TestTombstonesAreAway(t *testing.T) {
	r := simulatedRig(t, func(cfg *gateway.Config) { cfg.Tombstones = away{} })
	id := runlog.NewID()
	r.fails(http.StatusServiceUnavailable, "unavailable", r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"Say hi","run_id":"`+id+`"}`))
	require.Empty(t, r.records(id))
	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"Say hi"}`).status, "a new id was never purged")
}
