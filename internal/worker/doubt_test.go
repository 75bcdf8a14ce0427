package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// stalling is a log whose disk does not answer an append once it stalls, and then not the reads for
// that long.
type stalling struct {
	*workertest.Log
	stalls chan time.Duration
	until  atomic.Pointer[time.Time]
}

func (r *rig) stalling() *stalling {
	log := &stalling{Log: &workertest.Log{Log: r.Journal.NewProcess()}, stalls: make(chan time.Duration, 1)}
	log.OnRead = func(events.Run) error {
		if until := log.until.Load(); until != nil && time.Now().Before(*until) {
			return errors.New("the disk stalls")
		}
		return nil
	}
	return log
}

func (l *stalling) AppendThen(ctx context.Context, run events.Run, last uint64, then func(uint64), entries ...journal.Entry) (uint64, error) {
	seq, err := l.Append(ctx, run, last, entries...)
	if err != nil {
		return 0, err
	}
	then(seq)
	select {
	case stall := <-l.stalls:
		until := time.Now().Add(stall)
		l.until.Store(&until)
		return 0, journal.ErrUnknownOutcome
	default:
		return seq, nil
	}
}

// While nobody knows whether an append is on the disk, and the log cannot be read, what the run
// wants is still known: its other work goes on, and its delivery is not acknowledged.
func TestStalledDisk(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		log := r.stalling()
		p := log.Log.Log.(*simtest.Process)
		w := r.worker(p, handlers{
			effects.KindPlan: asking(batch(call("c", "beta"), call("d", "beta"))),
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(ctx context.Context) worker.Result {
					switch e.CallID {
					case "c":
						log.stalls <- time.Second
					case "d":
						retry.Wait(ctx, time.Minute)
					}
					return worker.Done(&events.ToolCallResult{ToolOutcome: *outcome(e.CallID)})
				}
			}),
			effects.KindJoin: blocked, effects.KindObserve: blocked,
		}, following, func(c *worker.Config) { c.Store = r.NewStore(log) })
		r.GoOn(p, w.Run)
		run, began := r.start(), time.Now()
		r.AwaitEnd(run)
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallResult", "ToolCallResult", "ToolSuccess", "Continue", "LlmFinalAnswer"}, r.Types(run))
		require.GreaterOrEqual(t, time.Since(began), time.Minute, "the other call was cancelled")
	})
}

// A delivery that found nothing left to do, because of what the disk may not have, comes again.
func TestNothingIsAcknowledgedBeforeTheDiskHasIt(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		log, begun, joins := r.stalling(), make(chan struct{}), make(chan struct{}, 9)
		p := log.Log.Log.(*simtest.Process)
		var out strings.Builder
		w := r.worker(p, handlers{effects.KindPlan: blocked}, following, func(c *worker.Config) {
			c.Store, c.Logger = r.NewStore(log), slog.New(slog.NewTextHandler(&out, nil))
			c.Arrived = func(events.Run, *reducer.Memory) func(context.Context) error {
				return func(context.Context) error { joins <- struct{}{}; <-begun; return nil }
			}
		})
		stop := r.GoOn(p, w.Run)
		run := r.start()
		<-joins
		err := w.Do(t.Context(), run, "plan/1", r.Events(run)[0].ID, work(func(context.Context) worker.Result {
			close(begun)
			time.Sleep(time.Second) // in the bubble: the delivery joins
			log.stalls <- 2 * worker.Outage.Budget
			return worker.Done(answer("It is done."))
		}))
		require.Error(t, err)
		settled()
		stop()
		require.Contains(t, out.String(), "may not be on the disk")
		require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run))
	})
}
