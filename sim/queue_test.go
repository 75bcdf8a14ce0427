package sim

import (
	"context"

	"github.com/moorebus/moorebus/pkg/journal"
)

// queue is the process's connection to a bus that may lose deliveries for good,
// as no bus should.
func (p *process) queue() journal.Queue {
	if p.w.loses == nil {
		return p.sim
	}
	return losing{p.sim, p.w}
}

type losing struct {
	journal.Queue
	w *world
}

// Consume hands on what is not lost.
func (l losing) Consume(ctx context.Context, in journal.Inbox, slots int, handle func(journal.Delivery)) error {
	return l.Queue.Consume(ctx, in, slots, func(d journal.Delivery) {
		e, err := l.w.audit.machine.Codec().Decode(d.Record().Body)
		if err != nil || !l.w.loses(e) {
			handle(d)
			return
		}
		l.w.audit.Lost(d.Record())
		_ = d.Ack()
	})
}
