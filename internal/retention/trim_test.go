package retention_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/moorebus/moorebus/pkg/events"
)

// removals is a bus that notes how runs are removed.
type removals struct {
	retention.Bus
	purged []events.Run
	trims  int
	// later are those that were purged after a trim.
	later []events.Run
	// broken is what a trim comes to, if not nil.
	broken error
}

func (r *removals) Purge(ctx context.Context, run events.Run, upTo uint64) (uint64, error) {
	if r.trims > 0 {
		r.later = append(r.later, run)
		return r.Bus.Purge(ctx, run, upTo)
	}
	r.purged = append(r.purged, run)
	return r.Bus.Purge(ctx, run, upTo)
}

func (r *removals) Trim(ctx context.Context, shard int, before uint64) (uint64, error) {
	r.trims++
	if r.broken != nil {
		return 0, r.broken
	}
	return r.Bus.Trim(ctx, shard, before)
}

// What stands before the first record that stays goes at once; whatever would then
// be there in part, and forks with their parents, go before that and one by one.
func TestTheFrontOfTheLogGoesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var front, single []events.Run
	for range 5 {
		front = append(front, w.quick())
	}
	parent := w.quick()
	fork := w.fork(parent)
	w.append(fork, events.Control, &events.CancelledRun{})
	across := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(across, events.Idle, reducertest.StartOf("x", events.ModeTask))
	stays := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(stays, events.Idle, reducertest.StartOf("x", events.ModeTask))
	w.append(across, events.Control, &events.CancelledRun{})
	single = append(single, fork, parent, across)
	behind := []events.Run{w.quick(), w.quick(), w.quick()}

	o := retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace}
	bus := &removals{Bus: w.bus, broken: errors.New("the server is away")}
	_, err := retention.Purge(t.Context(), bus, o)
	require.ErrorIs(t, err, bus.broken)
	require.Equal(t, single, bus.purged)
	for _, run := range front {
		require.Equal(t, 2, w.length(run), "none of them is there in part")
	}

	bus = &removals{Bus: w.bus}
	done, err := retention.Purge(t.Context(), bus, o)
	require.NoError(t, err, "what was cut off is done again")
	require.Len(t, done.Runs, len(front)+len(behind))
	require.Equal(t, 1, bus.trims)
	require.Empty(t, bus.purged)
	require.Equal(t, behind, bus.later)
	for _, run := range slices.Concat(front, single, behind) {
		require.Zero(t, w.length(run))
	}
	require.Equal(t, 1, w.length(stays))
	next := w.quick()
	require.Equal(t, 2, w.length(next))
	w.verified()
}

// Where a record lies that no survey sees, nothing is known to be a front.
func TestNoFrontWhereSomethingIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	before := w.quick()
	_, err := w.conn.Request("moore.0.of.no.run", []byte("x"), patience)
	require.NoError(t, err)
	behind := w.quick()
	bus := &removals{Bus: w.bus}
	_, err = retention.Purge(t.Context(), bus, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace})
	require.NoError(t, err)
	require.Zero(t, bus.trims)
	require.Equal(t, []events.Run{before, behind}, bus.purged)
	n, _, err := w.bus.Records(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "it stays")
}

// A record that belongs to no run stays, and everything behind it goes one by one.
func TestTheFrontEndsAtAStray(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	before := w.quick()
	_, err := w.conn.Request("moore.0.default.X.none.default."+w.store.NewID(), []byte("x"), patience)
	require.NoError(t, err)
	behind := w.quick()
	bus := &removals{Bus: w.bus}
	_, err = retention.Purge(t.Context(), bus, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), Grace: noGrace})
	require.NoError(t, err)
	require.Empty(t, bus.purged)
	require.Equal(t, []events.Run{behind}, bus.later)
	require.Equal(t, 1, bus.trims)
	require.Zero(t, w.length(before))
	left := 0
	for _, err := range w.bus.Strays(t.Context(), 0) {
		require.NoError(t, err)
		left++
	}
	require.Equal(t, 1, left)
}

// All that there is goes with one request for each shard.
func TestAWholeLogGoesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	var all []events.Run
	shards := map[int]bool{}
	for range 20 {
		all = append(all, w.quick())
		shards[all[len(all)-1].Shard] = true
	}
	bus := &removals{Bus: w.bus}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{Runs: all, Grace: noGrace})
	require.NoError(t, err)
	require.Len(t, done.Runs, 20)
	require.Empty(t, bus.purged)
	require.Equal(t, len(shards), bus.trims)
	for _, run := range all {
		require.Zero(t, w.length(run))
	}
	require.Equal(t, 2, w.length(w.quick()))
	w.verified()
}
