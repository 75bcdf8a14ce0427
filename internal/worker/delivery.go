package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// delivery is one message in work. Its methods return nil when nothing is left to do under
// the message, a [*retry.Later] without a reason when the message has to come again, and
// any other error when the outcome is unknown.
type delivery struct {
	w       *Worker
	d       journal.Delivery
	run     *runlog.Run
	subject events.Subject
	// n is the message's place in its run, 0 if it cannot be decoded. cause is
	// its event's id.
	n     uint64
	cause string
	// resumed says that the message is a Resumed, and no re-drive. Work that was in flight
	// when the run was paused may still be in flight in another process.
	resumed bool
	// found is what was due when the delivery came. Only these effects can have been tried
	// under an earlier delivery of the message.
	found []effects.Effect
	// borrowed says that no delivery of this worker's is held: another worker has it, or
	// there is none.
	borrowed bool
	// handler goes before that of the configuration, where it is not nil.
	handler Handler
	// lead is set if the delivery may lead its run, see [Crew].
	lead *lead
	// began is when the delivery came, appended when its last outcome was appended; zero:
	// nothing was, nil: nothing counts. The latter belongs to who has the run's lock.
	began    time.Time
	appended *time.Time
}

// errElsewhere says that a call runs under another delivery. Only that delivery may end it.
var errElsewhere = errors.New("the call was started under another delivery")

// errHeld says that the worker that borrowed the work may be doing it.
var errHeld = errors.New("the work was lent")

// errAgain says that an effect which was lent is to be prepared again.
var errAgain = errors.New("the effect is to be planned again")

// errDoubtful says that what was done under a delivery may not be on the disk.
var errDoubtful = errors.New("the end of the run may not be on the disk")

// handle works on a delivery. It returns when the delivery has its verdict. If the delivery
// only waits for other workers, it returns earlier, as long as few do so.
func (w *Worker) handle(ctx context.Context, d journal.Delivery, held *extender, out *unslotted) {
	job, err := w.newDelivery(d)
	if err != nil {
		// It belongs to no run, so nothing waits for it.
		w.cfg.Logger.Warn("ignoring a message that belongs to no run", "subject", d.Record().Subject, "seq", d.Record().Seq, "reason", err)
		_ = d.Ack()
		return
	}
	w.inHand.Add(1)
	defer w.inHand.Add(-1)
	held.add(d)
	job.arrive()
	lends, err := job.prepare(ctx)
	if err == nil && job.leading() {
		job.workOn(ctx, held, out)
		return
	}
	if lends {
		select {
		case w.waiting <- struct{}{}:
			started := out.start(func() {
				defer func() { <-w.waiting }()
				defer job.release(held)
				job.conclude(ctx, job.work(ctx))
			})
			if !started { // without a verdict it comes again
				<-w.waiting
				job.release(held)
			}
			return
		default:
		}
	}
	defer job.release(held)
	if err == nil {
		err = job.work(ctx)
	}
	job.conclude(ctx, err)
}

// newDelivery finds the delivery's run, which the caller releases.
func (w *Worker) newDelivery(d journal.Delivery) (*delivery, error) {
	subject, err := events.ParseSubject(d.Record().Subject)
	if err == nil {
		err = subject.CheckShard(w.cfg.Store.Log().Shards())
	}
	if err != nil {
		return nil, err
	}
	return &delivery{w: w, d: d, run: w.cfg.Store.Acquire(subject.Run), subject: subject}, nil
}

// arrive notes how long the record waited for its delivery.
func (j *delivery) arrive() {
	to, entered := j.w.cfg.Store.Meter(), string(j.subject.To)
	if to == nil {
		return
	}
	j.began, j.appended = time.Now(), new(time.Time)
	if j.d.Attempt() > 1 {
		meter.Add(to, meter.Redeliveries, 1, entered)
		return
	}
	if rec := j.d.Record(); !rec.Stored.IsZero() {
		meter.Add(to, meter.Stages, max(0, j.began.Sub(rec.Stored).Seconds()), entered, "queued")
	}
}

// acknowledged notes how long the work of a delivery took that appended something.
func (j *delivery) acknowledged() {
	if j.appended == nil || j.appended.IsZero() {
		return
	}
	to, entered := j.w.cfg.Store.Meter(), string(j.subject.To)
	meter.Add(to, meter.Stages, max(0, j.appended.Sub(j.began).Seconds()), entered, "worked")
	meter.Since(to, meter.Stages, *j.appended, entered, "acknowledged")
}

// release releases the run and stops extending the delivery.
func (j *delivery) release(held *extender) {
	j.w.cfg.Store.Release(j.run)
	held.remove(j.d)
}

// conclude gives the delivery its verdict.
func (j *delivery) conclude(ctx context.Context, err error) {
	done := err == nil || errors.Is(err, errOutside)
	if done && j.run.Doubtful() {
		done, err = false, errDoubtful
	}
	if done && ctx.Err() == nil {
		_ = j.d.Ack()
		j.acknowledged()
		return
	}
	var parentGone *runlog.ParentGoneError
	var foreign *reducer.TableError
	log := j.w.cfg.Logger.With("run", j.run.ID.ID, "seq", j.d.Record().Seq)
	switch {
	case errors.Is(err, errHeld):
		// The borrower extends the delivery, and its outcome is in the log.
		log.Debug("leaving a call to the worker that borrowed it")
	case errors.Is(err, errElsewhere) && ctx.Err() == nil:
		// A verdict could hit the delivery of the worker that runs the call. Without
		// one this comes again when that worker stops extending it.
		log.Debug("leaving a call to the worker that started it")
	case ctx.Err() != nil:
		// The drain time is over: the work goes to another worker, which counts the
		// attempt.
		_ = j.d.Retry(0)
	case errors.As(err, &foreign):
		// Only a worker that can read the run may work on it. While an installation is
		// upgraded there may be one on the bus, so the first delays are short.
		log.Log(ctx, j.w.foreign.level(j.run.ID, foreign), "leaving a run to workers that can read it", "reason", err)
		_ = j.d.Retry(unreadable.Delay(j.d.Attempt()))
	case errors.Is(err, errNotHere):
		log.Info("leaving a run to workers that serve its state", "reason", err)
		j.w.handOver(ctx, j)
		_ = j.d.Retry(unreadable.Delay(j.d.Attempt()))
	case errors.As(err, &parentGone):
		// Only an import brings it back.
		log.Error("a run cannot be read", "reason", err)
		_ = j.d.Retry(failures.Max)
	default:
		if _, is := delayed(err); !is {
			log.Log(ctx, outageLevel(err), "a delivery comes again", "reason", err)
			err = outageOf(err)
		}
		delay, _ := retry.Asked(err)
		_ = j.d.Retry(delay)
	}
}

// delayed returns the delay of work that is to be done again later. That is not a failure.
func delayed(err error) (time.Duration, bool) {
	later, ok := err.(*retry.Later)
	if !ok || later.Err != nil {
		return 0, false
	}
	return later.Delay, true
}

// outageLevel is the level at which an outage is logged for each piece of work. The bus
// itself logs once that the log is full.
func outageLevel(err error) slog.Level {
	if errors.Is(err, journal.ErrFull) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// prepare folds the run, does what has to be done on arrival, and finds what is due. lends
// says that some of the effects are to be lent.
func (j *delivery) prepare(ctx context.Context) (lends bool, err error) {
	if err := j.fold(ctx); err != nil {
		return false, err
	}
	if err := j.arrived(ctx); err != nil {
		return false, err
	}
	j.run.Lock()
	defer j.run.Unlock()
	j.found = j.due()
	if j.w.cfg.Lends == nil || j.w.cfg.Peers == nil {
		return false, nil
	}
	for _, e := range j.found {
		lends = lends || j.w.cfg.Lends(j.run.Memory(), e)
	}
	return lends, nil
}

// work does everything that is due under this delivery.
func (j *delivery) work(ctx context.Context) error {
	for due := j.found; len(due) > 0; due = j.nowDue() {
		if asked, err := j.awaitOthers(ctx, due); err != nil {
			return err
		} else if asked {
			continue
		}
		if err := j.doAll(ctx, due); err != nil || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// fold brings the run to the message, and to the log's head if the message was
// delivered before.
func (j *delivery) fold(ctx context.Context) error {
	j.run.Lock()
	defer j.run.Unlock()
	if j.passed() {
		j.w.inFlight.cancelUnwanted(j.run)
		return nil
	}
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
	j.w.inFlight.cancelUnwanted(j.run)
	return nil
}

// passed reports whether the run has gone on from the delivered record, so that nothing
// can be due under it. It need not be decoded then. The run is locked.
func (j *delivery) passed() bool {
	if j.d.Attempt() > 1 || j.d.Record().Seq >= j.run.Seq() {
		return false
	}
	return !slices.ContainsFunc(j.run.Effects(), func(e effects.Effect) bool {
		return e.State == "" || e.State == j.subject.To || j.subject.To == events.Planning
	})
}

// othersEvery is how often another process is asked whether it still has a run's work
// in flight.
const othersEvery = 2 * time.Second

// awaitOthers asks whether another process has the work of a resumed run in flight, since
// the work would be done, and paid for, twice. If so, it waits for a while. If it asked, the
// run may have gone on meanwhile, and the caller looks up again what is due. A process that
// dies stops answering; then the work is this delivery's.
func (j *delivery) awaitOthers(ctx context.Context, due []effects.Effect) (asked bool, err error) {
	elsewhere := j.w.cfg.Elsewhere
	if elsewhere == nil || !j.resumed || j.w.inFlight.hasAny(j.run.ID, due) {
		return false, nil
	}
	if j.resumed = elsewhere(ctx, j.run.ID, due); j.resumed {
		retry.Wait(ctx, othersEvery)
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

func (j *delivery) nowDue() []effects.Effect {
	j.run.Lock()
	defer j.run.Unlock()
	return j.due()
}

// due returns the effects that this delivery is responsible for and that may start. The
// slice must not be changed: it is often the run's own. The run is locked.
func (j *delivery) due() []effects.Effect {
	all := j.run.Effects()
	for i := range all {
		if j.mayStart(&all[i]) {
			continue
		}
		due := append(make([]effects.Effect, 0, len(all)-1), all[:i]...)
		for ; i < len(all); i++ {
			if j.mayStart(&all[i]) {
				due = append(due, all[i])
			}
		}
		return due
	}
	return all
}

// mayStart reports whether this delivery is responsible for the effect, and the
// effect may start.
func (j *delivery) mayStart(e *effects.Effect) bool {
	if e.State == "" {
		return !e.Held
	}
	return (e.State == j.subject.To || j.subject.To == events.Planning) && e.Wake == j.n && !e.Held
}

// doAll does effects side by side. If none fails, it returns the longest delay that one of
// them asks for.
func (j *delivery) doAll(ctx context.Context, due []effects.Effect) error {
	if len(due) == 1 {
		return j.do(ctx, due[0])
	}
	ended, turns := make(chan error, len(due)), make(chan struct{}, len(due))
	if limited, err := j.limited(ctx); err != nil {
		return err
	} else if limited {
		turns = make(chan struct{}, 1)
	}
	for _, e := range due {
		go func() {
			// A handler may end its goroutine; the others are waited for anyway.
			err := errors.New("the work ended its goroutine")
			defer func() { ended <- err }()
			turns <- struct{}{}
			defer func() { <-turns }()
			err = j.do(ctx, e)
		}()
	}
	var longest time.Duration
	var failed []error
	for range due {
		err := <-ended
		if delay, later := delayed(err); later {
			longest = max(longest, delay)
		} else {
			failed = append(failed, err)
		}
	}
	if err := errors.Join(failed...); err != nil || longest == 0 {
		return err
	}
	return retry.After(longest, nil)
}

// limited reports whether the calls of the delivery's pool are bounded. The bound counts
// deliveries, so each of them does one call at a time.
func (j *delivery) limited(ctx context.Context) (bool, error) {
	calls := j.subject.To == events.Acting || j.subject.To == events.ParallelActing
	if !calls || j.w.cfg.Origin != "" { // who stands in for workers runs no tools
		return false, nil
	}
	return j.w.cfg.Queue.Limited(ctx, j.subject.Pool)
}

// do does one effect, or waits for it if it is in flight already.
func (j *delivery) do(ctx context.Context, e effects.Effect) error {
	j, err := j.part(e)
	if err != nil {
		return err
	}
	defer j.keepSlot()()
	f, mine := j.w.inFlight.register(ctx, j.run.ID, e.Key)
	if !mine {
		return j.join(ctx, f)
	}
	defer j.w.inFlight.remove(f)
	j.w.inFlight.awaitCancelled(ctx, f)
	for {
		err := j.doOnce(ctx, f, e)
		if !errors.Is(err, errAgain) {
			f.delay, _ = delayed(err)
			return err
		}
		if e, mine = j.stillDue(e.Key); !mine || f.ctx.Err() != nil {
			return nil
		}
	}
}

// join waits for an effect in flight. A pause before its next attempt holds for all of its
// deliveries.
func (j *delivery) join(ctx context.Context, f *effect) error {
	if j.borrowed && j.w.inFlight.isLent(f) {
		return ports.ErrNoPeer // f ends when this loan does, so it cannot be waited for
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.delay > 0 {
		return retry.After(f.delay, nil)
	}
	return nil
}

func (j *delivery) doOnce(ctx context.Context, f *effect, e effects.Effect) error {
	work, err := j.workFor(ctx, e)
	if work == nil {
		return err
	}
	working := j.w.cfg.Store.WithValues(f.ctx, j.run)
	for work != nil {
		result := j.w.run(working, work)
		for result.lent != nil {
			if j.borrowed {
				return ports.ErrNoPeer
			}
			result = j.lend(f, e, result)
		}
		switch {
		case result.held && (ctx.Err() != nil || f.ctx.Err() == nil):
			return errHeld
		case ctx.Err() != nil:
			return ctx.Err() // cut short by the end of the drain time
		}
		work, err = j.commit(ctx, e, result)
	}
	return err
}

// stillDue returns the effect as it is wanted now, if this delivery is responsible.
func (j *delivery) stillDue(key string) (effects.Effect, bool) {
	j.run.Lock()
	defer j.run.Unlock()
	e, still := j.run.Effect(key)
	return e, still && j.mayStart(&e)
}

// workFor turns the effect into work, after counting an attempt that was lost with its worker.
// The work is nil if there is none to do.
func (j *delivery) workFor(ctx context.Context, e effects.Effect) (Work, error) {
	j.run.Lock()
	defer j.run.Unlock()
	if j.wasLost(e) {
		failure := &events.LLMAttemptFailed{
			Kind: codes.KindWorkerLost, Message: "the worker went away before it was done", Key: e.Key,
			Under: j.n, Delivery: j.d.Attempt() - 1,
		}
		if _, err := j.append(ctx, e, addition{payloads: []events.Payload{failure}}); err != nil {
			return nil, err
		}
	}
	e, still := j.run.Effect(e.Key)
	if !still || e.Held {
		return nil, nil
	}
	handler, exhausted := j.w.cfg.Handlers[e.Kind], e.Exhausted != "" && j.w.cfg.Origin == ""
	switch {
	case exhausted:
		handler = j.w.cfg.GiveUp[e.Kind]
	case j.handler != nil:
		handler = j.handler
	}
	switch {
	case e.Kind == effects.KindEnd:
		return nil, j.appendEnd(ctx, e, effects.End(j.run.Memory()))
	case handler == nil && exhausted:
		return nil, j.appendEnd(ctx, e, effects.GiveUp(j.run.Memory(), e))
	case e.Started > 0 && !j.mayConclude(e):
		return nil, errElsewhere
	case handler == nil:
		return nil, j.appendEnd(ctx, e, &events.FatalError{Outcome: events.Outcome{
			Code: codes.NoHandler, Message: fmt.Sprintf("no handler for state %s", j.run.Memory().State),
		}})
	}
	work := recoverPrepare(handler, j.run, e)
	if wrap := j.w.cfg.Wrap; wrap != nil && !j.borrowed && j.w.cfg.Origin == "" {
		work = recoverPrepare(HandlerFunc(func(run events.Run, mem *reducer.Memory, e effects.Effect) Work { return wrap(run, mem, e, work) }), j.run, e)
	}
	return work, nil
}

// wasLost reports whether the log has no outcome of an earlier delivery of the message: its
// worker was lost.
func (j *delivery) wasLost(e effects.Effect) bool {
	_, found := j.foundDue(e.Key)
	counted := e.Failed.Total() // up to this delivery the log accounts for the attempts
	if e.Failed.Under == j.n {
		counted = max(counted, e.Failed.Delivery)
	}
	return found && !j.borrowed && j.w.cfg.Origin == "" && e.Kind != effects.KindEnd && j.d.Attempt()-1 > counted
}

// mayConclude reports whether this delivery may end a call that was started: it is a
// redelivery, and the call was started before it came.
func (j *delivery) mayConclude(e effects.Effect) bool {
	found, _ := j.foundDue(e.Key)
	return j.d.Attempt() > 1 && found.Started == e.Started
}

// foundDue returns the effect of that key as it was due when the delivery came.
func (j *delivery) foundDue(key string) (effects.Effect, bool) {
	for _, e := range j.found {
		if e.Key == key {
			return e, true
		}
	}
	return effects.Effect{}, false
}

// appendEnd appends the event that ends the effect without work.
func (j *delivery) appendEnd(ctx context.Context, e effects.Effect, p events.Payload) error {
	_, err := j.append(ctx, e, addition{payloads: []events.Payload{p}})
	return err
}
