package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// effect is an effect in flight in this process. Its context ends when the run no longer
// wants it.
type effect struct {
	run    events.Run
	key    string
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done is closed at the end; nil while nothing waits for it.
	done chan struct{}
	// delay is when the work is to be tried again, set before done is closed.
	delay time.Duration
	// lending says that the effect is lent now. It is guarded by inFlight.mu.
	lending bool
}

// ErrUnwanted is the cause of the end of an effect's context if the run no longer wants the effect,
// and nobody will. A process that ends has another cause.
var ErrUnwanted = fmt.Errorf("the run no longer wants it: %w", context.Canceled)

// inFlight are the effects in flight in this process, by key. An effect that ended is
// removed before another one may begin under its key, so a cancelled effect never removes
// its successor.
type inFlight struct {
	mu    sync.Mutex
	byRun map[events.Run][]*effect
}

// register adds an effect, or returns the one that has the key already, with done set.
func (fs *inFlight) register(ctx context.Context, run events.Run, key string) (f *effect, mine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	ofRun := fs.byRun[run]
	for _, f := range ofRun {
		if f.key == key {
			f.awaited()
			return f, false
		}
	}
	f = &effect{run: run, key: key}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	fs.byRun[run] = append(ofRun, f)
	return f, true
}

// awaited returns a channel that is closed at the effect's end. The lock of inFlight is held.
func (f *effect) awaited() <-chan struct{} {
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f.done
}

// setLending notes whether f's effect is lent now.
func (fs *inFlight) setLending(f *effect, lending bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.lending = lending
}

// isLent reports whether f's effect is lent now.
func (fs *inFlight) isLent(f *effect) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.lending
}

// hasAny reports whether one of the effects is in flight here.
func (fs *inFlight) hasAny(run events.Run, work []effects.Effect) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.ContainsFunc(fs.byRun[run], func(f *effect) bool {
		return slices.ContainsFunc(work, func(e effects.Effect) bool { return e.Key == f.key })
	})
}

// cancelPatience is how long an effect waits for the run's cancelled ones to end.
const cancelPatience = time.Second

// awaitCancelled waits until the run's cancelled effects have ended, so that f finds in the
// log what they leave there. It waits for cancelPatience at most.
func (fs *inFlight) awaitCancelled(ctx context.Context, f *effect) {
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

// cancelled returns the channels that are closed at the end of the cancelled effects of f's
// run.
func (fs *inFlight) cancelled(f *effect) []<-chan struct{} {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var ends []<-chan struct{}
	for _, other := range fs.byRun[f.run] {
		if other == f || other.ctx.Err() == nil {
			continue
		}
		ends = append(ends, other.awaited())
	}
	return ends
}

func (fs *inFlight) remove(f *effect) {
	fs.mu.Lock()
	ofRun := fs.byRun[f.run]
	if len(ofRun) == 1 {
		delete(fs.byRun, f.run)
	} else {
		fs.byRun[f.run] = slices.DeleteFunc(ofRun, func(other *effect) bool { return other == f })
	}
	done := f.done
	fs.mu.Unlock()
	f.cancel(nil)
	if done != nil {
		close(done)
	}
}

// cancelUnwanted cancels the effects that the run no longer wants. The caller holds the
// run's lock.
func (fs *inFlight) cancelUnwanted(run *runlog.Run) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	ofRun := fs.byRun[run.ID]
	if len(ofRun) == 0 {
		return
	}
	for _, f := range ofRun {
		if _, wanted := run.Effect(f.key); !wanted {
			f.cancel(ErrUnwanted)
		}
	}
}

// keys returns what is in flight, as `<run> <key>`.
func (fs *inFlight) keys() []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var keys []string
	for run, ofRun := range fs.byRun {
		for _, f := range ofRun {
			keys = append(keys, run.ID+" "+f.key)
		}
	}
	return keys
}

// extender extends every delivery of one inbox that is in work. It asks for the ack wait
// when the first delivery comes: before that the inbox may not exist.
type extender struct {
	ctx     context.Context
	cancel  context.CancelFunc
	ackWait func(context.Context) time.Duration

	mu         sync.Mutex
	deliveries map[journal.Delivery]struct{}
	started    bool
	running    sync.WaitGroup
}

func newExtender(ctx context.Context, ackWait func(context.Context) time.Duration) *extender {
	ctx, cancel := context.WithCancel(ctx)
	return &extender{ctx: ctx, cancel: cancel, ackWait: ackWait, deliveries: map[journal.Delivery]struct{}{}}
}

func (x *extender) add(d journal.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deliveries[d] = struct{}{}
	if !x.started {
		x.started = true
		x.running.Go(x.run)
	}
}

func (x *extender) remove(d journal.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.deliveries, d)
}

// run extends until stop is called.
func (x *extender) run() {
	timer := time.NewTimer(x.interval())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			x.extend()
			timer.Reset(x.interval())
		case <-x.ctx.Done():
			return
		}
	}
}

// maxInterval bounds how long a change of the ack wait may go unseen.
const maxInterval = 5 * time.Second

// interval is the time to the next extension: a third of the ack wait, which is asked for
// each time since it can change.
func (x *extender) interval() time.Duration {
	return min(max(x.ackWait(x.ctx)/3, time.Millisecond), maxInterval)
}

// stop ends the extensions, also of deliveries that are added later.
func (x *extender) stop() {
	x.cancel()
	x.mu.Lock()
	x.started = true
	x.mu.Unlock()
	x.running.Wait()
}

func (x *extender) extend() {
	x.mu.Lock()
	held := make([]journal.Delivery, 0, len(x.deliveries))
	for d := range x.deliveries {
		held = append(held, d)
	}
	x.mu.Unlock()
	for _, d := range held {
		_ = d.Extend() // if the bus is away, it comes again by itself
	}
}
