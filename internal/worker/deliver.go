package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The delays after a failure that says nothing of its own.
const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 30 * time.Second
	busDelay   = 500 * time.Millisecond
	// fullDelay is busDelay where the log has no room.
	fullDelay = 2 * time.Second
)

// delivery is one message in work.
type delivery struct {
	w       *Worker
	d       journal.Delivery
	run     *runlog.Run
	subject events.Subject
	// n is the message's place in its run, 0 if it cannot be decoded. cause is
	// its event's id.
	n     uint64
	cause string
	// resumed says that the message is a Resumed that somebody asked for, and that work
	// which was in flight when the run was paused may be so still, elsewhere.
	resumed bool
	// found is what was due when the delivery came. Only that can have been tried
	// under an earlier delivery of the message.
	found []reducer.Effect
	// borrowed says that another worker holds the delivery. leave gives the slot free
	// while it goes on; nil: it cannot.
	borrowed bool
	leave    func()
}

// errElsewhere says that a call runs under another delivery, which alone may
// conclude what became of it.
var errElsewhere = errors.New("the call was started under another delivery")

// errHeld says that another worker, to which the work was lent, may be at it.
var errHeld = errors.New("the work was lent")

// errAgain says that an effect which was lent is to be planned again.
var errAgain = errors.New("the effect is to be planned again")

// deliver works on a delivery and settles it. leave, which may be nil, is called when
// it needs its slot no more; it may be called more than once.
func (w *Worker) deliver(ctx context.Context, d journal.Delivery, leave func()) {
	rec := d.Record()
	subject, err := events.ParseSubject(rec.Subject)
	if err == nil {
		err = subject.CheckShard(w.cfg.Store.Log().Shards())
	}
	if err != nil {
		// It belongs to no run, so nobody waits for it and none is harmed.
		w.cfg.Logger.Warn("ignoring a message that belongs to no run", "subject", rec.Subject, "seq", rec.Seq, "reason", err)
		_ = d.Ack()
		return
	}
	run := w.cfg.Store.Acquire(subject.Run)
	defer w.cfg.Store.Release(run)
	job := &delivery{w: w, d: d, run: run, subject: subject, leave: leave}
	delay, err := job.work(ctx)
	switch {
	case err != nil:
		w.postpone(ctx, d, subject.Run, err)
	case ctx.Err() != nil:
		_ = d.Retry(0) // see postpone
	case delay > 0:
		_ = d.Retry(delay)
	default:
		_ = d.Ack()
	}
}

// postpone settles a delivery of which it is not known how far things are.
func (w *Worker) postpone(ctx context.Context, d journal.Delivery, run events.Run, err error) {
	var orphan *runlog.ParentGoneError
	var foreign *reducer.TableError
	seq := d.Record().Seq
	switch {
	case errors.Is(err, errHeld):
		// The borrower extends the delivery, and its end is in the log.
		w.cfg.Logger.Info("leaving a call to the worker that borrowed it", "run", run.ID, "seq", seq)
	case errors.Is(err, errElsewhere) && ctx.Err() == nil:
		// Any verdict could hit the delivery of whoever runs the call. Without
		// one this comes again when that one gives no sign of life.
		w.cfg.Logger.Info("leaving a call to the worker that started it", "run", run.ID, "seq", seq)
	case ctx.Err() != nil:
		// The drain time is over: what was cut short goes to another worker,
		// which counts it.
		_ = d.Retry(0)
	case errors.As(err, &foreign):
		// Only a worker with its graph may do anything about it.
		w.cfg.Logger.Error("leaving a run to workers that have its graph", "run", run.ID, "seq", seq, "reason", err)
		_ = d.Retry(lastDelay)
	case errors.As(err, &orphan):
		// Only an import brings it back.
		w.cfg.Logger.Error("a run cannot be read", "run", run.ID, "seq", seq, "reason", err)
		_ = d.Retry(lastDelay)
	default:
		w.cfg.Logger.Log(ctx, outageLevel(err), "a delivery comes again", "run", run.ID, "seq", seq, "reason", err)
		_ = d.Retry(outageDelay(err))
	}
}

// outageLevel is the level at which an outage is logged for each piece of work. That
// the log has no room the bus says, once.
func outageLevel(err error) slog.Level {
	if errors.Is(err, journal.ErrFull) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// outageDelay is how long work waits for the log.
func outageDelay(err error) time.Duration {
	if errors.Is(err, journal.ErrFull) {
		return fullDelay
	}
	return busDelay
}

// work does everything that is due under this delivery. It returns the delay
// after which it has to come again, 0 if it is settled; an error means that it
// is not known how far things are.
func (j *delivery) work(ctx context.Context) (time.Duration, error) {
	if err := j.fold(ctx); err != nil {
		return 0, err
	}
	if err := j.arrived(ctx); err != nil {
		return 0, err
	}
	for first := true; ; first = false {
		due := j.due()
		if len(due) == 0 {
			return 0, nil
		}
		if first {
			j.found = due
		}
		if asked, err := j.awaitOthers(ctx, due); err != nil {
			return 0, err
		} else if asked {
			continue
		}
		delay, err := j.doAll(ctx, due)
		if delay > 0 || err != nil || ctx.Err() != nil {
			return delay, err
		}
	}
}

// fold brings the run to the message, and to the log's head if the message was
// delivered before.
func (j *delivery) fold(ctx context.Context) error {
	j.run.Lock()
	defer j.run.Unlock()
	e, err := j.run.Extend(ctx, j.d.Record())
	if err != nil {
		return err
	}
	if e != nil {
		j.n, j.cause = e.N, e.ID
		resumed, ok := e.Data.(*events.Resumed)
		j.resumed = ok && !resumed.Redrive
	}
	if j.d.Attempt() > 1 {
		if err := j.run.Refresh(ctx); err != nil {
			return err
		}
	}
	j.w.flights.reconcile(j.run)
	return nil
}

// othersEvery is how often another process is asked whether it still has a run's work
// in flight.
const othersEvery = 2 * time.Second

// awaitOthers asks whether another process has the work of a resumed run in flight,
// since it would be done, and paid for, twice. If so, it waits for a while. Either way
// the run may have gone on meanwhile, so what is due has to be looked at again: asked is
// true. A process that dies stops answering, and the work is this delivery's.
func (j *delivery) awaitOthers(ctx context.Context, due []reducer.Effect) (asked bool, err error) {
	elsewhere := j.w.cfg.Elsewhere
	if elsewhere == nil || !j.resumed || j.w.flights.has(j.run.ID, due) {
		return false, nil
	}
	if j.resumed = elsewhere(ctx, j.run.ID, due); j.resumed {
		select {
		case <-time.After(othersEvery):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return true, ctx.Err()
	}
	j.run.Lock()
	defer j.run.Unlock()
	return true, j.run.Refresh(ctx)
}

// arrived does what is to be done on every delivery.
func (j *delivery) arrived(ctx context.Context) error {
	ask := j.w.cfg.Arrived
	if ask == nil {
		return nil
	}
	j.run.Lock()
	do := ask(j.run.ID, j.run.Memory())
	j.run.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx)
}

// due returns the effects that this delivery is responsible for and that may
// start. They must not be changed: mostly they are all that the run wants.
func (j *delivery) due() []reducer.Effect {
	j.run.Lock()
	defer j.run.Unlock()
	all := j.run.Effects()
	n := 0
	for i := range all {
		if j.mayStart(&all[i]) {
			n++
		}
	}
	if n == len(all) {
		return all
	}
	due := make([]reducer.Effect, 0, n)
	for i := range all {
		if j.mayStart(&all[i]) {
			due = append(due, all[i])
		}
	}
	return due
}

// mayStart reports whether this delivery is responsible for the effect, and the
// effect may start.
func (j *delivery) mayStart(e *reducer.Effect) bool {
	if e.State == "" {
		return !e.Held
	}
	return e.State == j.subject.To && e.Wake == j.n && !e.Held
}

// doAll does effects side by side and returns the longest delay that one of
// them asks for.
func (j *delivery) doAll(ctx context.Context, due []reducer.Effect) (time.Duration, error) {
	if len(due) == 1 {
		return j.do(ctx, due[0])
	}
	type verdict struct {
		delay time.Duration
		err   error
	}
	verdicts := make(chan verdict, len(due))
	for _, e := range due {
		go func() {
			// A handler may end its goroutine; the others are waited for anyway.
			v := verdict{err: errors.New("the work ended its goroutine")}
			defer func() { verdicts <- v }()
			v.delay, v.err = j.do(ctx, e)
		}()
	}
	var all verdict
	for range due {
		v := <-verdicts
		all.delay = max(all.delay, v.delay)
		all.err = errors.Join(all.err, v.err)
	}
	return all.delay, all.err
}

// do does one effect, or waits for it where it runs already.
func (j *delivery) do(ctx context.Context, e reducer.Effect) (time.Duration, error) {
	f, mine := j.w.flights.begin(ctx, j.run.ID, e.Key)
	if !mine {
		if j.borrowed && j.w.flights.lends(f) {
			return 0, journal.ErrNoPeer // f ends when this loan does, so it cannot be waited for
		}
		select {
		case <-f.done:
			// A pause before the next attempt is everybody's.
			return f.delay, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	defer j.w.flights.end(f)
	j.w.flights.awaitCancelled(ctx, f)
	for {
		delay, err := j.fly(ctx, f, e)
		if !errors.Is(err, errAgain) {
			f.delay = delay
			return delay, err
		}
		if e, mine = j.stillDue(e.Key); !mine || f.ctx.Err() != nil {
			return 0, nil
		}
	}
}

// fly does an effect once.
func (j *delivery) fly(ctx context.Context, f *flight, e reducer.Effect) (time.Duration, error) {
	work, delay, err := j.plan(ctx, e)
	if work == nil {
		return delay, err
	}
	working := j.w.cfg.Store.WithValues(f.ctx, j.run)
	for work != nil {
		result := j.w.run(working, work)
		for result.lent != nil {
			if j.borrowed {
				return 0, journal.ErrNoPeer
			}
			result = j.lend(f, e, result)
		}
		switch {
		case result.held && ctx.Err() != nil:
			return 0, errHeld
		case ctx.Err() != nil:
			return 0, ctx.Err() // cut short by the end of the drain time
		case result.held && f.ctx.Err() == nil:
			return 0, errHeld
		}
		work, delay, err = j.settle(ctx, e, result)
	}
	return delay, err
}

// stillDue returns the effect as it is wanted now, if this delivery is responsible.
func (j *delivery) stillDue(key string) (reducer.Effect, bool) {
	j.run.Lock()
	defer j.run.Unlock()
	e, still := j.run.Effect(key)
	return e, still && j.mayStart(&e)
}

// plan turns the effect into work, after counting an attempt that was lost with
// its worker. It returns no work where there is none to do.
func (j *delivery) plan(ctx context.Context, e reducer.Effect) (Work, time.Duration, error) {
	j.run.Lock()
	defer j.run.Unlock()
	if j.lost(e) {
		failure := &events.LLMAttemptFailed{
			Kind: events.KindWorkerLost, Message: "the worker went away before it was done", Key: e.Key,
			Under: j.n, Delivery: j.d.Attempt() - 1,
		}
		if _, err := j.commit(ctx, e, failure); err != nil {
			return nil, 0, err
		}
	}
	e, still := j.run.Effect(e.Key)
	if !still || e.Held {
		return nil, 0, nil
	}
	handler := j.w.cfg.Handlers[e.Kind]
	if e.Exhausted != "" && j.w.cfg.Origin == "" {
		handler = j.w.cfg.GiveUp[e.Kind]
	}
	if e.Kind == reducer.KindEnd || (handler == nil && e.Exhausted != "" && j.w.cfg.Origin == "") {
		return nil, 0, j.end(ctx, e)
	}
	if e.Started > 0 && !j.mayConclude(e) {
		return nil, 0, errElsewhere
	}
	if handler == nil {
		_, err := j.commit(ctx, e, &events.FatalError{Outcome: events.Outcome{
			Code: reducer.CodeNoHandler, Message: fmt.Sprintf("no handler for state %s", j.run.Memory().State),
		}})
		return nil, 0, err
	}
	return containPlan(handler, j.run, e), 0, nil
}

// lost reports whether an earlier delivery of the message came to nothing that
// the log knows of: its worker was lost.
func (j *delivery) lost(e reducer.Effect) bool {
	_, found := j.foundDue(e.Key)
	return found && !j.borrowed && j.w.cfg.Origin == "" && e.Kind != reducer.KindEnd && j.d.Attempt()-1 > e.Failed.Counted(j.n)
}

// mayConclude reports whether this delivery may say what became of a call that
// was started: it is a redelivery, and the call was started before it came.
func (j *delivery) mayConclude(e reducer.Effect) bool {
	found, _ := j.foundDue(e.Key)
	return j.d.Attempt() > 1 && found.Started == e.Started
}

// foundDue returns the effect of that key as it was due when the delivery came.
func (j *delivery) foundDue(key string) (reducer.Effect, bool) {
	for _, e := range j.found {
		if e.Key == key {
			return e, true
		}
	}
	return reducer.Effect{}, false
}

// end appends the event that gives the effect up.
func (j *delivery) end(ctx context.Context, e reducer.Effect) error {
	mem := j.run.Memory()
	p := reducer.GiveUp(mem, e)
	if e.Kind == reducer.KindEnd {
		p = reducer.End(mem)
	}
	_, err := j.commit(ctx, e, p)
	return err
}
