// Package worker is the one loop that every role runs: deliver, fold, ask
// whether the work is still due, do it, append the outcome under the run's
// condition, acknowledge.
//
// A [Worker] consumes the events that enter the states of its [Inbox]es. What
// has to be done follows from the run's memory alone ([reducer.Effects]); how it
// is done is a [Handler]'s matter, one for each kind of effect. The loop holds no
// business logic and no state that the log does not hold: any worker may die at
// any moment, and the delivery that it held goes to another one.
//
// Promises:
//   - A delivery is acknowledged only when the log, read to its head, holds the
//     outcome or a newer event that wakes somebody itself.
//   - An effect whose key runs in this process already is joined, not started
//     again. One whose key the memory no longer wants is cancelled, and what it
//     still gives back is dropped.
//   - A handler that fails, panics or is lost with its process is counted in
//     the log (LlmAttemptFailed), tried again after a delay, and given up after
//     the bounds of package reducer, so that no run hangs on it.
//   - On shutdown nothing new is taken, and what runs is given time to finish.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// Config configures a [Worker].
type Config struct {
	// Role and Instance name the worker in the source of its events.
	Role, Instance string
	// Store holds the runs. Required; the roles of one process share it.
	Store *runlog.Store
	// Queue delivers, Feed tells of control events. Both required.
	Queue journal.Queue
	Feed  journal.Feed
	// Inboxes are what the worker consumes, each with Concurrency slots.
	Inboxes []journal.Inbox
	// Handlers do the effects, by kind. An effect that has none ends its run.
	Handlers map[reducer.Kind]Handler
	// Concurrency is how many deliveries of one inbox are in work at once.
	// Default 64.
	Concurrency int
	// Drain is how long work in flight may go on after Run's context ends.
	// Default 8 s.
	Drain time.Duration
	// Logger gets what the log of events does not show. Default: discarded.
	Logger *slog.Logger
}

// Handler does one kind of effect.
//
// Plan is called under the run's lock with the run's memory, which it may read
// but not keep: it takes what the work needs and returns the work. It must not
// block. Neither Plan nor the work needs to fear a panic.
type Handler interface {
	Plan(run events.Run, mem *reducer.Memory, e reducer.Effect) Work
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(run events.Run, mem *reducer.Memory, e reducer.Effect) Work

// Plan calls f.
func (f HandlerFunc) Plan(run events.Run, mem *reducer.Memory, e reducer.Effect) Work {
	return f(run, mem, e)
}

// Work does what was planned, outside the run's lock. It may run as long as it
// needs to, and returns soon after ctx ends: then nobody wants it any more.
type Work func(ctx context.Context) Result

// Result is what work came to. Make it with [Done], [Then], [Retry] or [Fail].
type Result struct {
	payloads []events.Payload
	next     Work
	failure  *events.LLMAttemptFailed
	delay    time.Duration
}

// Done ends the effect with its outcome, appended all or none. It must hold at
// least one event.
func Done(outcome ...events.Payload) Result { return Result{payloads: outcome} }

// Then appends an event that does not end the effect, and goes on with next
// once it stands in the log.
func Then(p events.Payload, next Work) Result {
	return Result{payloads: []events.Payload{p}, next: next}
}

// Retry counts a failed attempt in the log and has the work done again after
// the delay. The failure's key is filled in by the worker.
func Retry(failure events.LLMAttemptFailed, delay time.Duration) Result {
	return Result{failure: &failure, delay: delay}
}

// Fail is a handler's own failure: it is tried again, a few times, ever later.
func Fail(err error) Result {
	return Result{failure: &events.LLMAttemptFailed{Kind: events.KindHandler, Message: err.Error()}}
}

// Worker runs the loop. Make it with [New], use it once.
type Worker struct {
	cfg     Config
	source  string
	table   *reducer.Table
	flights flights
}

// New checks the configuration.
func New(cfg Config) (*Worker, error) {
	switch {
	case cfg.Store == nil || cfg.Queue == nil || cfg.Feed == nil:
		return nil, errors.New("worker: Store, Queue and Feed are required")
	case cfg.Role == "" || cfg.Instance == "":
		return nil, errors.New("worker: Role and Instance are required: they sign its events")
	case len(cfg.Inboxes) == 0:
		return nil, errors.New("worker: at least one Inbox is required")
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = 64
	}
	if cfg.Drain <= 0 {
		cfg.Drain = 8 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Worker{
		cfg: cfg, source: Source(cfg.Role, cfg.Instance), table: cfg.Store.Machine().Table(),
		flights: flights{byRun: map[events.Run]map[string]*flight{}},
	}, nil
}

// Source is what signs a role's events.
func Source(role, instance string) string { return "moorebus/" + role + "/" + instance }

// Run works until ctx ends, then lets what is in flight finish for the drain
// time and returns nil. Any other return is an error that waiting does not
// mend, such as missing permissions.
func (w *Worker) Run(ctx context.Context) error {
	return w.consume(ctx, w.cfg.Concurrency, func() {})
}

// Step works on exactly one delivery, waiting for it if need be, and returns
// when that is settled: the single-step mode for debugging and tests. It
// returns the context's error if ctx ended before.
func (w *Worker) Step(ctx context.Context) error {
	stepCtx, stop := context.WithCancel(ctx)
	defer stop()
	var once sync.Once
	stepped := false
	err := w.consume(stepCtx, 1, func() { once.Do(func() { stepped = true; stop() }) })
	if err == nil && !stepped {
		return ctx.Err()
	}
	return err
}

func (w *Worker) consume(ctx context.Context, slots int, settled func()) error {
	workCtx, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	unwatch, err := w.watchControl(workCtx)
	if err != nil {
		return fmt.Errorf("%s: watching control events: %w", w.cfg.Role, err)
	}
	defer unwatch()
	stopDrain := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(w.cfg.Drain, abort)
		context.AfterFunc(workCtx, func() { timer.Stop() })
	})
	defer stopDrain()

	consumeCtx, stopAll := context.WithCancel(ctx)
	defer stopAll()
	errs := make(chan error, len(w.cfg.Inboxes))
	for _, inbox := range w.cfg.Inboxes {
		go func() {
			err := w.consumeInbox(consumeCtx, workCtx, inbox, slots, settled)
			if err != nil {
				stopAll()
			}
			errs <- err
		}()
	}
	var all error
	for range w.cfg.Inboxes {
		all = errors.Join(all, <-errs)
	}
	return all
}

func (w *Worker) consumeInbox(ctx, workCtx context.Context, inbox journal.Inbox, slots int, settled func()) error {
	wait, err := w.cfg.Queue.AckWait(ctx, inbox)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("%s: inbox %v of pool %s: %w", w.cfg.Role, inbox.States, inbox.Pool, err)
	}
	held := extender{deliveries: map[journal.Delivery]struct{}{}}
	stop := held.start(wait / 3)
	defer stop()
	err = w.cfg.Queue.Consume(ctx, inbox, slots, func(d journal.Delivery) {
		defer settled()
		held.add(d)
		defer held.remove(d)
		w.deliver(workCtx, d)
	})
	if err != nil {
		return fmt.Errorf("%s: inbox %v of pool %s: %w", w.cfg.Role, inbox.States, inbox.Pool, err)
	}
	return nil
}

// extender sends the sign of life for every delivery of one inbox in work.
type extender struct {
	mu         sync.Mutex
	deliveries map[journal.Delivery]struct{}
}

func (x *extender) add(d journal.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deliveries[d] = struct{}{}
}

func (x *extender) remove(d journal.Delivery) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.deliveries, d)
}

func (x *extender) start(every time.Duration) (stop func()) {
	done := make(chan struct{})
	var finished sync.WaitGroup
	finished.Go(func() {
		ticker := time.NewTicker(max(every, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				x.extend()
			case <-done:
				return
			}
		}
	})
	return func() { close(done); finished.Wait() }
}

func (x *extender) extend() {
	x.mu.Lock()
	held := make([]journal.Delivery, 0, len(x.deliveries))
	for d := range x.deliveries {
		held = append(held, d)
	}
	x.mu.Unlock()
	for _, d := range held {
		_ = d.Extend() // if the bus is away, it comes again by itself
	}
}
