package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
)

// A request for a purged run says so, and its id cannot start again.
func TestPurgedRuns(t *testing.T) {
	t.Parallel()
	stones := simtest.New(simtest.Options{})
	r := simulatedRig(t, func(cfg *config) { cfg.Tombstones = stones })
	id := runlog.NewID()
	begin := `{"agent":` + inline + `,"task":"Say hi","run_id":"` + id + `"}`
	run := events.NewRun(events.DefaultNamespace, id, 1)
	require.NoError(t, tombstones.Put(t.Context(), stones, run, tombstones.Tombstone{
		Run: id, Namespace: run.Namespace, Events: 12, PurgedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}))
	a := r.fails(http.StatusConflict, "run_purged", r.do("POST", "/v1/runs", begin))
	require.Equal(t, "2026-01-02T03:04:05Z", a.text(t, "purged_at"))
	require.Equal(t, id, a.text(t, "run"))
	require.Empty(t, r.Records(id))
	for _, path := range []string{"", "?at=1", "/events", "/states"} {
		r.fails(http.StatusNotFound, "run_purged", r.do("GET", "/v1/runs/"+id+path, ""))
	}
	r.fails(http.StatusNotFound, "run_purged", r.do("POST", "/v1/runs/"+id+"/cancel", ""))
	r.fails(http.StatusNotFound, "run_purged", r.do("GET", "/v1/compare?a="+r.acted()+"&b="+id, ""))
	r.fails(http.StatusNotFound, "run_not_found", r.do("GET", "/v1/runs/"+runlog.NewID(), ""))

	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", begin, "Moorebus-Namespace", "other").status)
	require.NoError(t, tombstones.Delete(t.Context(), stones, run))
	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", begin).status)

	// During a purge the run cannot be forked.
	require.NoError(t, tombstones.Put(t.Context(), stones, run, tombstones.Tombstone{Run: id, Namespace: run.Namespace}))
	r.fails(http.StatusNotFound, "run_purged", r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1}`))
	require.NoError(t, tombstones.Delete(t.Context(), stones, run))
	require.Equal(t, http.StatusOK, r.do("POST", "/v1/runs/"+id+"/fork", `{"at":1}`).status)
}

// away are tombstones that cannot be read.
type away struct{ kv.Store }

func (away) Get(context.Context, kv.Bucket, string) (kv.Item, error) {
	return kv.Item{}, errors.New("the bus is away")
}

// A run does not start while it is unknown whether it was purged.
func TestTombstonesAreAway(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(cfg *config) { cfg.Tombstones = away{} })
	id := runlog.NewID()
	r.fails(http.StatusServiceUnavailable, "unavailable", r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"Say hi","run_id":"`+id+`"}`))
	require.Empty(t, r.Records(id))
	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", `{"agent":`+inline+`,"task":"Say hi"}`).status, "a new id was never purged")
}

// During a purge neither the purged run nor its forks can be forked: the new fork would lose
// its ancestors.
func TestForkOfWhatIsBeingPurged(t *testing.T) {
	t.Parallel()
	stones := simtest.New(simtest.Options{})
	r := simulatedRig(t, func(cfg *config) { cfg.Tombstones = stones })
	oldest := r.acted()
	middle := r.forked(oldest, `{"at":2}`)
	youngest := r.forked(middle, `{"at":1}`)
	bury := func(id string) events.Run {
		run := r.At(id)
		stone := tombstones.Tombstone{Run: id, Namespace: "default", PurgedAt: time.Now()}
		if recs := r.Records(id); len(recs) > 0 {
			stone.Events, stone.Last = uint64(len(recs)), events.Hash(recs[len(recs)-1].Body)
		}
		require.NoError(t, tombstones.Put(t.Context(), stones, run, stone))
		return run
	}
	last := func() uint64 {
		n, err := r.Bus.Last(t.Context(), 0)
		require.NoError(t, err)
		return n
	}
	before, run := last(), bury(oldest)
	r.fails(http.StatusNotFound, "run_purged", r.fork(oldest, `{"at":1}`))
	for _, id := range []string{middle, youngest} {
		a := r.fails(http.StatusConflict, "run_purged", r.fork(id, `{"at":1}`))
		require.Equal(t, oldest, a.text(t, "run"))
	}
	require.Equal(t, before, last())
	require.NoError(t, tombstones.Delete(t.Context(), stones, run))
	r.forked(youngest, `{"at":1}`)

	// The beginning of a purged run that was restored with its fork stays.
	require.NoError(t, tombstones.Put(t.Context(), stones, run, tombstones.Tombstone{
		Run: oldest, Namespace: "default", PurgedAt: time.Now(), Events: uint64(len(r.Records(oldest))) + 1, Last: events.Hash([]byte("its end")),
	}))
	r.forked(youngest, `{"at":1}`)
	r.fails(http.StatusNotFound, "run_purged", r.fork(oldest, `{"at":1}`))

	gone := runlog.NewID()
	bury(gone)
	r.fails(http.StatusNotFound, "run_purged", r.fork(gone, `{"at":1}`))
	r.fails(http.StatusNotFound, "run_not_found", r.fork(runlog.NewID(), `{"at":1}`))
}
