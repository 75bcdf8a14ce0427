package worker

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// failures says when failed work is done again, if the failure does not say it.
var failures = retry.Policy{First: 200 * time.Millisecond, Factor: 2, Max: 30 * time.Second}

// unreadable says when a run that only another build can read is delivered again.
var unreadable = retry.Policy{First: 200 * time.Millisecond, Factor: 2, Max: 10 * time.Second}

// commit appends the result of work and returns the work that follows it. It waits through
// an outage of the log, since the result may have been expensive, or impossible to repeat.
func (j *delivery) commit(ctx context.Context, e effects.Effect, r Result) (next Work, err error) {
	if r.outside {
		return nil, errOutside
	}
	if r.failure == nil && len(r.payloads) == 0 && !r.elsewhere && !r.held {
		r = Fail(errors.New("the handler returned no event"))
	}
	ids := make([]string, max(len(r.payloads), 1))
	for i := range ids {
		ids[i] = j.w.cfg.Store.NewID()
	}
	err = Outlast(ctx, func(ctx context.Context) (err error) {
		next, err = j.commitOnce(ctx, e, r, ids)
		if _, is := delayed(err); is || errors.Is(err, errAgain) || errors.Is(err, errElsewhere) {
			return retry.Stop(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		j.w.cfg.Logger.Log(ctx, outageLevel(err), "an outcome cannot be stored yet", "run", j.run.ID.ID, "effect", e.Key, "reason", err)
	})
	return next, err
}

// commitOnce is one attempt of commit.
func (j *delivery) commitOnce(ctx context.Context, e effects.Effect, r Result, ids []string) (Work, error) {
	j.run.Lock()
	defer j.run.Unlock()
	switch {
	case r.failure != nil:
		return nil, j.fail(ctx, e, r, ids)
	case r.elsewhere || r.held:
		return nil, j.readOutcome(ctx, e, r.delay)
	}
	appended, err := j.append(ctx, e, addition{payloads: r.payloads, ids: ids, begins: r.next != nil || r.handsOn, then: j.followUps(ctx)})
	switch {
	case isOutage(err):
		return nil, err
	case err != nil:
		return nil, j.fail(ctx, e, Fail(err), nil)
	case !appended:
		return nil, j.leaveBehind(ctx, e, r.leaves, ids)
	}
	return r.next, nil
}

// followUps returns what appends everything that follows, nil if this process decides nothing.
func (j *delivery) followUps(ctx context.Context) func() {
	if j.w.follow == nil {
		return nil
	}
	return func() {
		for j.followUp(ctx) {
		}
	}
}

// followUp appends what follows from the event that this process has just appended, if
// [Follow] decides it. It reports whether it did. If not, the event's delivery does it:
// so no error counts, and a lost race is not run again.
func (j *delivery) followUp(ctx context.Context) bool {
	last, mem := j.run.Written(), j.run.Memory()
	if last == nil || mem.Control.Paused || ctx.Err() != nil {
		return false
	}
	due := j.run.Effects()
	if len(due) != 1 || due[0].Wake != last.N && (j.lead == nil || due[0].Wake != j.n) {
		return false
	}
	p, source := recoverFollow(j.w.follow, j.run, due[0])
	if p == nil || source == "" && j.w.cfg.Handlers[due[0].Kind] == nil {
		return false
	}
	if source == "" {
		source = j.w.source
	}
	draft, n := []runlog.Draft{{Origin: due[0].State, Payload: p}}, last.N
	appended, err := j.run.Commit(ctx, runlog.Stamp{Source: source, Cause: last.ID, Leads: j.leads}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if mem.N != n {
			return nil, nil
		}
		return draft, nil
	})
	if err != nil {
		j.w.cfg.Logger.Debug("what follows is left to its delivery", "run", j.run.ID.ID, "event", last.ID, "reason", err)
	}
	return appended
}

// recoverFollow decides what follows. After a panic it decides nothing: the delivery's
// worker counts it.
func recoverFollow(follow Follow, run *runlog.Run, e effects.Effect) (p events.Payload, source string) {
	defer func() {
		if recover() != nil {
			p = nil
		}
	}()
	return follow(run.ID, run.Memory(), e)
}

// leaveBehind appends what work leaves whose outcome is no longer wanted. If another holder of the
// delivery goes on with the run, this one stops.
func (j *delivery) leaveBehind(ctx context.Context, e effects.Effect, leaves func(*reducer.Memory) events.Payload, ids []string) error {
	if leaves == nil {
		return j.outrun()
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
	if err != nil && !errors.Is(err, reducer.ErrRevision) { // builds of the run's revision leave nothing either
		return err
	}
	return j.outrun()
}

// fail counts the failure in the log and returns when the delivery comes again. The failure
// of a stand-in is not the run's: only the worker's own log has it.
func (j *delivery) fail(ctx context.Context, e effects.Effect, r Result, ids []string) error {
	if j.w.cfg.Origin != "" {
		j.w.cfg.Logger.Warn("work for another role failed and will be retried", "run", j.run.ID.ID, "effect", e.Key, "reason", r.failure.Message)
		return retry.After(max(r.delay, failures.First), nil)
	}
	failure := *r.failure
	failure.Key, failure.Message = e.Key, bounded(failure.Message)
	failure.RetryAfterMS = r.delay.Milliseconds()
	failure.Under, failure.Delivery = j.n, j.d.Attempt()
	if _, err := j.append(ctx, e, addition{payloads: []events.Payload{&failure}, ids: ids}); err != nil {
		return err
	}
	now, still := j.run.Effect(e.Key)
	switch {
	case !still:
		return j.leaveBehind(ctx, e, r.leaves, ids)
	case r.delay > 0:
		return retry.After(max(r.delay, time.Millisecond), nil)
	}
	return retry.After(failures.Delay(now.Failed.Total()), nil)
}

// maxMessage bounds what the log keeps of a failure, in bytes.
const maxMessage = 4000

// bounded makes a failure's text fit for the log.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "\uFFFD")
}

// addition is what is to be appended for an effect.
type addition struct {
	payloads []events.Payload
	// ids are the events' ids, if the append may have to be repeated.
	ids []string
	// begins says that work continues after it. Then nothing is appended if the run was
	// paused meanwhile, another worker was faster, or a newer delivery is responsible for the effect.
	begins bool
	// then is that of [runlog.Stamp].
	then func()
}

// append appends payloads if the effect is still due under the same key. A payload that the
// transition table does not allow ends the run.
func (j *delivery) append(ctx context.Context, e effects.Effect, a addition) (bool, error) {
	appended, err := j.tryAppend(ctx, e, a)
	if err == nil {
		return appended, nil
	}
	var illegal *reducer.TransitionError
	if !errors.As(err, &illegal) {
		return appended, err
	}
	_, err = j.tryAppend(ctx, e, addition{payloads: []events.Payload{&events.FatalError{
		Outcome: events.Outcome{Code: codes.InvalidTransition, Message: illegal.Error()},
	}}})
	return false, err
}

func (j *delivery) tryAppend(ctx context.Context, e effects.Effect, a addition) (bool, error) {
	defer j.w.inFlight.cancelUnwanted(j.run)
	stamp := runlog.Stamp{Source: j.w.source, Cause: j.cause, IDs: a.ids, Then: a.then, Leads: j.leads}
	appended, err := j.run.Commit(ctx, stamp, func(*reducer.Memory) ([]runlog.Draft, error) {
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
	if appended && j.appended != nil {
		*j.appended = time.Now()
	}
	return appended, err
}

// origin is the state that the worker publishes from: that of the configuration, else the
// effect's, else, for an effect without a state, the one whose deliveries it consumes.
func (j *delivery) origin(e effects.Effect) events.State {
	if j.w.cfg.Origin != "" {
		return j.w.cfg.Origin
	}
	if e.State != "" {
		return e.State
	}
	if j.w.table.Terminal(j.subject.To) {
		// A forged end: nothing is published out of a terminal state.
		return j.w.cfg.Inboxes[0].States[0]
	}
	return j.subject.To
}

// isOutage reports whether an error is the log's and not the work's.
func isOutage(err error) bool {
	if err == nil {
		return false // before anything is allocated: that is nearly always so
	}
	var draft *runlog.DraftError
	return !errors.Is(err, journal.ErrTooLarge) && !errors.As(err, &draft)
}

// Outage says how long work waits for a store that does not answer, and how often it
// retries. The result in hand may have been expensive, or impossible to repeat. After that
// the attempt counts as failed.
var Outage = retry.Policy{First: 500 * time.Millisecond, Budget: time.Minute}

// fullDelay is the pause when the log is full.
const fullDelay = 2 * time.Second

// Outlast calls try until it succeeds, fails for a reason that waiting does not mend (see
// [Passing] and [retry.Stop]), or has failed for a minute. waiting is that of
// [retry.Policy.Do].
func Outlast(ctx context.Context, try func(context.Context) error, waiting func(err error, delay time.Duration)) error {
	return Outage.Do(ctx, func(ctx context.Context) error {
		err := try(ctx)
		if !Passing(err) {
			return retry.Stop(err)
		}
		return outageOf(err)
	}, waiting)
}

// outageOf adds to an outage when to retry.
func outageOf(err error) error {
	if errors.Is(err, journal.ErrFull) {
		return retry.After(fullDelay, err)
	}
	return retry.After(Outage.First, err)
}

// Passing reports whether an error may pass by itself: it is neither about what is stored
// nor about permissions.
func Passing(err error) bool {
	if err == nil {
		return false // before anything is allocated: that is nearly always so
	}
	var draft *runlog.DraftError
	var parentGone *runlog.ParentGoneError
	var foreign *reducer.TableError
	switch {
	case errors.As(err, &draft), errors.As(err, &parentGone), errors.As(err, &foreign):
		return false
	}
	return !errors.Is(err, journal.ErrDenied) && !errors.Is(err, journal.ErrNotReady) && !errors.Is(err, journal.ErrTooLarge)
}

// foreign remembers which tables and versions were met that only another program can
// read, and in which runs. The zero value is ready. It is safe for concurrent use.
type foreign struct {
	mu     sync.Mutex
	tables map[string]bool
	runs   map[events.Run]bool
}

// mostForeignTables and mostForeignRuns bound what is remembered. When there are more
// runs they are all forgotten, and each is logged once more.
const (
	mostForeignTables = 100
	mostForeignRuns   = 1000
)

// level is the level at which a run is logged that is left to another program. An
// operator has to hear of each such program, and of each run, but not of every delivery.
func (f *foreign) level(run events.Run, err *reducer.TableError) slog.Level {
	table := err.Table
	if err.Version != nil {
		table = err.Version.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.runs[run]
	if f.runs == nil || len(f.runs) == mostForeignRuns && !known {
		f.runs = map[events.Run]bool{}
	}
	f.runs[run] = true
	switch {
	case !f.tables[table] && len(f.tables) < mostForeignTables:
		if f.tables == nil {
			f.tables = map[string]bool{}
		}
		f.tables[table] = true
		return slog.LevelError
	case !known:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
