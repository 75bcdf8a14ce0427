package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal/simulated"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/worker"
	"github.com/moorebus/moorebus/pkg/worker/workertest"
)

// onLog runs a worker whose log calls a hook before each read.
func (r *rig) onLog(p *simulated.Process, h *hanging, onRead func(events.Run) error, change ...func(*worker.Config)) *workertest.Log {
	log := &workertest.Log{Log: p, OnRead: onRead}
	change = append(change, func(c *worker.Config) { c.Store = r.NewStore(log) })
	r.Go(r.worker(p, handlers{reducer.KindPlan: h}, change...).Run)
	return log
}

// A cancel that cannot be read at first is seen once the log is back, whether the
// feed named the run or said only that it lost something.
func TestCancelWhileTheLogIsAway(t *testing.T) {
	for name, lossy := range map[string]bool{"named by the feed": false, "lost by the feed": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h, feed := newHanging(), &lossyFeed{}
				var away atomic.Bool
				log := r.onLog(r.Journal.NewProcess(), h, func(events.Run) error {
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
				back := time.Now()
				require.ErrorIs(t, <-h.ended, context.Canceled)
				require.LessOrEqual(t, time.Since(back), 5*time.Second)
				synctest.Wait()
				after := log.Reads()
				settled()
				require.Equal(t, after, log.Reads(), "what was seen is not looked at again")
			})
		})
	}
}

// A run that nobody holds any more is not looked at.
func TestUnreadableRunIsGivenUpWhenItIsNotHeld(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		var away atomic.Bool
		log := r.onLog(r.Journal.NewProcess(), h, func(events.Run) error {
			if away.Load() {
				return errors.New("no leader")
			}
			return nil
		})
		run := r.start()
		<-h.began
		away.Store(true)
		r.Append(run, events.Control, &events.Resumed{})
		time.Sleep(time.Minute) // in the bubble
		away.Store(false)
		h.let <- worker.Done(answer("It is done."))
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		away.Store(true)
		settled()
		reads := log.Reads()
		settled()
		require.Equal(t, reads, log.Reads())
	})
}

// Slow reads of some runs do not hold up the cancel of another, and the reads at
// once are bounded.
func TestSlowReadDelaysNoOtherCancel(t *testing.T) {
	const bound = 8
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		var slow atomic.Pointer[events.Run]
		var under, most atomic.Int64
		release := make(chan struct{})
		var all atomic.Bool
		r.onLog(r.Journal.NewProcess(), h, func(run events.Run) error {
			if s := slow.Load(); all.Load() || s != nil && *s == run {
				most.Store(max(most.Load(), under.Add(1)))
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
		began := time.Now()
		r.Append(runs[1], events.Control, &events.CancelledRun{})
		require.ErrorIs(t, <-h.ended, context.Canceled)
		require.Zero(t, time.Since(began))

		all.Store(true)
		for _, run := range runs[2:] {
			r.Append(run, events.Control, &events.CancelledRun{})
		}
		synctest.Wait()
		require.EqualValues(t, bound, most.Load())
		close(release)
		for range len(runs) - 1 {
			require.ErrorIs(t, <-h.ended, context.Canceled)
		}
		require.LessOrEqual(t, most.Load(), int64(bound))
	})
}
