package worker

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// flight is an effect that runs in this process. Its context ends when the run
// no longer wants it.
type flight struct {
	run    events.Run
	key    string
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// delay is when the work is to be tried again, set before done is closed.
	delay time.Duration
}

// flights are the effects that run in this process, by key. An effect that
// ended is gone from here before another one may begin under its key, so a
// cancelled one never removes its successor.
type flights struct {
	mu    sync.Mutex
	byRun map[events.Run]map[string]*flight
}

// begin registers a flight, or returns the one that has the key already.
func (fs *flights) begin(ctx context.Context, run events.Run, key string) (f *flight, mine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, runs := fs.byRun[run][key]; runs {
		return f, false
	}
	f = &flight{run: run, key: key, done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(ctx)
	if fs.byRun[run] == nil {
		fs.byRun[run] = map[string]*flight{}
	}
	fs.byRun[run][key] = f
	return f, true
}

func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	delete(fs.byRun[f.run], f.key)
	if len(fs.byRun[f.run]) == 0 {
		delete(fs.byRun, f.run)
	}
	fs.mu.Unlock()
	f.cancel()
	close(f.done)
}

// reconcile cancels the flights that the run does not want any more. The run
// is locked by the caller.
func (fs *flights) reconcile(run *runlog.Run) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	flying := fs.byRun[run.ID]
	if len(flying) == 0 {
		return
	}
	for key, f := range flying {
		if _, wanted := run.Effect(key); !wanted {
			f.cancel()
		}
	}
}

// watchControl follows the control events of runs in flight, so that what they
// make obsolete is cancelled at once rather than when its outcome is refused.
func (w *Worker) watchControl(ctx context.Context) (stop func(), err error) {
	records := make(chan journal.Record, 1024)
	all := make(chan struct{}, 1)
	lost := func() {
		select {
		case all <- struct{}{}:
		default:
		}
	}
	unwatch, err := w.cfg.Feed.Watch(journal.Filter{From: events.Control}, func(rec journal.Record) {
		select {
		case records <- rec:
		default:
			lost() // too many at once: look at every run instead
		}
	}, lost)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var finished sync.WaitGroup
	finished.Go(func() {
		for {
			select {
			case rec := <-records:
				if s, err := events.ParseSubject(rec.Subject); err == nil {
					w.observe(ctx, s.Run, &rec)
				}
			case <-all:
				for _, run := range w.cfg.Store.HeldRuns() {
					w.observe(ctx, run, nil)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { unwatch(); cancel(); finished.Wait() }, nil
}

// observe brings a run in flight to a record, or to the log's head, and cancels
// what it does not want any more. A run that is held without a flight is about
// to begin one, which then does not begin.
func (w *Worker) observe(ctx context.Context, id events.Run, rec *journal.Record) {
	run := w.cfg.Store.Held(id)
	if run == nil {
		return
	}
	defer w.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	var err error
	if rec != nil {
		_, err = run.Extend(ctx, *rec)
	} else {
		err = run.Refresh(ctx)
	}
	if err != nil {
		w.cfg.Logger.Warn("a control event is seen later", "run", id.ID, "reason", err)
		return
	}
	w.flights.reconcile(run)
}
