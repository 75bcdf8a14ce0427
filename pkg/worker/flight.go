package worker

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
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
