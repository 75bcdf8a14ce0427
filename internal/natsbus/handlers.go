package natsbus

import (
	"sync"
	"sync/atomic"

	"github.com/moorebus/moorebus/pkg/journal"
)

// maxIdleHandlers is how many goroutines of one Consume wait for their next
// delivery: a burst of slow deliveries does not leave all of its goroutines behind.
const maxIdleHandlers = 64

// handlers run the handler of deliveries, each at once. A goroutine that is done
// takes the next delivery, so that its stack need not grow anew for each.
type handlers struct {
	handle   func(journal.Delivery)
	finished func()
	next     chan journal.Delivery
	idle     *atomic.Int64
	// working are the deliveries in work, living the goroutines.
	working, living *sync.WaitGroup
}

func newHandlers(handle func(journal.Delivery), finished func()) handlers {
	return handlers{
		handle: handle, finished: finished, next: make(chan journal.Delivery),
		idle: new(atomic.Int64), working: new(sync.WaitGroup), living: new(sync.WaitGroup),
	}
}

// start has the delivery handled. It does not block.
func (h *handlers) start(d journal.Delivery) {
	h.working.Add(1)
	select {
	case h.next <- d:
	default:
		h.living.Go(func() { h.run(d) })
	}
}

// run handles deliveries until enough others wait for one, or wait was called.
func (h *handlers) run(d journal.Delivery) {
	for more := true; more; {
		h.one(d)
		if h.idle.Add(1) <= maxIdleHandlers {
			d, more = <-h.next
		} else {
			more = false
		}
		h.idle.Add(-1)
	}
}

// one handles a delivery. The handler may end its goroutine.
func (h *handlers) one(d journal.Delivery) {
	defer h.working.Done()
	defer h.finished()
	h.handle(d)
}

// wait returns when every delivery was handled. Nothing may be started after it.
func (h *handlers) wait() {
	h.working.Wait()
	close(h.next)
	h.living.Wait()
}
