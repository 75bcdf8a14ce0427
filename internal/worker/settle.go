package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// maxOutage is how long a result is kept for a log that does not answer: it may
// have been dear, or never to be had again. After that the effect is done again.
const maxOutage = time.Minute

// settle appends what the work came to, and returns the work that follows it.
func (j *delivery) settle(ctx context.Context, e reducer.Effect, r Result) (Work, time.Duration, error) {
	if r.failure == nil && len(r.payloads) == 0 && !r.elsewhere && !r.held {
		r = Fail(errors.New("the handler returned no event"))
	}
	ids := make([]string, max(len(r.payloads), 1))
	for i := range ids {
		ids[i] = j.w.cfg.Store.NewID()
	}
	for began := time.Now(); ; {
		next, delay, err := j.settleOnce(ctx, e, r, ids)
		if !passes(err) || time.Since(began) >= maxOutage {
			return next, delay, err
		}
		j.w.cfg.Logger.Log(ctx, outageLevel(err), "an outcome cannot be stored yet", "run", j.run.ID.ID, "effect", e.Key, "reason", err)
		select {
		case <-time.After(outageDelay(err)):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// passes reports whether an error is an outage that ends by itself.
func passes(err error) bool {
	return isOutage(err) && !errors.Is(err, errAgain) && !errors.Is(err, journal.ErrDenied) && !errors.Is(err, journal.ErrNotReady)
}

// settleOnce is settle for a log that answers.
func (j *delivery) settleOnce(ctx context.Context, e reducer.Effect, r Result, ids []string) (Work, time.Duration, error) {
	j.run.Lock()
	defer j.run.Unlock()
	switch {
	case r.failure != nil:
		return j.retry(ctx, e, r, ids)
	case r.elsewhere || r.held:
		return nil, r.delay, j.lookElsewhere(ctx, e, r.delay)
	}
	appended, err := j.add(ctx, e, addition{payloads: r.payloads, ids: ids, begins: r.next != nil || r.handsOn})
	switch {
	case isOutage(err):
		return nil, 0, err
	case err != nil:
		return j.retry(ctx, e, Fail(err), nil)
	case !appended:
		return nil, 0, j.leaveBehind(ctx, e, r.leaves, ids)
	}
	return r.next, 0, nil
}

// leaveBehind appends what is left of work that nobody wants any more.
func (j *delivery) leaveBehind(ctx context.Context, e reducer.Effect, leaves func(*reducer.Memory) events.Payload, ids []string) error {
	if leaves == nil {
		return nil
	}
	stamp := runlog.Stamp{Source: j.w.source, Cause: j.cause, IDs: ids}
	_, err := j.run.Commit(ctx, stamp, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if _, still := j.run.Effect(e.Key); still || j.run.Terminal() || mem.Control.Poison != nil {
			return nil, nil
		}
		p := leaves(mem)
		if p == nil {
			return nil, nil
		}
		return []runlog.Draft{{Origin: j.origin(e), Payload: p}}, nil
	})
	return err
}

// retry counts the failure in the log and says when to come again. A stand-in's is
// not the run's, and is in the worker's own log alone.
func (j *delivery) retry(ctx context.Context, e reducer.Effect, r Result, ids []string) (Work, time.Duration, error) {
	if j.w.cfg.Origin != "" {
		j.w.cfg.Logger.Warn("work for others failed and will be tried again", "run", j.run.ID.ID, "effect", e.Key, "reason", r.failure.Message)
		return nil, max(r.delay, firstDelay), nil
	}
	failure := *r.failure
	failure.Key, failure.Message = e.Key, bounded(failure.Message)
	failure.RetryAfterMS = r.delay.Milliseconds()
	failure.Under, failure.Delivery = j.n, j.d.Attempt()
	if _, err := j.add(ctx, e, addition{payloads: []events.Payload{&failure}, ids: ids}); err != nil {
		return nil, 0, err
	}
	now, still := j.run.Effect(e.Key)
	if !still {
		return nil, 0, j.leaveBehind(ctx, e, r.leaves, ids)
	}
	delay := r.delay
	if delay <= 0 {
		delay = firstDelay << min(max(now.Failed.Total()-1, 0), 8)
	}
	return nil, min(max(delay, time.Millisecond), max(lastDelay, r.delay)), nil
}

// maxMessage bounds what the log keeps of a failure, in bytes.
const maxMessage = 4000

// bounded makes a failure's text fit for the log, whatever it says.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "\uFFFD")
}

// addition is what is to be appended for an effect.
type addition struct {
	payloads []events.Payload
	// ids are the events' ids where it may have to be repeated.
	ids []string
	// begins says that work goes on after it. In a run that was paused meanwhile,
	// or where another worker was faster, or where a newer delivery drives the
	// effect, it does not.
	begins bool
}

// commit appends payloads as long as the effect is due under the same key. What
// the transition table does not allow ends the run.
func (j *delivery) commit(ctx context.Context, e reducer.Effect, payloads ...events.Payload) (bool, error) {
	return j.add(ctx, e, addition{payloads: payloads})
}

// add is commit for an addition.
func (j *delivery) add(ctx context.Context, e reducer.Effect, a addition) (bool, error) {
	appended, err := j.append(ctx, e, a)
	if err == nil {
		return appended, nil
	}
	var illegal *reducer.TransitionError
	if !errors.As(err, &illegal) {
		return appended, err
	}
	_, err = j.append(ctx, e, addition{payloads: []events.Payload{&events.FatalError{
		Outcome: events.Outcome{Code: reducer.CodeInvalidTransition, Message: illegal.Error()},
	}}})
	return false, err
}

func (j *delivery) append(ctx context.Context, e reducer.Effect, a addition) (bool, error) {
	defer j.w.flights.reconcile(j.run)
	stamp := runlog.Stamp{Source: j.w.source, Cause: j.cause, IDs: a.ids}
	return j.run.Commit(ctx, stamp, func(*reducer.Memory) ([]runlog.Draft, error) {
		now, still := j.run.Effect(e.Key)
		if !still || (a.begins && (now.Held || now.Started != e.Started || now.Wake != e.Wake)) {
			return nil, nil
		}
		drafts := make([]runlog.Draft, len(a.payloads))
		for i, p := range a.payloads {
			drafts[i] = runlog.Draft{Origin: j.origin(e), Payload: p}
		}
		return drafts, nil
	})
}

// origin is the state in whose name the worker publishes: the effect's, or for
// one that anybody may do the state whose deliveries it consumes; that of the
// configuration goes before both.
func (j *delivery) origin(e reducer.Effect) events.State {
	if j.w.cfg.Origin != "" {
		return j.w.cfg.Origin
	}
	if e.State != "" {
		return e.State
	}
	if j.w.table.Terminal(j.subject.To) {
		// An end that was none: nothing is published out of where it led to.
		return j.w.cfg.Inboxes[0].States[0]
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
