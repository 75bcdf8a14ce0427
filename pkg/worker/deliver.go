package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// The delays after a failure that says nothing of its own.
const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 30 * time.Second
	busDelay   = 500 * time.Millisecond
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
}

// deliver works on a delivery and settles it.
func (w *Worker) deliver(ctx context.Context, d journal.Delivery) {
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
	job := &delivery{w: w, d: d, run: run, subject: subject}
	delay, err := job.work(ctx)
	switch {
	case ctx.Err() != nil:
		// The drain time is over: what was cut short goes to another worker,
		// which counts it.
		_ = d.Retry(0)
	case err != nil:
		w.cfg.Logger.Warn("a delivery comes again", "run", subject.Run.ID, "seq", rec.Seq, "reason", err)
		_ = d.Retry(busDelay)
	case delay > 0:
		_ = d.Retry(delay)
	default:
		_ = d.Ack()
	}
}

// work does everything that is due under this delivery. It returns the delay
// after which it has to come again, 0 if it is settled; an error means that it
// is not known how far things are.
func (j *delivery) work(ctx context.Context) (time.Duration, error) {
	if err := j.fold(ctx); err != nil {
		return 0, err
	}
	for {
		due := j.due()
		if len(due) == 0 {
			return 0, nil
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
	}
	if j.d.Attempt() > 1 {
		if err := j.run.Refresh(ctx); err != nil {
			return err
		}
	}
	j.w.flights.reconcile(j.run)
	return nil
}

// due returns the effects that this delivery is responsible for and that may
// start.
func (j *delivery) due() []reducer.Effect {
	j.run.Lock()
	defer j.run.Unlock()
	var due []reducer.Effect
	for _, e := range j.run.Effects() {
		if j.responsible(e) && !e.Held {
			due = append(due, e)
		}
	}
	return due
}

func (j *delivery) responsible(e reducer.Effect) bool {
	if e.State == "" {
		return true
	}
	return e.State == j.subject.To && e.Wake == j.n
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
			delay, err := j.do(ctx, e)
			verdicts <- verdict{delay, err}
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
		select {
		case <-f.done:
		case <-ctx.Done():
		}
		return 0, nil
	}
	defer j.w.flights.end(f)
	work, delay, err := j.plan(ctx, e)
	for work != nil {
		result := contain(f.ctx, work)
		if ctx.Err() != nil {
			return 0, ctx.Err() // cut short by the end of the drain time
		}
		work, delay, err = j.settle(ctx, e, result)
	}
	return delay, err
}

// plan turns the effect into work, after counting an attempt that was lost with
// its worker. It returns no work where there is none to do.
func (j *delivery) plan(ctx context.Context, e reducer.Effect) (Work, time.Duration, error) {
	j.run.Lock()
	defer j.run.Unlock()
	if lost := j.d.Attempt() - 1 - e.Failed.Total(); lost > 0 && e.Kind != reducer.KindEnd {
		failure := &events.LLMAttemptFailed{
			Kind: events.KindWorkerLost, Message: "the worker went away before it was done", Key: e.Key,
		}
		if _, err := j.commit(ctx, e, failure); err != nil {
			return nil, 0, err
		}
	}
	e, still := j.run.Effect(e.Key)
	if !still || e.Held {
		return nil, 0, nil
	}
	if e.Kind == reducer.KindEnd || e.Exhausted != "" {
		return nil, 0, j.end(ctx, e)
	}
	handler := j.w.cfg.Handlers[e.Kind]
	if handler == nil {
		_, err := j.commit(ctx, e, &events.FatalError{Outcome: events.Outcome{
			Code: reducer.CodeNoHandler, Message: fmt.Sprintf("no handler for state %s", j.run.Memory().State),
		}})
		return nil, 0, err
	}
	return containPlan(handler, j.run, e), 0, nil
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

// settle appends what the work came to, and returns the work that follows it.
func (j *delivery) settle(ctx context.Context, e reducer.Effect, r Result) (Work, time.Duration, error) {
	j.run.Lock()
	defer j.run.Unlock()
	switch {
	case r.failure != nil:
		return j.retry(ctx, e, r)
	case len(r.payloads) == 0:
		r = Fail(errors.New("the handler returned no event"))
		return j.retry(ctx, e, r)
	}
	appended, err := j.commit(ctx, e, r.payloads...)
	var illegal *reducer.TransitionError
	switch {
	case errors.As(err, &illegal):
		_, err = j.commit(ctx, e, &events.FatalError{Outcome: events.Outcome{Code: reducer.CodeInvalidTransition, Message: illegal.Error()}})
		return nil, 0, err
	case isOutage(err):
		return nil, 0, err
	case err != nil:
		return j.retry(ctx, e, Fail(err))
	case !appended:
		return nil, 0, nil // nobody wants it any more
	}
	return r.next, 0, nil
}

// retry counts the failure in the log and says when to come again.
func (j *delivery) retry(ctx context.Context, e reducer.Effect, r Result) (Work, time.Duration, error) {
	failure := *r.failure
	failure.Key = e.Key
	failure.RetryAfterMS = r.delay.Milliseconds()
	if _, err := j.commit(ctx, e, &failure); err != nil {
		return nil, 0, err
	}
	now, still := j.run.Effect(e.Key)
	if !still {
		return nil, 0, nil
	}
	delay := r.delay
	if delay <= 0 {
		delay = firstDelay << min(max(now.Failed.Total()-1, 0), 8)
	}
	return nil, min(max(delay, time.Millisecond), max(lastDelay, r.delay)), nil
}

// commit appends payloads as long as the effect is due under the same key.
func (j *delivery) commit(ctx context.Context, e reducer.Effect, payloads ...events.Payload) (bool, error) {
	defer j.w.flights.reconcile(j.run)
	stamp := runlog.Stamp{Source: j.w.source, Cause: j.cause}
	return j.run.Commit(ctx, stamp, func(*reducer.Memory) ([]runlog.Draft, error) {
		if _, still := j.run.Effect(e.Key); !still {
			return nil, nil
		}
		drafts := make([]runlog.Draft, len(payloads))
		for i, p := range payloads {
			drafts[i] = runlog.Draft{Origin: j.origin(e), Payload: p}
		}
		return drafts, nil
	})
}

// origin is the state in whose name the worker publishes: the effect's, or for
// one that anybody may do the state whose deliveries it consumes.
func (j *delivery) origin(e reducer.Effect) events.State {
	if e.State != "" {
		return e.State
	}
	return j.subject.To
}

// isOutage reports whether an error is the log's, so that the work is not to
// blame for it.
func isOutage(err error) bool {
	return err != nil && !errors.Is(err, journal.ErrTooLarge) && !isDraft(err)
}

func isDraft(err error) bool {
	var d *runlog.DraftError
	return errors.As(err, &d)
}

// contain runs work and makes a panic a failure.
func contain(ctx context.Context, work Work) (result Result) {
	defer func() {
		if p := recover(); p != nil {
			result = Fail(panicError(p))
		}
	}()
	return work(ctx)
}

func containPlan(h Handler, run *runlog.Run, e reducer.Effect) (work Work) {
	defer func() {
		if p := recover(); p != nil {
			err := panicError(p)
			work = func(context.Context) Result { return Fail(err) }
		}
	}()
	if work = h.Plan(run.ID, run.Memory(), e); work == nil {
		err := errors.New("the handler planned nothing")
		work = func(context.Context) Result { return Fail(err) }
	}
	return work
}

func panicError(p any) error {
	return fmt.Errorf("panic: %v\n%s", p, firstLines(debug.Stack(), 2000))
}

func firstLines(stack []byte, limit int) []byte { return stack[:min(len(stack), limit)] }
