package sim

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
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

// losesOne lets the bus lose one delivery of some runs. A run that loses another one with a run
// that it called, or with the re-drive that makes up for it, is re-driven.
func (w *world) losesOne(e *events.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost[e.Run] == "" && simtest.Chance(w.scenario.Seed, "lost delivery", e.Run, e.N) < 1/float64(w.scenario.LoseOneIn) {
		w.lost[e.Run] = e.ID
	}
	return w.lost[e.Run] == e.ID
}

// snapshots are the process's, each compared with the fold when it is taken.
func (p *process) snapshots() ports.Snapshots { return checked{p.sim, p.w.audit} }

type checked struct {
	ports.Snapshots
	audit *auditor
}

// PutSnapshot checks what it stores.
func (c checked) PutSnapshot(ctx context.Context, run events.Run, s ports.Snapshot) error {
	c.audit.snapshot(run.ID, s)
	return c.Snapshots.PutSnapshot(ctx, run, s)
}

func (a *auditor) snapshot(run string, s ports.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshots++
	fold, err := json.Marshal(a.past(run, s.N))
	if err != nil || !bytes.Equal(fold, s.Memory) {
		a.note(run, "snapshot", "at event %d the snapshot is not the fold (%v)", s.N, err)
	}
}
