package simtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Consume hands the inbox's deliveries to handle until ctx ends, each in a
// goroutine of its own and at most slots at once. If the process dies it returns
// [ErrCrashed] at once.
func (p *Process) Consume(ctx context.Context, in journal.Inbox, slots int, handle func(journal.Delivery)) error {
	if err := checkInbox(in); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	if slots < 1 {
		return fmt.Errorf("consume: %d slots: at least one is needed", slots)
	}
	return p.consume(ctx, p.j.open(in), slots, func(d *delivery) { handle(d) })
}

// consume hands what is due in the inboxes to handle.
func (p *Process) consume(ctx context.Context, inboxes []*inbox, slots int, handle func(*delivery)) error {
	free := make(chan struct{}, slots)
	for range slots {
		free <- struct{}{}
	}
	var handlers sync.WaitGroup
	for {
		select {
		case <-p.dead:
			return ErrCrashed
		case <-ctx.Done():
			return p.await(&handlers)
		case <-free:
		}
		d := p.next(ctx, inboxes)
		if d == nil {
			continue // The context ended or the process died: the select says which.
		}
		handlers.Go(func() {
			defer func() { free <- struct{}{} }()
			handle(d)
		})
	}
}

// await waits for the handlers of a process that ends as it should.
func (p *Process) await(handlers *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		handlers.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-p.dead:
		return ErrCrashed
	}
}

// next waits for an item that is due. It returns nil when the context ended or
// the process died.
func (p *Process) next(ctx context.Context, inboxes []*inbox) *delivery {
	for ctx.Err() == nil && p.alive() == nil {
		d, at, changed := p.take(inboxes)
		if d != nil {
			return d
		}
		p.wait(ctx, at, changed)
	}
	return nil
}

// take looks through the inboxes. If nothing is due, it returns when to look again
// (zero: when something changes), and what is closed when something changes.
func (p *Process) take(inboxes []*inbox) (d *delivery, at time.Time, changed <-chan struct{}) {
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	for _, in := range inboxes {
		it, next := in.next(p.j.opts)
		if it != nil {
			return &delivery{p: p, in: in, it: it, rec: it.rec, attempt: it.attempt}, at, nil
		}
		if !next.IsZero() && (at.IsZero() || next.Before(at)) {
			at = next
		}
	}
	return nil, at, p.j.changed.channel
}

// wait returns when something is due or changed.
func (p *Process) wait(ctx context.Context, at time.Time, changed <-chan struct{}) {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-changed:
	case <-due:
	case <-p.dead:
	case <-ctx.Done():
	}
}

// Limited reports that nobody has bounded the calls.
func (p *Process) Limited(context.Context, string) (bool, error) { return false, nil }

// AckWait returns how long a delivery may go without Extend.
func (p *Process) AckWait(_ context.Context, in journal.Inbox) (time.Duration, error) {
	if err := checkInbox(in); err != nil {
		return 0, fmt.Errorf("ack wait: %w", err)
	}
	return p.j.opts.AckWait, p.alive()
}

// Undelivered reports whether a record was never handed out.
func (p *Process) Undelivered(_ context.Context, in journal.Inbox, shard int, seq uint64) (bool, error) {
	if err := checkInbox(in); err != nil {
		return false, fmt.Errorf("undelivered: %w", err)
	}
	inboxes := split(in)
	if len(inboxes) != 1 || shard < 0 || shard >= p.j.Shards() {
		return false, fmt.Errorf("undelivered: record %d of shard %d in %d inboxes: want one of each", seq, shard, len(inboxes))
	}
	if err := p.alive(); err != nil {
		return false, err
	}
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	known := p.j.inboxes[inboxes[0].key]
	return known == nil || known.undelivered(shard, seq), nil
}

// delivery is an item in a worker's hands.
type delivery struct {
	p        *Process
	in       *inbox
	it       *item
	rec      journal.Record
	attempt  int
	finished atomic.Bool
}

// Record returns the record that was delivered.
func (d *delivery) Record() journal.Record { return d.rec }

// Attempt counts the times that it was delivered, from 1.
func (d *delivery) Attempt() int { return d.attempt }

// Ack finishes the delivery.
func (d *delivery) Ack() error {
	at := d.moment()
	if err := d.p.crash(at); err != nil {
		return err
	}
	if d.finished.Swap(true) {
		return nil
	}
	o := d.p.j.opts
	if !o.happens(o.Faults.LoseAck, "ack", d.in.key, d.it.run, d.it.nth, d.attempt) {
		d.finish()
	}
	at.Point = AfterAck
	return d.p.crash(at)
}

// moment is where the delivery is about to get its verdict.
func (d *delivery) moment() Moment {
	if t := d.it.timer; t != nil {
		return Moment{Point: BeforeAck, Run: t.Run, Nth: d.it.nth, Attempt: d.attempt}
	}
	subject, _ := events.ParseSubject(d.rec.Subject) // a message of no run has none
	return Moment{Point: BeforeAck, Run: subject.Run, Nth: d.it.nth, Attempt: d.attempt, Record: d.rec}
}

func (d *delivery) finish() {
	d.p.j.mu.Lock()
	defer d.p.j.mu.Unlock()
	if last := d.in.finish(d.it); last && d.it.timer == nil && d.p.j.opts.Observer != nil {
		d.p.j.opts.Observer.Finished(d.rec)
	}
}

// Retry gives the delivery back, to come again after the delay.
func (d *delivery) Retry(delay time.Duration) error {
	at := d.moment()
	if err := d.p.crash(at); err != nil {
		return err
	}
	if !d.finished.Swap(true) {
		d.deliverAgain(max(delay, 0))
	}
	at.Point = AfterAck
	return d.p.crash(at)
}

// Extend starts the ack wait again.
func (d *delivery) Extend() error {
	if err := d.p.alive(); err != nil {
		return err
	}
	if !d.finished.Load() {
		d.deliverAgain(d.p.j.opts.AckWait)
	}
	return nil
}

func (d *delivery) deliverAgain(by time.Duration) {
	d.p.j.mu.Lock()
	defer d.p.j.mu.Unlock()
	d.in.deliverAgain(d.it, time.Now().Add(by))
}
