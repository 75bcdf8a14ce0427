package observer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/simulated"
	"github.com/moorebus/moorebus/pkg/observer"
	"github.com/moorebus/moorebus/pkg/worker/workertest"
)

// snapshotting runs a test in virtual time with an observer that takes snapshots.
func snapshotting(t *testing.T, every int, wrap func(journal.Snapshots) journal.Snapshots, test func(t *testing.T, b *workertest.Bench, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, simulated.Options{}, nil)
		p := b.Journal.NewProcess()
		o, err := observer.New(observer.Config{
			Instance: "1", Store: b.NewStore(p), Queue: p, Feed: p, Snapshots: wrap(p), SnapshotEvery: every,
		})
		require.NoError(t, err)
		test(t, b, b.Go(o.Run))
	})
}

func plain(s journal.Snapshots) journal.Snapshots { return s }

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
	journal.Snapshots
	asked chan struct{}
}

func (s stuck) PutSnapshot(ctx context.Context, _ events.Run, _ journal.Snapshot) error {
	s.asked <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// A store of snapshots that hangs neither delays the run nor the shutdown, and
// more runs than may wait are dropped.
func TestSnapshotsDelayNothing(t *testing.T) {
	asked := make(chan struct{}, 1000)
	wrap := func(s journal.Snapshots) journal.Snapshots { return stuck{s, asked} }
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
