// Package timers processes the timers of runs: it expires approvals and clients' calls, ends runs at their
// deadline, re-drives stalled work twice and then ends the run, and cancels abandoned sub-runs.
//
// A timer only says that it is time to check a run. What to do follows from the run. So a timer
// that fires twice, late or needlessly does no harm, and several processes may serve the same
// timers.
package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/subruns"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// retryAfter is the pause after a timer that could not be processed.
	retryAfter = 2 * time.Second
	// earlyPause is the shortest pause after a timer that fired before its time.
	earlyPause = time.Second
	// startGrace is how long a start may take after it set its timer.
	startGrace = time.Minute
)

// Config configures [Timers]. All but Fleet is required.
type Config struct {
	Runs    *runs.Editor
	Subruns *subruns.Subruns
	Queue   journal.Queue
	Timers  journal.Timers
	// Fleet knows which timers are set. Nil: none is set again.
	Fleet ports.Fleet
	// KV keeps for all gateways whether somebody removed the timers.
	KV kv.Store
	// Expire ends a run's wait for a reply of its client. A zero one is bounded anew.
	Expire func(ctx context.Context, run events.Run, wait clientmodel.Wait) error
	// Unserved returns since when pools have no actor.
	Unserved func(ctx context.Context) map[string]time.Time
	// Open returns the runs that have not ended.
	Open func(ctx context.Context) ([]list.OpenRun, error)
	// StallAfter is how long a run with due work may be without an event before its work is re-driven,
	// each time, and before the run ends.
	StallAfter time.Duration
	// Concurrency is how many timers are processed at once, Drain how long one may take
	// after Run's context ended.
	Concurrency int
	Drain       time.Duration
	Logger      *slog.Logger
}

// Timers sets and processes the timers of runs. It is safe for concurrent use.
type Timers struct {
	Config
	a     *runs.Editor
	waits []Wait
	// marked is the mark that Rearm stored last.
	marked mark
}

// New returns Timers.
func New(cfg Config) *Timers { return &Timers{Config: cfg, a: cfg.Runs} }

// CheckEvery is the interval between the checks of a run. It is a fraction of the stall time, so
// the time between two checks adds little to it.
func CheckEvery(stallAfter time.Duration) time.Duration { return stallAfter / 4 }

// note is what a timer stores when it is set.
type note struct {
	// At is the time for which it was set.
	At time.Time `json:"at,omitzero"`
	// Seq is the last record of the run when the timer was set. While it is the last one,
	// nothing is due before the deadline. 0 if something may be.
	Seq uint64 `json:"seq,omitempty"`
	// Deadline is when something is due even without new records; zero: never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Stall is the state of the due work.
	Stall stall `json:"watch,omitzero"`
}

// earliest returns the time, or the deadline if that is earlier.
func (n note) earliest(at time.Time) time.Time {
	if !n.Deadline.IsZero() && n.Deadline.Before(at) {
		return n.Deadline
	}
	return at
}

func (t *Timers) set(ctx context.Context, run events.Run, kind string, at time.Time, n note) error {
	n.At = at
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return runstart.SetTimer(ctx, t.Timers, run, kind, at, data)
}

// Wait is a wait of runs for something outside that has a deadline and a timer of its own.
type Wait struct {
	// Kind is that of the timer.
	Kind string
	// Deadline returns when the wait ends; false if the run does not wait.
	Deadline func(mem *reducer.Memory) (at time.Time, waits bool)
	// Expire returns the events that end a wait which is over.
	Expire func(mem *reducer.Memory, now time.Time) []runlog.Draft
	// Has reports whether a run may have the timer. Where a hand-off changed that, the timer is left to fire.
	// Nil: every run may.
	Has func(mem *reducer.Memory) bool
}

// Await adds a wait, before Run. set returns what sets the timer of a run, nil if it does not wait. A worker
// calls that before it acknowledges the delivery with which the wait begins.
func (t *Timers) Await(w Wait) (set func(run events.Run, mem *reducer.Memory) func(context.Context) error) {
	t.waits = append(t.waits, w)
	return func(run events.Run, mem *reducer.Memory) func(context.Context) error {
		at, waits := w.Deadline(mem)
		if !waits {
			return nil
		}
		return func(ctx context.Context) error { return t.set(ctx, run, w.Kind, at, note{}) }
	}
}

// Run processes timers until ctx ends. Timers that are being processed then get the drain time.
func (t *Timers) Run(ctx context.Context) error {
	err := t.Timers.ConsumeTimers(ctx, t.Concurrency, func(d journal.TimerDelivery) {
		work, stop := context.WithTimeout(context.WithoutCancel(ctx), t.Drain)
		defer stop()
		t.deliver(work, d)
	})
	if err != nil {
		return fmt.Errorf("gateway: timers: %w", err)
	}
	return nil
}

// deliver processes one timer. It acknowledges the timer after its events are in the log and the
// next timer is set, so a process that dies in between loses nothing.
func (t *Timers) deliver(ctx context.Context, d journal.TimerDelivery) {
	timer := d.Timer
	var seen note
	_ = json.Unmarshal(timer.Data, &seen) // without a note the run is read
	if early := seen.At.Sub(t.a.Store.Now()); early > 0 {
		// The clock of the bus is ahead of this one. A timer for the same time would fire at
		// once.
		_ = d.Retry(max(early, earlyPause))
		return
	}
	log := t.Logger.With("run", timer.Run.ID, "timer", timer.Kind)
	check := t.checkRun
	if timer.Kind == ports.TimerModel {
		check = t.expire
	}
	err := check(ctx, timer, seen)
	var parentGone *runlog.ParentGoneError
	var unknown *reducer.TableError
	switch {
	case errors.As(err, &parentGone):
		log.Warn("a run waits until its parent is in the log again", "reason", err)
		err = t.set(ctx, timer.Run, timer.Kind, t.a.Store.Now().Add(t.StallAfter), seen)
	case errors.As(err, &unknown):
		log.Warn("a run waits for a gateway with its transition table", "reason", err)
		err = t.set(ctx, timer.Run, timer.Kind, t.a.Store.Now().Add(CheckEvery(t.StallAfter)), seen)
	}
	switch {
	case err == nil:
		_ = d.Ack()
	case errors.Is(err, journal.ErrNotFound) && d.Attempt() == 1:
		_ = d.Retry(startGrace)
	case errors.Is(err, journal.ErrNotFound):
		_ = d.Ack() // the run was never started
	default:
		level := slog.LevelWarn
		if errors.Is(err, journal.ErrFull) {
			level = slog.LevelDebug // the bus logs it once
		}
		log.Log(ctx, level, "a timer will be retried", "reason", err)
		_ = d.Retry(retryAfter)
	}
}

// expire ends the wait for a reply of the run's client.
func (t *Timers) expire(ctx context.Context, timer journal.Timer, _ note) error {
	var wait clientmodel.Wait
	_ = json.Unmarshal(timer.Data, &wait) // an import sets timers without a note
	return t.Expire(ctx, timer.Run, wait)
}

// checkRun does what is due in a run and sets its timer again. The error is ErrNotFound if the run
// does not exist.
func (t *Timers) checkRun(ctx context.Context, timer journal.Timer, seen note) error {
	head, err := t.a.Log.Head(ctx, timer.Run)
	if err != nil {
		return err
	}
	now := t.a.Store.Now()
	if seen.Seq == head.Seq && (seen.Deadline.IsZero() || now.Before(seen.Deadline)) {
		// The run has not changed since the timer was set. Comparing its last record is
		// enough, and cheap for very many runs that wait for days. A record that ends the
		// run is not trusted without a fold: a worker may publish one that is not legal.
		return t.set(ctx, timer.Run, timer.Kind, seen.earliest(now.Add(CheckEvery(t.StallAfter))), seen)
	}
	var ended bool
	var parent *events.Parent
	err = t.a.View(ctx, timer.Run.Namespace, timer.Run.ID, func(run *runlog.Run) error {
		var s stall
		if timer.Kind == ports.TimerRun {
			s = t.checkStall(ctx, timer.Run, run.Memory(), seen.Stall)
		}
		err := t.a.Commit(ctx, run, func(mem *reducer.Memory) ([]runlog.Draft, error) { return t.due(mem, s) })
		ended = run.Terminal() && len(run.Memory().Control.Calls) > 0
		if p := run.Memory().Control.Parent; p != nil && !run.Terminal() {
			parent = p
		}
		var illegal *runlog.DraftError
		if errors.As(err, &illegal) {
			// The application's own table does not have the event, so a retry would not help.
			t.Logger.Error("a run can be neither ended nor re-driven", "run", timer.Run.ID, "reason", err)
			return t.set(ctx, timer.Run, timer.Kind, t.a.Store.Now().Add(t.StallAfter), seen)
		}
		if err != nil {
			return err
		}
		return t.reset(ctx, run, timer.Kind, s)
	})
	if err == nil && parent != nil {
		err = t.Subruns.CancelAbandoned(ctx, timer.Run, *parent)
	}
	if err == nil && ended {
		err = t.Subruns.CancelChildren(ctx, timer.Run.Namespace, timer.Run.ID, events.By{By: t.a.Source})
	}
	return err
}

// Reset sets the timer of a run for when something is due. The caller holds the run's lock.
func (t *Timers) Reset(ctx context.Context, run *runlog.Run) error {
	return t.reset(ctx, run, ports.TimerRun, stall{})
}

// reset sets a timer again if the run still needs it.
func (t *Timers) reset(ctx context.Context, run *runlog.Run, kind string, s stall) error {
	switch {
	case run.Terminal():
		t.cancelOthers(ctx, run, kind)
		return nil
	case kind == ports.TimerRun:
		at, n := t.nextCheck(run, s)
		return t.set(ctx, run.ID, kind, at, n)
	}
	for _, w := range t.waits {
		if at, waits := w.Deadline(run.Memory()); waits && w.Kind == kind {
			return t.set(ctx, run.ID, kind, at, note{})
		}
	}
	return nil
}

// cancelOthers cancels the timers of a run that has ended, except the one that fired. A timer that
// remains does nothing.
func (t *Timers) cancelOthers(ctx context.Context, run *runlog.Run, fired string) {
	for _, kind := range ports.TimerKinds() {
		if kind == fired || !t.mayBeSet(run.Memory(), kind) {
			continue
		}
		if err := t.Timers.CancelTimer(ctx, run.ID, kind); err != nil {
			t.Logger.Debug("a timer of a run that has ended stays", "run", run.ID.ID, "timer", kind, "reason", err)
		}
	}
}

// mayBeSet reports whether a run can have a timer of a kind: few runs have a client with tools or
// as their model.
func (t *Timers) mayBeSet(mem *reducer.Memory, kind string) bool {
	if kind == ports.TimerModel {
		return mem.Control.Agent.LLM.Timeout > 0
	}
	at := slices.IndexFunc(t.waits, func(w Wait) bool { return w.Kind == kind && w.Has != nil })
	return at < 0 || t.waits[at].Has(mem)
}

// due returns what must happen to a run now: a poisoned run ends, so does one that is past its
// deadline, an approval or a client's call expires, stalled work is re-driven twice before its run ends.
func (t *Timers) due(mem *reducer.Memory, s stall) ([]runlog.Draft, error) {
	if t.a.Table.Terminal(mem.State) {
		return nil, nil
	}
	for _, e := range effects.Of(t.a.Table, mem) {
		if e.Kind == effects.KindEnd {
			return runs.One(events.Control, effects.End(mem))
		}
	}
	now := t.a.Store.Now()
	if outcome, over := effects.OverWallTime(mem, now); over {
		return runs.One(events.Control, &events.BudgetExceeded{Outcome: outcome})
	}
	for _, w := range t.waits {
		if drafts := w.Expire(mem, now); drafts != nil {
			return drafts, nil
		}
	}
	if s.N != mem.N || !s.over {
		return nil, nil
	}
	return t.endStall(mem, s)
}
