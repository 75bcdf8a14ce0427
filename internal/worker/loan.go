package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// waitingPerSlot is how many deliveries may wait for other workers, without a slot, for
// each slot there is.
const waitingPerSlot = 4

// loans are the names under which this worker takes loans of other workers. Loans have
// their own slots, as many as one inbox has, so workers that are full of each other's
// work still progress.
type loans struct {
	slots chan struct{}
	// atWork are the loans in work.
	atWork sync.WaitGroup

	mu sync.Mutex
	// ctx is the context of the work; nil while no loans are taken.
	ctx    context.Context
	wanted map[loanName]bool
	taken  map[loanName]func()
}

// loanName is what is offered.
type loanName struct{ pool, name string }

func newLoans(slots int) loans {
	return loans{slots: make(chan struct{}, slots), wanted: map[loanName]bool{}, taken: map[loanName]func(){}}
}

// Offer sets the names under which other workers of a pool may lend work to this one. It
// replaces the names of the pool that were set before. It takes effect while the worker
// runs. The error is the bus's; the next call retries what failed.
func (w *Worker) Offer(pool string, names []string) error {
	w.loans.mu.Lock()
	defer w.loans.mu.Unlock()
	for n := range w.loans.wanted {
		if n.pool == pool {
			delete(w.loans.wanted, n)
		}
	}
	for _, name := range names {
		w.loans.wanted[loanName{pool, name}] = true
	}
	return w.adjustOffers()
}

// adjustOffers takes loans under the wanted names and under no others. The lock is held.
func (w *Worker) adjustOffers() error {
	l := &w.loans
	if w.cfg.Peers == nil {
		return nil
	}
	for n, stop := range l.taken {
		if l.ctx == nil || !l.wanted[n] {
			stop()
			delete(l.taken, n)
		}
	}
	if l.ctx == nil {
		return nil
	}
	var errs []error
	for n := range l.wanted {
		if l.taken[n] != nil {
			continue
		}
		ctx := l.ctx
		stop, err := w.cfg.Peers.Borrow(n.pool, n.name, func(d journal.Delivery, loan ports.Loan) (time.Duration, error) {
			return w.handleLoan(ctx, d, loan)
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.taken[n] = stop
	}
	return errors.Join(errs...)
}

// takeLoans takes loans until taking ends. Those in work may continue until workCtx ends. The
// returned function waits for them, but not after abandoned is closed.
func (w *Worker) takeLoans(taking, workCtx context.Context) (wait func(abandoned <-chan struct{})) {
	if w.cfg.Peers == nil {
		return func(<-chan struct{}) {}
	}
	set := func(ctx context.Context) {
		w.loans.mu.Lock()
		defer w.loans.mu.Unlock()
		w.loans.ctx = ctx
		if err := w.adjustOffers(); err != nil {
			w.cfg.Logger.Warn("loans from other workers cannot be received", "reason", err)
		}
	}
	set(workCtx)
	ended := make(chan struct{})
	stop := context.AfterFunc(taking, func() { defer close(ended); set(nil) })
	return func(abandoned <-chan struct{}) {
		if stop() {
			set(nil)
		} else {
			<-ended
		}
		await(&w.loans.atWork, abandoned)
	}
}

// handleLoan does the work of a loan, if a slot is free. If the work failed, the log says so,
// and the delay says when the delivery is to come again.
func (w *Worker) handleLoan(ctx context.Context, d journal.Delivery, l ports.Loan) (time.Duration, error) {
	if !w.beginLoan() {
		return 0, ports.ErrNoPeer // about to end
	}
	defer w.loans.atWork.Done()
	select {
	case w.loans.slots <- struct{}{}:
		defer func() { <-w.loans.slots }()
	default:
		return 0, ports.ErrPeersBusy
	}
	err := w.doLoan(ctx, d, l)
	delay, later := delayed(err)
	switch {
	case ctx.Err() != nil:
		return 0, ports.ErrPeerLost // cut short by the end of the drain time
	case later:
		return delay, nil
	case errors.Is(err, errElsewhere):
		return 0, ports.ErrPeerHolds
	case err != nil && !errors.Is(err, ports.ErrNoPeer):
		w.cfg.Logger.Warn("work of another worker could not be done", "effect", l.Key, "reason", err)
	}
	return 0, err
}

// beginLoan notes a loan in work, unless no more are taken.
func (w *Worker) beginLoan() bool {
	w.loans.mu.Lock()
	defer w.loans.mu.Unlock()
	if w.loans.ctx == nil {
		return false
	}
	w.loans.atWork.Add(1)
	return true
}

// doLoan does one effect under a delivery that another worker holds. The loan only names
// the record and the effect: the run, the record and the effect come from the log.
func (w *Worker) doLoan(ctx context.Context, d journal.Delivery, l ports.Loan) error {
	job, err := w.newDelivery(d)
	if err != nil {
		return err
	}
	defer w.cfg.Store.Release(job.run)
	job.borrowed = true
	rec, err := w.recordOf(ctx, job.subject, d.Record().Seq)
	if err != nil {
		return err
	}
	e, due, err := job.foldLoan(ctx, rec, l)
	if err != nil || !due {
		return err
	}
	job.found = []effects.Effect{{Key: e.Key, Started: l.Started}}
	return job.do(ctx, e)
}

// foldLoan brings the run to the head of the log and returns the effect, if the record
// is responsible for it.
func (j *delivery) foldLoan(ctx context.Context, rec journal.Record, l ports.Loan) (effects.Effect, bool, error) {
	j.run.Lock()
	defer j.run.Unlock()
	defer j.w.inFlight.cancelUnwanted(j.run)
	e, err := j.run.Extend(ctx, rec)
	if err != nil {
		return effects.Effect{}, false, err
	}
	if err := j.run.Refresh(ctx); err != nil {
		return effects.Effect{}, false, err
	}
	if e != nil {
		j.n, j.cause = e.N, e.ID
	}
	effect, wanted := j.run.Effect(l.Key)
	return effect, wanted && effect.Kind == effects.KindTool && j.mayStart(&effect), nil
}

// recordOf reads the record that a loan names.
func (w *Worker) recordOf(ctx context.Context, subject events.Subject, seq uint64) (journal.Record, error) {
	if seq > 0 {
		for rec, err := range w.cfg.Store.Log().Read(ctx, subject.Run, seq-1) {
			if err != nil || rec.Seq == seq && rec.Subject == subject.String() {
				return rec, err
			}
			break
		}
	}
	return journal.Record{}, fmt.Errorf("record %d of run %s: %w", seq, subject.Run.ID, journal.ErrNotFound)
}

// unslotted are the deliveries of an inbox that wait for other workers, without a slot.
type unslotted struct {
	mu    sync.Mutex
	ended bool
	group sync.WaitGroup
}

// start runs f in a goroutine and returns true, unless await was called: a queue that is
// killed may hand out a delivery after that.
func (o *unslotted) start(f func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.group.Go(f)
	}
	return !o.ended
}

// await returns when all have ended.
func (o *unslotted) await() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.group.Wait()
}

// lend has another worker do the effect.
func (j *delivery) lend(f *effect, e effects.Effect, r Result) Result {
	return recoverWork(f.ctx, func(ctx context.Context) Result {
		if j.w.cfg.Peers == nil {
			return r.lent(ctx, 0, ports.ErrNoPeer)
		}
		found, _ := j.foundDue(e.Key)
		j.w.inFlight.setLending(f, true)
		delay, err := j.w.cfg.Peers.Lend(ctx, j.d, ports.Loan{Pool: j.subject.Pool, Name: r.lend, Key: e.Key, Started: found.Started})
		j.w.inFlight.setLending(f, false)
		return r.lent(ctx, delay, err)
	})
}

// readOutcome reads the outcome of an effect that was lent. If the effect is still due, it
// is done again after the delay, or prepared again at once. The run is locked.
func (j *delivery) readOutcome(ctx context.Context, e effects.Effect, delay time.Duration) error {
	defer j.w.inFlight.cancelUnwanted(j.run)
	if err := j.run.Refresh(ctx); err != nil {
		return err
	}
	if _, still := j.run.Effect(e.Key); still && delay <= 0 {
		return errAgain
	}
	if delay > 0 {
		return retry.After(delay, nil)
	}
	return nil
}
