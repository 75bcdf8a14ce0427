package worker

import (
	"context"
	"maps"
	"slices"
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

// maxHints is how many runs may wait to be looked at by name.
const maxHints = 1024

// hints are the runs that the feed says have control events. They are looked at
// in the log, since the feed can be forged.
type hints struct {
	wake chan struct{}

	mu   sync.Mutex
	runs map[events.Run]struct{}
	all  bool
}

// add notes a run; one that waits already is looked at once.
func (h *hints) add(run events.Run) {
	h.mu.Lock()
	if len(h.runs) < maxHints {
		h.runs[run] = struct{}{}
	} else {
		h.all = true
	}
	h.mu.Unlock()
	h.signal()
}

// addAll notes that any run may have control events.
func (h *hints) addAll() {
	h.mu.Lock()
	h.all = true
	h.mu.Unlock()
	h.signal()
}

func (h *hints) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// take returns the runs to look at, of those that are held.
func (h *hints) take(held func() []events.Run) []events.Run {
	h.mu.Lock()
	runs, all := slices.Collect(maps.Keys(h.runs)), h.all
	clear(h.runs)
	h.all = false
	h.mu.Unlock()
	if all {
		return held()
	}
	return runs
}

// watchControl follows the control events of runs in flight, so that what they
// make obsolete is cancelled at once rather than when its outcome is refused.
func (w *Worker) watchControl(ctx context.Context) (stop func(), err error) {
	h := &hints{wake: make(chan struct{}, 1), runs: map[events.Run]struct{}{}}
	unwatch, err := w.cfg.Feed.Watch(journal.Filter{From: events.Control}, func(rec journal.Record) {
		if s, err := events.ParseSubject(rec.Subject); err == nil {
			h.add(s.Run)
		}
	}, h.addAll)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var finished sync.WaitGroup
	finished.Go(func() {
		for {
			select {
			case <-h.wake:
				for _, run := range h.take(w.cfg.Store.HeldRuns) {
					w.observe(ctx, run)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { unwatch(); cancel(); finished.Wait() }, nil
}

// observe brings a run in flight to the log's head, and cancels what it does not
// want any more. A run that is held without a flight is about to begin one, which
// then does not begin.
func (w *Worker) observe(ctx context.Context, id events.Run) {
	run := w.cfg.Store.Held(id)
	if run == nil {
		return
	}
	defer w.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		w.cfg.Logger.Warn("a control event is seen later", "run", id.ID, "reason", err)
		return
	}
	w.flights.reconcile(run)
}
