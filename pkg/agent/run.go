package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Run is one run of an agent, which is followed from its first event. It is safe for
// concurrent use.
type Run struct {
	at      events.Run
	service *service
	// agent is nil for a sub-run.
	agent   *Agent
	release func() error
	stop    context.CancelFunc
	once    func() error
	// gone is closed when the run is released.
	gone chan struct{}

	mu   sync.Mutex
	fold *runlog.Fold
	// changed is closed and replaced after each event of the run or a child.
	changed chan struct{}
	// failures are the last calls that failed, since one succeeded.
	failures []FailedCall
	// parent is the run whose call this one answers, or nil. children are the followed
	// sub-runs.
	parent   *Run
	children map[string]*Run
	// released says that no more children may be added.
	released bool
	// ended is closed when no more events come: the run has ended, or cannot be read
	// because of failed.
	ended  chan struct{}
	failed error
}

// watch follows a run until it ends or is released.
func watch(s *service, at events.Run, parent *Run, release func() error) *Run {
	ctx, stop := context.WithCancel(context.Background())
	r := &Run{
		at: at, service: s, fold: runlog.NewFold(s.bus, s.machine, at), changed: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{}),
		stop: stop, release: release, parent: parent, children: map[string]*Run{},
	}
	r.once = sync.OnceValue(r.letGo)
	go r.follow(ctx)
	return r
}

// follow folds the run's events as they come.
func (r *Run) follow(ctx context.Context) {
	defer close(r.ended)
	for rec, err := range r.service.bus.Follow(ctx, r.at.Shard, journal.Filter{Namespace: r.at.Namespace, Run: r.at.ID}, 0) {
		if err == nil {
			err = r.apply(ctx, rec)
		}
		if ctx.Err() != nil {
			err = errReleased
		}
		r.mu.Lock()
		r.failed = err
		ended := r.terminal()
		over := err != nil || ended
		r.mu.Unlock()
		if ended {
			r.service.host.Store().Unbind(r.at)
		}
		r.announce()
		if over {
			return
		}
	}
}

// announce wakes the waiters of the run and of its parents.
func (r *Run) announce() {
	for ; r != nil; r = r.parent {
		r.mu.Lock()
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
	}
}

func (r *Run) apply(ctx context.Context, rec journal.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, err := r.fold.Apply(ctx, rec)
	if runlog.Refused(err) {
		return nil // memory says why, and the run's end follows
	}
	if err == nil {
		r.note(e)
	}
	return err
}

// terminal reports whether the run has ended. The lock is held.
func (r *Run) terminal() bool { return r.service.machine.Table().Terminal(r.fold.Memory().State) }

// ID returns the run's id, for [Agent.Attach].
func (r *Run) ID() string { return r.at.ID }

// Memory returns a copy of the run's memory as far as it is known.
func (r *Run) Memory() *Memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fold.Memory().Clone()
}

// State returns the run's state.
func (r *Run) State() events.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fold.Memory().State
}

// Trace returns the run's trace so far.
func (r *Run) Trace() reducer.Trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.fold.Memory().Trace)
}

// await waits until wanted is true of the memory or the run has ended. It returns the
// context's error, an error of reading the run, or the reason why the roles ended.
func (r *Run) await(ctx context.Context, wanted func(*reducer.Memory) bool) error {
	for {
		r.mu.Lock()
		failed, changed := r.failed, r.changed
		done := failed == nil && (r.terminal() || wanted(r.fold.Memory()))
		r.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case done:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.service.broken():
			return cmp.Or(r.service.failed, errServerClosed)
		}
	}
}

// WaitOption says what [Run.Wait] waits for besides the run's end.
type WaitOption func(*waiting)

type waiting struct{ interrupts bool }

// UntilInterrupt makes [Run.Wait] and [Run.Answer] return an *[Interrupted] as soon as the
// run or a sub-run cannot continue without its user.
func UntilInterrupt(w *waiting) { w.interrupts = true }

// Wait waits for the run's end and returns its answer or an error, as [Agent.Run] does. If
// the context ends first, the run continues.
func (r *Run) Wait(ctx context.Context, options ...WaitOption) (string, error) {
	return r.answer(ctx, options, func(*reducer.Memory) bool { return false })
}

// Answer is [Run.Wait], but in chat mode it returns the answer of the turn as soon as the
// run waits for the user.
func (r *Run) Answer(ctx context.Context, options ...WaitOption) (string, error) {
	return r.answer(ctx, options, func(mem *reducer.Memory) bool { return mem.State == events.WaitingForUser })
}

func (r *Run) answer(ctx context.Context, options []WaitOption, wanted func(*reducer.Memory) bool) (string, error) {
	var w waiting
	for _, option := range options {
		option(&w)
	}
	var interrupted *Interrupted
	var failed error
	err := r.await(ctx, func(mem *reducer.Memory) bool {
		if wanted(mem) {
			return true
		}
		if w.interrupts {
			interrupted, failed = r.interruption(mem)
		}
		return interrupted != nil || failed != nil
	})
	if err = cmp.Or(err, failed); err != nil {
		return "", err
	}
	if interrupted != nil {
		return "", interrupted
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return outcome(r.fold.Memory(), r.failures)
}

// Send sends a user message, with images and files if there are any, and returns the answer
// of that turn: [Run.Post] and [Run.Answer].
func (r *Run) Send(ctx context.Context, text string, more ...events.Part) (string, error) {
	if err := r.Post(ctx, text, more...); err != nil {
		return "", err
	}
	return r.Answer(ctx)
}

// Post sends a user message. When it returns, the turn has begun: [Run.Approvals] waits for
// its questions, and [Run.Answer] for its answer. The error is a *[Refused] if the run takes
// no message.
func (r *Run) Post(ctx context.Context, text string, more ...events.Part) error {
	message := control.UserMessage{}
	message.Content, message.Parts = content(text, more)
	return r.input(ctx, message)
}

// reach waits until the event with that number is applied, or the run has ended.
func (r *Run) reach(ctx context.Context, n uint64) error {
	return r.await(ctx, func(mem *reducer.Memory) bool { return mem.N >= n })
}

// Finish closes a conversation that waits for its user, and waits for the run's end.
func (r *Run) Finish(ctx context.Context) error {
	if _, err := r.service.host.Gateway().Close(ctx, r.at.Namespace, r.at.ID, events.By{}); err != nil {
		return refused(err)
	}
	_, err := r.Wait(ctx)
	return err
}

// Cancel ends the run. It is no error if the run has ended.
func (r *Run) Cancel(ctx context.Context, reason string) error {
	_, err := r.service.host.Gateway().Cancel(ctx, r.at.Namespace, r.at.ID, events.By{Reason: reason})
	var answer *refusal.Error
	if errors.As(err, &answer) && answer.Code == refusal.CodeRunEnded {
		return nil
	}
	return refused(err)
}

// callOffLooks separates attempts to find a run that may have been started: its first event
// may be in flight.
var callOffLooks = retry.Policy{Attempts: 5, First: 200 * time.Millisecond}

// callOff cancels a run if it was started. The context may have ended.
func (r *Run) callOff(ctx context.Context) error {
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer done()
	var err error
	there := true
	_ = callOffLooks.Do(stop, func(ctx context.Context) error {
		err = r.Cancel(ctx, "it was not known whether it was started")
		var answer *Refused
		if there = !errors.As(err, &answer) || answer.Code != refusal.CodeRunNotFound; there {
			return retry.Stop(err)
		}
		return err
	}, nil)
	if !there {
		return nil // it was not started
	}
	return err
}

// Step runs the roles, one piece of work at a time, until the run's next transition is in
// the log, and returns the new state. If the run has ended, it returns that state. The
// error is [ErrStepwise] if the run was not started by [Agent.Stepwise], and [ErrWaits] if
// it waits for a human.
func (r *Run) Step(ctx context.Context) (events.State, error) {
	if r.service.conduct != stepping {
		return "", ErrStepwise
	}
	n, state, err := r.service.host.Step(ctx, r.at)
	if err != nil {
		return state, err
	}
	return state, r.reach(ctx, n)
}

// Release releases the run. A run that has not ended continues with [Agent.Attach], or at once
// if other processes serve it. When the last run of an agent is released, the agent's roles
// end, unless a [Server] runs them. Memory, state and trace stay readable; iterators of the run end
// with an error. The error says why the roles had ended before, if they had.
func (r *Run) Release() error { return r.once() }

func (r *Run) letGo() error {
	r.mu.Lock()
	r.released = true
	r.mu.Unlock()
	close(r.gone)
	for _, child := range r.children { // it does not change any more
		_ = child.Release() // it has nothing that could fail
	}
	r.stop()
	<-r.ended
	if err := r.release(); err != nil {
		return fmt.Errorf("the roles ended: %w", err)
	}
	return nil
}
