package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// flight is an effect that runs in this process. Its context ends when the run
// no longer wants it.
type flight struct {
	run    events.Run
	key    string
	ctx    context.Context
	cancel context.CancelFunc
	// done is closed at the end; nil while nobody waits for it.
	done chan struct{}
	// delay is when the work is to be tried again, set before done is closed.
	delay time.Duration
	// lending says that the effect is lent now. It is guarded by flights.mu.
	lending bool
}

// flights are the effects that run in this process, by key. An effect that
// ended is gone from here before another one may begin under its key, so a
// cancelled one never removes its successor.
type flights struct {
	mu    sync.Mutex
	byRun map[events.Run][]*flight
}

// begin registers a flight, or returns the one that has the key already, whose done
// is set then.
func (fs *flights) begin(ctx context.Context, run events.Run, key string) (f *flight, mine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	flying := fs.byRun[run]
	for _, f := range flying {
		if f.key == key {
			if f.done == nil {
				f.done = make(chan struct{})
			}
			return f, false
		}
	}
	f = &flight{run: run, key: key}
	f.ctx, f.cancel = context.WithCancel(ctx)
	fs.byRun[run] = append(flying, f)
	return f, true
}

// setLending notes whether f's effect is lent now.
func (fs *flights) setLending(f *flight, lending bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.lending = lending
}

// lends reports whether f's effect is lent now.
func (fs *flights) lends(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.lending
}

// has reports whether one of the effects is in flight here.
func (fs *flights) has(run events.Run, effects []reducer.Effect) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.ContainsFunc(fs.byRun[run], func(f *flight) bool {
		return slices.ContainsFunc(effects, func(e reducer.Effect) bool { return e.Key == f.key })
	})
}

// cancelPatience is how long an effect waits for the run's cancelled ones to end.
const cancelPatience = time.Second

// awaitCancelled waits until the run's flights that were cancelled have ended, so that
// f finds in the log what they leave there. One that does not notice is not waited for
// for long.
func (fs *flights) awaitCancelled(ctx context.Context, f *flight) {
	var patience <-chan time.Time
	for _, done := range fs.cancelled(f) {
		if patience == nil {
			patience = time.After(cancelPatience)
		}
		select {
		case <-done:
		case <-patience:
			return
		case <-ctx.Done():
			return
		}
	}
}

// cancelled returns what is closed at the end of the other flights of f's run that
// were cancelled.
func (fs *flights) cancelled(f *flight) []<-chan struct{} {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var ends []<-chan struct{}
	for _, other := range fs.byRun[f.run] {
		if other == f || other.ctx.Err() == nil {
			continue
		}
		if other.done == nil {
			other.done = make(chan struct{})
		}
		ends = append(ends, other.done)
	}
	return ends
}

func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	flying := fs.byRun[f.run]
	if len(flying) == 1 {
		delete(fs.byRun, f.run)
	} else {
		fs.byRun[f.run] = slices.DeleteFunc(flying, func(other *flight) bool { return other == f })
	}
	done := f.done
	fs.mu.Unlock()
	f.cancel()
	if done != nil {
		close(done)
	}
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
	for _, f := range flying {
		if _, wanted := run.Effect(f.key); !wanted {
			f.cancel()
		}
	}
}

// keys returns what flies, as `<run> <key>`.
func (fs *flights) keys() []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var keys []string
	for run, flying := range fs.byRun {
		for _, f := range flying {
			keys = append(keys, run.ID+" "+f.key)
		}
	}
	return keys
}
