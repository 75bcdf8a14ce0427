package agent

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
)

// maxBehind is how many outputs may wait for a callback before tokens are left out.
const maxBehind = 4096

// outputs takes outputs to a callback, in a goroutine of its own.
type outputs struct {
	fn     func(Output)
	logger *slog.Logger
	wake   chan struct{}
	// quit makes the goroutine end at once.
	quit    chan struct{}
	endOnce sync.Once

	mu    sync.Mutex
	queue []Output
	// busy says that the callback is being called, empty is closed and replaced when
	// it has seen all.
	busy  bool
	empty chan struct{}
}

func newOutputs(fn func(Output), logger *slog.Logger) *outputs {
	o := &outputs{fn: fn, logger: logger, wake: make(chan struct{}, 1), quit: make(chan struct{}), empty: make(chan struct{})}
	go o.run()
	return o
}

// push never blocks. The log's outputs wait as long as they must.
func (o *outputs) push(out Output) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxBehind {
		switch out.(type) {
		case LLMToken, ToolCallDelta:
			return
		}
	}
	o.queue = append(o.queue, out)
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outputs) run() {
	defer o.end() // the callback may end its goroutine
	muted := false
	for {
		select {
		case <-o.wake:
		case <-o.quit:
			return
		}
		for {
			batch := o.take()
			if len(batch) == 0 {
				break
			}
			for _, out := range batch {
				select {
				case <-o.quit:
					return
				default:
				}
				muted = muted || o.call(out)
			}
		}
	}
}

// take empties the queue, and says so if nothing is in it.
func (o *outputs) take() []Output {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.queue
	o.queue, o.busy = nil, len(batch) > 0
	if !o.busy {
		close(o.empty)
		o.empty = make(chan struct{})
	}
	return batch
}

// call calls the callback and reports whether it panicked.
func (o *outputs) call(out Output) (panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			o.logger.Error("the output callback panicked; the run's further outputs are dropped", "panic", p, "stack", string(debug.Stack()))
			panicked = true
		}
	}()
	o.fn(out)
	return false
}

// wait waits until the callback has seen everything that was pushed before pushed
// was closed. The error is the context's.
func (o *outputs) wait(ctx context.Context, pushed <-chan struct{}) error {
	select {
	case <-pushed:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		o.mu.Lock()
		done, empty := len(o.queue) == 0 && !o.busy, o.empty
		o.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-empty:
		case <-o.quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// end lets go of the callback: it sees no more, but for the output that it is
// busy with.
func (o *outputs) end() { o.endOnce.Do(func() { close(o.quit) }) }
