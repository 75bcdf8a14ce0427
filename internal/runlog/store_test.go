package runlog_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestExtendReadsOnlyWhatIsMissing(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	log := &workertest.Log{Log: bench.Journal}
	store := bench.NewStore(log)
	r := store.Acquire(id)
	defer store.Release(r)
	r.Lock()
	defer r.Unlock()
	extend := func(n int) {
		t.Helper()
		rec := bench.Records(id)[n-1]
		e, err := r.Extend(t.Context(), rec)
		require.NoError(t, err)
		require.EqualValues(t, n, e.N)
		require.LessOrEqual(t, rec.Seq, r.Seq())
	}

	extend(1)
	require.Equal(t, 1, log.Reads(), "nothing was known")
	for _, name := range []string{"a", "b", "c"} {
		bench.Append(id, events.Control, message(name))
	}
	extend(2)
	extend(3)
	require.EqualValues(t, 3, r.Memory().N)
	require.Equal(t, 1, log.Reads(), "each was the next one")
	extend(1)
	require.Equal(t, 1, log.Reads(), "it was read before")
	bench.Append(id, events.Control, message("d"))
	extend(5)
	require.Equal(t, 2, log.Reads(), "there is a gap")
	require.Equal(t, reducertest.Canonical(bench.Memory(id)), reducertest.Canonical(r.Memory()))

	require.NoError(t, r.Refresh(t.Context()))
	require.Equal(t, 3, log.Reads(), "Refresh always reads")

	log.OnRead = func(events.Run) error { return errors.New("away") }
	require.ErrorContains(t, r.Refresh(t.Context()), "away")
	require.EqualValues(t, 5, r.Memory().N)
}

// A reader that lags behind the one that delivers must not make a delivery look
// as if there were nothing to do.
func TestExtendRefusesALogThatLagsBehind(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := bench.Start(start())
	bench.Append(id, events.Control, message("a"))
	recs := bench.Records(id)
	behind := workertest.New(t, simtest.Options{}, nil)
	store := bench.NewStore(behind.Journal)
	r := store.Acquire(id)
	defer store.Release(r)
	r.Lock()
	defer r.Unlock()
	_, err := r.Extend(t.Context(), recs[1])
	require.ErrorContains(t, err, "before the delivered record 2")
}

func TestPoisonInTheMiddle(t *testing.T) {
	for name, body := range map[string]func(recs []journal.Record) []byte{
		"not JSON":        func([]journal.Record) []byte { return []byte("not JSON") },
		"illegal":         func(recs []journal.Record) []byte { return recs[0].Body },
		"of another run":  func([]journal.Record) []byte { return foreign(t) },
		"of unknown type": func(recs []journal.Record) []byte { return replaced(recs[1], `"UserMessage"`, `"Nonsense"`) },
	} {
		t.Run(name, func(t *testing.T) {
			bench := workertest.New(t, simtest.Options{}, nil)
			id := bench.Start(start())
			bench.Append(id, events.Control, message("a"))
			before := bench.Memory(id)
			subject := events.Subject{Run: id, From: events.Planning, To: events.Planning, Pool: events.DefaultPool}.String()
			poison := body(bench.Records(id))
			seq := bench.Journal.Inject(id.Shard, subject, poison)

			for _, read := range []string{"Extend", "Refresh"} {
				store := bench.NewStore(bench.Journal)
				r := store.Acquire(id)
				r.Lock()
				if read == "Extend" {
					_, err := r.Extend(t.Context(), bench.Records(id)[2])
					require.NoError(t, err)
				} else {
					require.NoError(t, r.Refresh(t.Context()))
				}
				mem := r.Memory()
				require.Equal(t, seq, r.Seq())
				require.EqualValues(t, 3, mem.N, "it counts")
				require.Equal(t, events.Hash(poison), mem.Control.Head, "and is part of the chain")
				require.NotNil(t, mem.Control.Poison)
				require.EqualValues(t, 3, mem.Control.Poison.N)
				require.Equal(t, before.State, mem.State)
				require.Len(t, r.Effects(), 1)
				r.Unlock()
				store.Release(r)
			}
			require.Error(t, bench.TryAppend(id, events.Control, message("b")), "only its end is legal")
			bench.Append(id, events.Control, &events.CancelledRun{})
			mem, err := bench.Fold(id)
			require.Error(t, err)
			require.Equal(t, events.Cancelled, mem.State)
			require.EqualValues(t, 4, mem.N)
		})
	}
}

func foreign(t *testing.T) []byte {
	other := reducertest.NewRun(nil)
	_, _, body, err := other.Draft(events.Idle, start())
	require.NoError(t, err)
	return body
}

func replaced(rec journal.Record, old, by string) []byte {
	return []byte(strings.Replace(string(rec.Body), old, by, 1))
}

func TestEvictionSparesHeldRuns(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	log := &workertest.Log{Log: bench.Journal}
	store := runlog.New(runlog.Options{Log: log, Capacity: 2})
	ids := make([]events.Run, 5)
	for i := range ids {
		ids[i] = bench.Start(start())
	}
	use := func(id events.Run) *runlog.Run {
		r := store.Acquire(id)
		r.Lock()
		defer r.Unlock()
		require.NoError(t, r.Refresh(t.Context()))
		return r
	}
	held := use(ids[0])
	for _, id := range ids[1:] {
		store.Release(use(id))
	}
	require.Same(t, held, store.Acquire(ids[0]), "a held run is never dropped")
	store.Release(held)
	require.Equal(t, []events.Run{ids[0]}, store.HeldRuns())

	again := store.Acquire(ids[4])
	require.EqualValues(t, 1, again.Memory().N, "one of the two used last is kept")
	store.Release(again)
	gone := store.Acquire(ids[1])
	require.Zero(t, gone.Memory().N, "the oldest was dropped")
	store.Release(gone)
	store.Release(held)
	require.Empty(t, store.HeldRuns())
	require.Nil(t, store.Held(ids[0]), "an idle run is not held")
}

func TestEndedRunsAreForgotten(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	store := bench.NewStore(bench.Journal)
	id := bench.Start(start())
	first, second := store.Acquire(id), store.Acquire(id)
	require.Same(t, first, second)
	first.Lock()
	// It was not read yet: the lost race does that.
	_, err := first.Commit(t.Context(), stamp, appending(&events.CancelledRun{}))
	require.NoError(t, err)
	require.EqualValues(t, 2, first.Memory().N)
	require.True(t, first.Terminal())
	require.Empty(t, first.Effects())
	first.Unlock()
	store.Release(first)
	require.Same(t, second, store.Held(id), "somebody holds it still")
	store.Release(second)
	store.Release(second)
	fresh := store.Acquire(id)
	defer store.Release(fresh)
	require.NotSame(t, first, fresh)
	require.Zero(t, fresh.Memory().N)
}

func TestStoreIsSafeForConcurrentUse(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	store := runlog.New(runlog.Options{Log: bench.Journal, Capacity: 1})
	ids := []events.Run{bench.Start(start()), bench.Start(start()), bench.Start(start())}
	var users sync.WaitGroup
	for u := range 8 {
		users.Go(func() {
			for i := range 50 {
				r := store.Acquire(ids[(u+i)%len(ids)])
				r.Lock()
				if err := r.Refresh(t.Context()); err != nil || r.Memory().N != 1 {
					t.Errorf("n is %d, %v", r.Memory().N, err)
				}
				r.Unlock()
				if h := store.Held(r.ID); h != r {
					t.Errorf("held is another run")
				}
				store.Release(r)
				store.Release(r)
			}
		})
	}
	users.Wait()
	require.Empty(t, store.HeldRuns())
}

func TestStoreDefaults(t *testing.T) {
	store := runlog.New(runlog.Options{Log: simtest.New(simtest.Options{Shards: 3})})
	require.NoError(t, events.CheckID(store.NewID()))
	require.NotEqual(t, store.NewID(), store.NewID())
	require.WithinDuration(t, time.Now(), store.Now(), time.Minute)
	id := store.NewID()
	require.Equal(t, events.ShardOf(id, 3), store.Place("ns", id).Shard)
	require.NotNil(t, store.Machine())
	require.Equal(t, 3, store.Log().Shards())
}

// Idle runs are bounded by their bytes too, and what was never found is not
// kept at all.
func TestIdleRunsAreBoundedInBytes(t *testing.T) {
	log := simtest.New(simtest.Options{})
	writer := runlog.New(runlog.Options{Log: log})
	var places []events.Run
	for range 3 {
		place := writer.Place("default", runlog.NewID())
		run := writer.Acquire(place)
		run.Lock()
		_, err := run.Commit(t.Context(), runlog.Stamp{Source: "moorebus/test/a"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: events.Idle, Payload: &events.Start{
				Agent: events.Agent{Name: "a", Config: events.DefaultAgent().Config}, Mode: events.ModeTask, Task: strings.Repeat("x", 10_000),
			}}}, nil
		})
		run.Unlock()
		writer.Release(run)
		require.NoError(t, err)
		places = append(places, place)
	}
	store := runlog.New(runlog.Options{Log: log, MaxBytes: 25_000})
	known := func(place events.Run) bool {
		run := store.Acquire(place)
		defer store.Release(run)
		run.Lock()
		defer run.Unlock()
		was := run.Seq() > 0
		require.NoError(t, run.Refresh(t.Context()))
		return was
	}
	for _, place := range places {
		require.False(t, known(place))
	}
	require.True(t, known(places[2]), "the last ones stay")
	require.True(t, known(places[1]))
	require.False(t, known(places[0]), "the first one had to go")
	nowhere := store.Place("default", runlog.NewID())
	require.False(t, known(nowhere))
	require.True(t, known(places[0]), "a run that is not there takes no room")
}

// userKey is the key of a value in a context.
type userKey struct{}

// A run is bound to a context's values until it has ended, so that none is kept for
// longer; and so are the runs that answer its calls.
func TestValuesEndWithTheRun(t *testing.T) {
	f := newForks(t)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), userKey{}, "ann"))
	run := f.started(1)
	f.store.Bind(run, ctx)
	cancel()
	value := func(id events.Run) any {
		r := f.store.Acquire(id)
		defer f.store.Release(r)
		seen := f.store.WithValues(t.Context(), r)
		require.NoError(t, seen.Err(), "it does not end with the other context")
		return seen.Value(userKey{})
	}
	require.Equal(t, "ann", value(run))
	require.Nil(t, value(f.started(1)))

	answering := func(parent events.Run, depth int) events.Run {
		child := f.store.Place("default", f.store.NewID())
		start := reducertest.StartOf("help", events.ModeTask)
		start.Parent = &events.Parent{Run: parent.ID, CallID: "a", Depth: depth}
		f.append(child, nil, events.Idle, start)
		held := f.store.Acquire(child)
		t.Cleanup(func() { f.store.Release(held) })
		held.Lock()
		defer held.Unlock()
		require.NoError(t, held.Refresh(t.Context()))
		return child
	}
	first, second := answering(run, 1), answering(run, 1)
	below := answering(second, 2)
	for _, id := range []events.Run{first, second, below} {
		require.Equal(t, "ann", value(id))
	}

	f.append(first, nil, events.Control, &events.CancelledRun{})
	// The grandchild goes first: it could inherit nothing from a sibling that lost the values.
	require.Equal(t, "ann", value(below), "the end of one heir leaves the others alone")
	require.Equal(t, "ann", value(second))

	f.append(run, nil, events.Control, &events.CancelledRun{})
	for _, id := range []events.Run{run, first, second, below} {
		require.Nil(t, value(id))
	}
}
