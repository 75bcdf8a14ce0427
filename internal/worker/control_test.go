package worker_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// reading runs a worker whose log calls a hook before each read.
func (r *rig) reading(h *hanging, onRead func(events.Run) error, change ...func(*worker.Config)) *workertest.Log {
	p := r.Journal.NewProcess()
	log := &workertest.Log{Log: p, OnRead: onRead}
	change = append(change, func(c *worker.Config) { c.Store = r.NewStore(log) })
	r.Go(r.worker(p, handlers{effects.KindPlan: h}, change...).Run)
	return log
}

// cancelledWithin waits for the next work to be cancelled.
func (h *hanging) cancelledWithin(t *testing.T, d time.Duration) {
	t.Helper()
	synctest.Wait()
	time.Sleep(d) // in the bubble
	synctest.Wait()
	select {
	case err := <-h.ended:
		require.ErrorIs(t, err, context.Canceled)
	default:
		require.FailNow(t, "the work goes on")
	}
}

// A cancel that cannot be read at first is seen once the log is back, whether the
// feed named the run or said only that it lost something.
func TestCancelWhileTheLogIsAway(t *testing.T) {
	for name, lossy := range map[string]bool{"named by the feed": false, "lost by the feed": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h, feed := newHanging(), &lossyFeed{}
				var away atomic.Bool
				log := r.reading(h, func(events.Run) error {
					if away.Load() {
						return errors.New("no leader")
					}
					return nil
				}, func(c *worker.Config) {
					if lossy {
						c.Feed = feed
					}
				})
				run := r.start()
				<-h.began
				away.Store(true)
				before := log.Reads()
				r.Append(run, events.Control, &events.CancelledRun{})
				if lossy {
					synctest.Wait()
					feed.lost()
				}
				time.Sleep(5 * time.Second) // in the bubble
				require.Empty(t, h.ended)
				require.LessOrEqual(t, log.Reads()-before, 5, "ever later")
				away.Store(false)
				h.cancelledWithin(t, 5*time.Second)
				synctest.Wait()
				after := log.Reads()
				settled()
				require.Equal(t, after, log.Reads(), "what was seen is not looked at again")
			})
		})
	}
}

// staleLog is a log of which a read, once it is slow, yields what stood there before it
// was let go.
type staleLog struct {
	journal.Log
	slow  atomic.Bool
	began chan struct{}
	let   chan struct{}
}

func (l *staleLog) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		var found []journal.Record
		for rec, err := range l.Log.Read(ctx, run, after) {
			if err != nil {
				yield(rec, err)
				return
			}
			found = append(found, rec)
		}
		if l.slow.Load() {
			l.began <- struct{}{}
			<-l.let
		}
		for _, rec := range found {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// A run that is announced during its read is read once more, since the read may have
// missed the event.
func TestRunThatIsAnnouncedDuringItsRead(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, feed := newHanging(), &lossyFeed{}
		p := r.Journal.NewProcess()
		log := &staleLog{Log: p, began: make(chan struct{}, 10), let: make(chan struct{})}
		r.Go(r.worker(p, handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Store, c.Feed = r.NewStore(log), feed }).Run)
		run := r.start()
		<-h.began
		log.slow.Store(true)
		feed.lost()
		<-log.began
		r.Append(run, events.Control, &events.CancelledRun{})
		feed.lost()
		feed.lost()
		synctest.Wait()
		require.Empty(t, log.began, "one read at a time")
		log.let <- struct{}{}
		synctest.Wait()
		require.Len(t, log.began, 1, "and then another one")
		<-log.began
		log.let <- struct{}{}
		h.cancelledWithin(t, 0)
		require.Empty(t, log.began, "twice is enough")
	})
}

// Slow reads of some runs do not delay the cancel of another. The reads at once are bounded,
// and a run that waits for one is read once, however often it is announced.
func TestSlowReadDelaysNoOtherCancel(t *testing.T) {
	const bound = 8
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		var slow atomic.Pointer[events.Run]
		var under, most, reads atomic.Int64
		var counting sync.Mutex
		release := make(chan struct{})
		letGo := sync.OnceFunc(func() { close(release) })
		defer letGo()
		var all atomic.Bool
		r.reading(h, func(run events.Run) error {
			if s := slow.Load(); all.Load() || s != nil && *s == run {
				reads.Add(1)
				counting.Lock()
				most.Store(max(most.Load(), under.Add(1)))
				counting.Unlock()
				<-release
				under.Add(-1)
			}
			return nil
		})
		var runs []events.Run
		for range 3 * bound {
			runs = append(runs, r.start())
			<-h.began
		}
		slow.Store(&runs[0])
		r.Append(runs[0], events.Control, &events.CancelledRun{})
		synctest.Wait()
		r.Append(runs[1], events.Control, &events.CancelledRun{})
		h.cancelledWithin(t, 0)

		all.Store(true)
		for _, p := range []events.Payload{&events.Paused{}, &events.CancelledRun{}} {
			for _, run := range runs[2:] {
				r.Append(run, events.Control, p)
			}
			synctest.Wait()
		}
		before := reads.Load()
		require.EqualValues(t, bound, most.Load())
		letGo()
		for range len(runs) - 1 {
			h.cancelledWithin(t, time.Second)
		}
		require.LessOrEqual(t, most.Load(), int64(bound))
		synctest.Wait()
		// The runs that wait are read once. The others are read once more if they are
		// still held then.
		require.LessOrEqual(t, reads.Load()-before, int64(len(runs)-2))
	})
}
