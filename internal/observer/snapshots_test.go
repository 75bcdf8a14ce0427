package observer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// snapshotting runs a test in virtual time with an observer that takes snapshots.
func snapshotting(t *testing.T, every int, wrap func(ports.Snapshots) ports.Snapshots, test func(t *testing.T, b *workertest.Bench, stop func())) {
	t.Helper()
	hearing(t, every, func(f journal.Feed) journal.Feed { return f }, wrap, test)
}

// hearing is snapshotting with a feed of the test's.
func hearing(t *testing.T, every int, hear func(journal.Feed) journal.Feed, wrap func(ports.Snapshots) ports.Snapshots, test func(t *testing.T, b *workertest.Bench, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, simtest.Options{}, nil)
		p := b.Journal.NewProcess()
		o, err := observer.New(observer.Config{
			Base: worker.Base{Instance: "1", Store: b.NewStore(p), Queue: p, Feed: hear(p)}, Snapshots: wrap(p), SnapshotEvery: every,
		})
		require.NoError(t, err)
		test(t, b, b.Go(o.Run))
	})
}

func plain(s ports.Snapshots) ports.Snapshots { return s }

// loops has a run act so many times, three events each.
func loops(b *workertest.Bench, run events.Run, from, to int) {
	b.T.Helper()
	for i := from; i < to; i++ {
		id := fmt.Sprint("c", i)
		act(b, run, &events.LLMToolCall{ToolCallReply: reply(id)}, id)
	}
	synctest.Wait()
}

func TestSnapshotsAreTakenEveryNEvents(t *testing.T) {
	snapshotting(t, 10, plain, func(t *testing.T, b *workertest.Bench, _ func()) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = 0; c.MaxSteps = 100 })
		loops(b, run, 0, 2)
		_, err := b.Journal.Snapshot(t.Context(), run)
		require.ErrorIs(t, err, journal.ErrNotFound, "7 events")

		var taken []uint64
		for i := 2; i < 14; i++ {
			loops(b, run, i, i+1)
			if s, err := b.Journal.Snapshot(t.Context(), run); err == nil && (len(taken) == 0 || taken[len(taken)-1] != s.N) {
				taken = append(taken, s.N)
				mem := b.Machine.Initial(run.ID)
				for _, rec := range b.Records(run)[:s.N] {
					_, err := b.Machine.Apply(mem, rec.Subject, rec.Body)
					require.NoError(t, err)
					require.LessOrEqual(t, rec.Seq, s.Seq)
				}
				full, err := json.Marshal(mem)
				require.NoError(t, err)
				require.JSONEq(t, string(full), string(s.Memory))
			}
		}
		require.Len(t, taken, 4, "43 events")

		b.Append(run, events.Planning, &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "done"}})
		synctest.Wait()
		_, err = b.Journal.Snapshot(t.Context(), run)
		require.ErrorIs(t, err, journal.ErrNotFound, "the run has ended")
	})
}

func TestNoSnapshotsWithZero(t *testing.T) {
	snapshotting(t, 0, plain, func(t *testing.T, b *workertest.Bench, _ func()) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = 0; c.MaxSteps = 100 })
		loops(b, run, 0, 40)
		_, err := b.Journal.Snapshot(t.Context(), run)
		require.ErrorIs(t, err, journal.ErrNotFound)
	})
}

// stuck are snapshots whose store never answers.
type stuck struct {
	ports.Snapshots
	asked chan struct{}
}

func (s stuck) PutSnapshot(ctx context.Context, _ events.Run, _ ports.Snapshot) error {
	s.asked <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// A store of snapshots that hangs neither delays the run nor the shutdown, and
// more runs than may wait are dropped.
func TestSnapshotsDelayNothing(t *testing.T) {
	asked := make(chan struct{}, 1000)
	wrap := func(s ports.Snapshots) ports.Snapshots { return stuck{s, asked} }
	snapshotting(t, 3, wrap, func(t *testing.T, b *workertest.Bench, stop func()) {
		for range 300 {
			run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = 0 })
			loops(b, run, 0, 2)
			require.EqualValues(t, 7, b.Memory(run).N)
		}
		require.Len(t, asked, 1, "the first one hangs, the others wait")
		stop()
		require.Len(t, asked, 1, "what waits is dropped")
	})
}

// A fork counts its own events, however many its parent has.
func TestSnapshotsOfForks(t *testing.T) {
	snapshotting(t, 10, plain, func(t *testing.T, b *workertest.Bench, _ func()) {
		parent := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = 0; c.MaxSteps = 100 })
		loops(b, parent, 0, 33)
		fork := b.Store.Place(parent.Namespace, b.Store.NewID())
		at := b.Memory(parent)
		require.EqualValues(t, 100, at.N)
		base, err := runlog.FoldAt(t.Context(), b.Journal, b.Machine, parent, at.N)
		require.NoError(t, err)
		held := b.Store.Acquire(fork)
		held.Lock()
		held.Adopt(base)
		_, err = held.Commit(t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: events.Idle, Payload: &events.Forked{Run: parent.ID, At: at.N, Hash: at.Control.Head}}}, nil
		})
		held.Unlock()
		b.Store.Release(held)
		require.NoError(t, err)

		taken := map[uint64]bool{}
		for i := 33; i < 45; i++ {
			loops(b, fork, i, i+1)
			if s, err := b.Journal.Snapshot(t.Context(), fork); err == nil {
				taken[s.N] = true
			}
		}
		require.Len(t, taken, 3, "37 events")
	})
}

// A chat without tools never comes to Observing, and has snapshots all the same.
func TestSnapshotsOfChats(t *testing.T) {
	snapshotting(t, 10, plain, func(t *testing.T, b *workertest.Bench, _ func()) {
		start := reducertest.StartOf("hello", events.ModeChat)
		run := b.Start(start)
		taken := map[uint64]bool{}
		for i := range 20 {
			b.Append(run, events.Planning, &events.LLMMessageComplete{MessageID: fmt.Sprint("m", i), Reply: events.Reply{Content: "I do not know."}})
			synctest.Wait()
			if s, err := b.Journal.Snapshot(t.Context(), run); err == nil {
				taken[s.N] = true
			}
			b.Append(run, events.Control, &events.UserMessage{MessageID: fmt.Sprint("u", i), Content: "and then?"})
		}
		require.Equal(t, map[uint64]bool{10: true, 20: true, 30: true, 40: true}, taken)
	})
}

// deaf is a feed that does not hear of runs that end.
type deaf struct{ journal.Feed }

func (d deaf) Watch(filter journal.Filter, fn func(journal.Record), lost func()) (func(), error) {
	if reducer.DefaultTable().Terminal(filter.To) {
		return func() {}, nil
	}
	return d.Feed.Watch(filter, fn, lost)
}

// slow are snapshots that something happens before.
type slow struct {
	ports.Snapshots
	before func()
}

func (s *slow) PutSnapshot(ctx context.Context, run events.Run, snapshot ports.Snapshot) error {
	s.before()
	return s.Snapshots.PutSnapshot(ctx, run, snapshot)
}

// A snapshot that is stored when its run has ended does not stay, though whoever
// heard of the end found none.
func TestNoSnapshotOutlivesItsRun(t *testing.T) {
	store := &slow{}
	wrap := func(s ports.Snapshots) ports.Snapshots { store.Snapshots = s; return store }
	hearing(t, 10, func(f journal.Feed) journal.Feed { return deaf{f} }, wrap, func(t *testing.T, b *workertest.Bench, _ func()) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = 0; c.MaxSteps = 100 })
		put := 0
		store.before = func() {
			put++
			b.Append(run, events.Control, &events.CancelledRun{})
		}
		loops(b, run, 0, 4)
		require.Equal(t, 1, put)
		_, err := b.Journal.Snapshot(t.Context(), run)
		require.ErrorIs(t, err, journal.ErrNotFound)
	})
}
