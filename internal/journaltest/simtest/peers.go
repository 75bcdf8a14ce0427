package simtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// takeFunc does the work of a loan.
type takeFunc func(journal.Delivery, ports.Loan) (time.Duration, error)

// offer is a name that a process offers to do work under.
type offer struct {
	p    *Process
	take takeFunc
}

// Borrow offers a name in a pool.
func (p *Process) Borrow(pool, name string, take func(journal.Delivery, ports.Loan) (time.Duration, error)) (stop func(), err error) {
	if err := p.alive(); err != nil {
		return nil, err
	}
	key, o := pool+" "+name, &offer{p, take}
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	p.j.offers[key] = append(p.j.offers[key], o)
	return sync.OnceFunc(func() {
		p.j.mu.Lock()
		defer p.j.mu.Unlock()
		p.j.offers[key] = without(p.j.offers[key], o)
	}), nil
}

func without(all []*offer, one *offer) []*offer {
	var rest []*offer
	for _, o := range all {
		if o != one {
			rest = append(rest, o)
		}
	}
	return rest
}

// borrower is who gets a loan, by the seed, the process itself included; nil for nobody.
func (p *Process) borrower(l ports.Loan, run events.Run, attempt int) *offer {
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	var alive []*offer
	for _, o := range p.j.offers[l.Pool+" "+l.Name] {
		if o.p.alive() == nil {
			alive = append(alive, o)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	return alive[int(p.j.opts.chance("borrower", run.ID, l.Key, attempt)*float64(len(alive)))]
}

// Lend asks one of the processes that offer the loan's name to do the work.
func (p *Process) Lend(ctx context.Context, d journal.Delivery, l ports.Loan) (time.Duration, error) {
	held, ok := d.(*delivery)
	if !ok {
		return 0, fmt.Errorf("lend %s: %w: the delivery is itself borrowed", l.Name, ports.ErrNoPeer)
	}
	if err := p.alive(); err != nil {
		return 0, err
	}
	o := p.borrower(l, held.moment().Run, held.attempt)
	if o == nil {
		return 0, fmt.Errorf("lend %s: %w", l.Name, ports.ErrNoPeer)
	}
	type end struct {
		retry time.Duration
		err   error
	}
	ended := make(chan end, 1)
	go func() {
		retry, err := o.serve(held, l)
		ended <- end{retry, err}
	}()
	dead := o.p.dead
	for lost := (<-chan time.Time)(nil); ; {
		select {
		case e := <-ended:
			if o.p.alive() == nil {
				return e.retry, e.err
			}
			ended = nil // what a dead process says is not heard
		case <-dead:
			dead, lost = nil, time.After(p.j.opts.AckWait)
		case <-lost:
			return 0, fmt.Errorf("lend %s: %w", l.Name, ports.ErrPeerLost)
		case <-p.dead:
			return 0, ErrCrashed
		case <-ctx.Done():
			return 0, fmt.Errorf("lend %s: %w: %w", l.Name, ports.ErrPeerHolds, context.Cause(ctx))
		}
	}
}

// serve does the work in the borrower's name, and extends the delivery meanwhile.
func (o *offer) serve(held *delivery, l ports.Loan) (time.Duration, error) {
	b := &borrowed{delivery{p: o.p, in: held.in, it: held.it, attempt: held.attempt, rec: journal.Record{Subject: held.rec.Subject, Seq: held.rec.Seq}}}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		rhythm := time.NewTicker(o.p.j.opts.AckWait / 4)
		defer rhythm.Stop()
		for {
			select {
			case <-rhythm.C:
				_ = b.Extend() // fails when the process is dead
			case <-stop:
				return
			}
		}
	}()
	return o.take(b, l)
}

// borrowed is a delivery that another process holds.
type borrowed struct{ delivery }

// Ack does nothing: the lender finishes the delivery.
func (d *borrowed) Ack() error { return nil }

// Retry does nothing.
func (d *borrowed) Retry(time.Duration) error { return nil }
