package worker

import (
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

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
