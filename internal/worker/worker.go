// Package worker is the one loop that every role runs: receive a delivery, fold the
// run, check whether the work is still due, do it, append the outcome under the run's
// condition, acknowledge.
//
// A [Worker] consumes the events that enter the states of its inboxes. What has to be
// done follows from the run's memory alone ([effects.Of]). A [Handler] for each kind of
// effect does it. The loop holds no business logic and no state that the log does not hold.
// So any worker may die at any moment, and its delivery goes to another worker.
//
// Promises:
//   - A delivery is acknowledged only when the log, read to its head, holds the
//     outcome or a newer event that wakes a worker itself.
//   - A call that must not run twice is started by one worker only, and only while
//     the run is not paused. A delivery that finds the call started by another worker
//     gets no verdict, since any verdict could hit the other worker's message.
//   - An outcome that cannot be appended is kept and retried for a minute.
//   - An effect that is in flight in this process is joined, not started again. An
//     effect that the memory no longer wants is cancelled, and its result is dropped.
//   - A handler that fails, panics or is lost with its process is counted in
//     the log (LlmAttemptFailed), retried after a delay, and given up after
//     the bounds of package reducer. So no run hangs on it.
//   - After a shutdown begins, nothing new is taken, and work in flight gets time to
//     finish. Work that ignores the end of its context is abandoned, and its deliveries
//     go to other workers.
//
// Work that this process cannot do goes to another process in one of two ways. A loan
// ([Lend]) goes at once to one worker that offers a name, and leaves no event: the calls
// of a pool are many and short, and any actor of the pool may have the tool. A result "not
// asked" ([Retry] with NotAsked) is an event, and the delivery comes again, to any worker.
// Planners need that anyway for providers that are rate limited for hours. Neither can
// replace the other. Loans between planners would need permissions and offers that
// nothing else uses. Passing on a tool's call by events would cost an event and a delivery
// for each actor without the tool.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Base is what the roles of a process have in common. The Config of each role embeds it.
type Base struct {
	// Instance names the process in the source of its events, and among those of its
	// role. Required.
	Instance string
	// Store holds the runs. Required; the roles of one process share it.
	Store *runlog.Store
	// Queue delivers, Feed reports control events. Both are required.
	Queue journal.Queue
	Feed  journal.Feed
	// Concurrency is how many deliveries of one inbox are in work at once. Default 64.
	Concurrency int
	// Drain is how long work in flight may continue after the context of Run has ended.
	// Default 8 s.
	Drain time.Duration
	// Follow does without a delivery what a role of this process would do for the next
	// one; see [Follow]. Nil: every effect waits for its delivery.
	Follow Follow
	// Crew are the workers of this process that go on with runs together; nil: each one waits for
	// deliveries.
	Crew *Crew
	// Wrap returns the work of an effect in place of what its handler prepared. Like a
	// [Handler] it is called under the run's lock. It is not called for borrowed effects and
	// for workers that stand in for others. Nil: the work is as prepared.
	Wrap func(run events.Run, mem *reducer.Memory, e effects.Effect, prepared Work) Work
	// Retire, when it ends, makes the worker take nothing new. Run returns when the work in
	// flight has ended, without the bound of Drain. Nil: the worker takes work until the
	// context of Run ends.
	Retire context.Context
	// Logger gets what the log of events does not show. Default: discarded.
	Logger *slog.Logger
}

// Follow decides an effect that an event of this process has just made due, if the
// decision follows from the memory alone. It returns the event, and the source of the
// role that owns the effect; an empty source is that of the worker itself. If it returns
// no event, the effect waits for its delivery. It is called under the run's lock, may read
// the memory but not keep it, and must not block.
//
// A process may follow only on states that its user may publish from. The event, its
// source and its cause are those that the delivery would bring. The delivery still comes,
// to any worker of the state, and finds nothing due. If the process dies before it has
// appended the event, that worker does it.
type Follow func(run events.Run, mem *reducer.Memory, e effects.Effect) (p events.Payload, source string)

// WithDefaults returns the base with its defaults. The error names the role and what is
// missing.
func (b Base) WithDefaults(role string) (Base, error) {
	switch {
	case b.Store == nil || b.Queue == nil || b.Feed == nil:
		return b, fmt.Errorf("%s: Store, Queue and Feed are required", role)
	case b.Instance == "":
		return b, fmt.Errorf("%s: Instance is required: it signs its events", role)
	}
	if b.Concurrency <= 0 {
		b.Concurrency = 64
	}
	if b.Drain <= 0 {
		b.Drain = 8 * time.Second
	}
	if b.Logger == nil {
		b.Logger = slog.New(slog.DiscardHandler)
	}
	return b, nil
}

// Config configures a [Worker].
type Config struct {
	Base
	// Role names the role in the source of the worker's events. Required.
	Role string
	// Inboxes are what the worker consumes, each with Concurrency slots.
	Inboxes []journal.Inbox
	// Handlers do the effects, by kind. An effect that has none ends its run.
	Handlers map[effects.Kind]Handler
	// GiveUp does the effects that are given up, by kind, if that needs more than the
	// run's memory. The others end by [effects.GiveUp].
	GiveUp map[effects.Kind]Handler
	// Arrived is called for every delivery, after the fold and under the run's lock. It
	// returns what has to be done before anything that is due; nil: nothing. Like a
	// [Handler] it may read the memory but not keep it, and must not block. What it
	// returns is called without the lock; if that fails, the delivery comes again.
	// Arrived may be nil.
	Arrived func(run events.Run, mem *reducer.Memory) func(ctx context.Context) error
	// Origin is the `<from>` of the worker's events if it stands in for the workers of
	// its inboxes: events.Control. It then counts no attempts, neither lost ones nor its
	// own, and its handlers also handle effects that are given up. Empty: the
	// effect's state.
	Origin events.State
	// Elsewhere reports whether another process has one of the run's effects in flight.
	// It is called before the work of a resumed run that this process does not have in
	// flight. The delivery waits as long as it returns true. It may block for a moment.
	// Nil: no other process has.
	Elsewhere func(ctx context.Context, run events.Run, due []effects.Effect) bool
	// Leads reports whether a delivery that leads a run goes on with what the payload asks this worker
	// to do, as its crew does. It is called with the memory before the event, under the run's
	// lock, and must not block. Nil: always.
	Leads func(mem *reducer.Memory, p events.Payload) bool
	// HandOver has another process go on with a run that event n leads, as the last one that went to
	// Planning, and whose state no worker of this process serves. Nil: the delivery waits.
	HandOver func(ctx context.Context, run events.Run, n uint64) error
	// Gate holds deliveries back for a while; nil: they are never held back.
	Gate *Gate
	// Peers transports loans from and to other workers, see [Worker.Offer] and [Lend];
	// nil: there are none.
	Peers ports.Peers
	// Lends reports whether an effect that is due is to be lent, see [Lend]. It is called
	// under the run's lock and must not block. A delivery that only waits for its loans
	// leaves its slot, as long as few do so. Nil: no.
	Lends func(mem *reducer.Memory, e effects.Effect) bool
}

// Handler does one kind of effect.
//
// Prepare is called under the run's lock with the run's memory, which it may read but not
// keep. It copies what the work needs and returns the work. It must not block. The worker
// recovers from panics of Prepare and of the work.
type Handler interface {
	Prepare(run events.Run, mem *reducer.Memory, e effects.Effect) Work
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(run events.Run, mem *reducer.Memory, e effects.Effect) Work

// Prepare calls f.
func (f HandlerFunc) Prepare(run events.Run, mem *reducer.Memory, e effects.Effect) Work {
	return f(run, mem, e)
}

// Work does what was prepared, outside the run's lock. It may take as long as it needs, and
// returns soon after ctx ends: then its outcome is no longer wanted.
type Work func(ctx context.Context) Result

// Result is what work came to. Make it with [Done], [Then], [Retry] or [Fail].
type Result struct {
	payloads []events.Payload
	next     Work
	failure  *events.LLMAttemptFailed
	delay    time.Duration
	handsOn  bool
	// leaves makes the event of work whose outcome is no longer wanted.
	leaves func(mem *reducer.Memory) events.Payload
	// lend is the name under which the effect is lent, lent what follows from the
	// outcome. elsewhere says that another worker did it, held that another worker may
	// still be doing it.
	lend            string
	lent            func(ctx context.Context, delay time.Duration, err error) Result
	elsewhere, held bool
	// outside says that the outcome comes by [Worker.Do].
	outside bool
}

// Done ends the effect with its outcome, appended all or none. It must hold at
// least one event.
func Done(outcome ...events.Payload) Result { return Result{payloads: outcome} }

// Then appends an event that does not end the effect, and continues with next
// once it stands in the log.
func Then(p events.Payload, next Work) Result {
	return Result{payloads: []events.Payload{p}, next: next}
}

// HandOn ends the effect, for this delivery, with an event which says that another
// process continues with it. In a run that was paused meanwhile it is not appended: then
// the work begins anew when the run is resumed.
func HandOn(p events.Payload) Result {
	return Result{payloads: []events.Payload{p}, handsOn: true}
}

// Lend has another worker of the delivery's pool, one that offers the name, do the effect.
// It continues with lent, whose delay and err are those of [ports.Peers.Lend]; lent may
// return a Lend again. The wait does not count as concurrent work. The
// delivery leaves its slot, as long as few do so. An effect that was borrowed is not
// lent again: its lender gets [ports.ErrNoPeer].
func Lend(name string, lent func(ctx context.Context, delay time.Duration, err error) Result) Result {
	return Result{lend: name, lent: lent}
}

// Elsewhere says that the effect was lent. If it is still due, the delivery comes again
// after the delay; without one the effect is prepared again at once.
func Elsewhere(delay time.Duration) Result { return Result{elsewhere: true, delay: delay} }

// Held leaves the delivery without a verdict, since another worker may be doing the
// effect. If that worker does not extend the delivery, it comes again by itself.
func Held() Result { return Result{held: true} }

// Outside finishes the delivery although the effect stays due: its outcome comes from
// outside, by [Worker.Do]. Nothing holds the effect meanwhile.
func Outside() Result { return Result{outside: true} }

// Retry counts a failed attempt in the log and has the work done again after the delay.
// The worker fills in the failure's key.
func Retry(failure events.LLMAttemptFailed, delay time.Duration) Result {
	return Result{failure: &failure, delay: delay}
}

// Fail is a handler's own failure. The work is retried a few times, with growing delays.
func Fail(err error) Result {
	return Result{failure: &events.LLMAttemptFailed{Kind: codes.KindHandler, Message: err.Error()}}
}

// Leaving adds what the work leaves behind if its outcome is no longer wanted. leaves is
// called with the run's memory, under the run's lock, and returns an event that does not
// belong to the effect, or nil. It is not called for a run that has ended. The run's next
// effects begin once the event is appended, unless the cancelled work takes long to end.
func (r Result) Leaving(leaves func(mem *reducer.Memory) events.Payload) Result {
	r.leaves = leaves
	return r
}

// Map returns the result with fn applied to its end: to what comes after the events that it
// appends on the way and after its loans. fn gets the context of the work.
func (r Result) Map(ctx context.Context, fn func(ctx context.Context, end Result) Result) Result {
	switch {
	case r.next != nil:
		next := r.next
		r.next = func(ctx context.Context) Result { return next(ctx).Map(ctx, fn) }
	case r.lent != nil:
		lent := r.lent
		r.lent = func(ctx context.Context, delay time.Duration, err error) Result {
			return lent(ctx, delay, err).Map(ctx, fn)
		}
	default:
		return fn(ctx, r)
	}
	return r
}

// Outcome returns the last event with which the result ends the effect. The error says why
// there is none.
func (r Result) Outcome() (events.Payload, error) {
	switch {
	case r.failure != nil:
		return nil, errors.New(r.failure.Message)
	case len(r.payloads) == 0:
		return nil, errors.New("the work continues in another process")
	}
	return r.payloads[len(r.payloads)-1], nil
}

// WithOutcome returns the result with another last event.
func (r Result) WithOutcome(p events.Payload) Result {
	return Result{payloads: append(r.payloads[:max(len(r.payloads)-1, 0):max(len(r.payloads)-1, 0)], p), leaves: r.leaves}
}

// Worker runs the loop. Make it with [New], use it once.
type Worker struct {
	cfg Config
	// working bounds the work that is done at once: one delivery may hold hundreds of
	// calls.
	working chan struct{}
	source  string
	table   *reducer.Table
	// follow is Follow while the worker runs. A step is one delivery's work only.
	follow   Follow
	inFlight inFlight
	// taking says that Run takes deliveries, inHand how many are in work.
	taking atomic.Bool
	inHand atomic.Int64
	loans  loans
	// waiting bounds the deliveries that wait for other workers without a slot.
	waiting chan struct{}
	foreign foreign
}

// New checks the configuration.
func New(cfg Config) (*Worker, error) {
	if cfg.Role == "" || len(cfg.Inboxes) == 0 {
		return nil, errors.New("worker: Role and at least one Inbox are required")
	}
	var err error
	if cfg.Base, err = cfg.WithDefaults(cfg.Role); err != nil {
		return nil, err
	}
	w := &Worker{
		working: make(chan struct{}, cfg.Concurrency*len(cfg.Inboxes)),
		cfg:     cfg, source: Source(cfg.Role, cfg.Instance), table: cfg.Store.Machine().Table(),
		inFlight: inFlight{byRun: map[events.Run][]*effect{}},
		loans:    newLoans(cfg.Concurrency), waiting: make(chan struct{}, waitingPerSlot*cfg.Concurrency),
	}
	if cfg.Crew != nil && cfg.Origin == "" {
		cfg.Crew.join(w)
	}
	return w, nil
}

// Source is what signs a role's events.
func Source(role, instance string) string { return "moorebus/" + role + "/" + instance }

// Run works until ctx ends. Work in flight may then continue for the drain time. Run returns
// nil at most a second later, whatever is in flight. Any other return is an error that
// waiting does not mend, such as missing permissions.
func (w *Worker) Run(ctx context.Context) error {
	if w.cfg.Origin == "" {
		w.follow = w.cfg.Follow
	}
	w.taking.Store(w.cfg.Origin == "")
	taking := ctx
	if w.cfg.Retire != nil {
		var stop context.CancelFunc
		taking, stop = context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(w.cfg.Retire, stop)()
	}
	defer context.AfterFunc(taking, func() { w.taking.Store(false) })()
	return w.consume(ctx, taking, w.cfg.Inboxes, w.cfg.Concurrency, func(work, _ func()) { work() })
}

// RunAll runs all parts until ctx ends or one of them fails, and returns when all have
// ended. The error joins theirs.
func RunAll(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() {
			if errs[i] = part(ctx); errs[i] != nil {
				stop()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Ready returns nil if the bus has the consumers of all inboxes, or has had them a moment ago.
func (w *Worker) Ready(ctx context.Context) error {
	for _, inbox := range w.cfg.Inboxes {
		if _, err := w.cfg.Queue.AckWait(ctx, inbox); err != nil {
			return fmt.Errorf("inbox %v of pool %s: %w", inbox.States, inbox.Pool, err)
		}
	}
	return nil
}

// Step waits for one delivery, works on it, and returns when it has its verdict. It is for
// debugging and tests. If ctx ends before, it returns the context's error.
func (w *Worker) Step(ctx context.Context) error {
	for {
		// One inbox at a time: two could each hand out a delivery, and a delivery
		// that is given back counts as a lost worker.
		for _, inbox := range w.cfg.Inboxes {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if stepped, err := w.stepInbox(ctx, inbox); stepped || err != nil {
				return err
			}
		}
	}
}

// stepTurn is how long Step waits at one of several inboxes.
const stepTurn = 250 * time.Millisecond

// stepInbox works on one delivery of an inbox, if one comes in its turn.
func (w *Worker) stepInbox(ctx context.Context, inbox journal.Inbox) (stepped bool, err error) {
	turn, stop := context.WithCancel(ctx)
	defer stop()
	if len(w.cfg.Inboxes) > 1 {
		defer time.AfterFunc(stepTurn, stop).Stop()
	}
	var taken atomic.Bool
	err = w.consume(ctx, turn, []journal.Inbox{inbox}, 1, func(work, giveBack func()) {
		if taken.Swap(true) {
			giveBack()
			return
		}
		defer stop()
		work()
	})
	return taken.Load(), err
}

// slot does a delivery's work, or gives the delivery back.
type slot func(work, giveBack func())

// consume takes deliveries until taking ends. Work in flight may continue for the drain time
// after ctx ends. abandoned is closed when work has ignored its cancelled context for
// endGrace.
func (w *Worker) consume(ctx, taking context.Context, inboxes []journal.Inbox, slots int, in slot) error {
	workCtx, abort := context.WithCancel(context.WithoutCancel(ctx))
	abandoned := make(chan struct{})
	context.AfterFunc(workCtx, func() { time.AfterFunc(endGrace, func() { close(abandoned) }) })
	defer abort()
	unwatch, err := w.watchControl(workCtx)
	if err != nil {
		return fmt.Errorf("%s: watching control events: %w", w.cfg.Role, err)
	}
	defer func() { abort(); unwatch(abandoned) }() // a read may wait for a run that such work holds
	defer func() {
		select {
		case <-abandoned:
			w.cfg.Logger.Error("work ignored its cancellation and was abandoned", "effects", w.inFlight.keys())
		default:
		}
	}()
	drain := sync.OnceFunc(func() {
		timer := time.AfterFunc(w.cfg.Drain, abort)
		context.AfterFunc(workCtx, func() { timer.Stop() })
	})
	defer context.AfterFunc(ctx, drain)()
	taking, stopAll := context.WithCancel(taking)
	defer stopAll()
	defer w.takeLoans(taking, workCtx)(abandoned)

	errs := make(chan error, len(inboxes))
	for _, inbox := range inboxes {
		go func() {
			err := w.consumeInbox(taking, workCtx, inbox, slots, in)
			if err != nil {
				// The others end as on a shutdown.
				stopAll()
				drain()
			}
			errs <- err
		}()
	}
	var all error
	for range inboxes {
		select {
		case err := <-errs:
			all = errors.Join(all, err)
		case <-abandoned:
			return all
		}
	}
	return all
}

// await waits for a group until abandoned is closed.
func await(group *sync.WaitGroup, abandoned <-chan struct{}) {
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-abandoned:
	}
}

// endGrace is how long work may take to end once its context has.
const endGrace = time.Second

func (w *Worker) consumeInbox(ctx, workCtx context.Context, inbox journal.Inbox, slots int, in slot) error {
	held := newExtender(workCtx, func(ctx context.Context) time.Duration { return w.ackWait(ctx, inbox) })
	defer held.stop()
	take := func(ctx context.Context, slots int, handle func(journal.Delivery)) error {
		return w.cfg.Queue.Consume(ctx, inbox, slots, handle)
	}
	var out unslotted
	defer out.await()
	err := w.cfg.Gate.through(ctx, slots, take, func(d journal.Delivery) {
		in(func() { w.handle(workCtx, d, held, &out) }, func() { _ = d.Retry(0) })
	})
	if err != nil {
		return fmt.Errorf("%s: inbox %v of pool %s: %w", w.cfg.Role, inbox.States, inbox.Pool, err)
	}
	return nil
}

// ackWait returns how long a delivery may go without being extended. If that is unknown,
// it is a short time.
func (w *Worker) ackWait(ctx context.Context, inbox journal.Inbox) time.Duration {
	wait, err := w.cfg.Queue.AckWait(ctx, inbox)
	if err != nil && ctx.Err() == nil {
		w.cfg.Logger.Warn("the ack wait is unknown, a short one is assumed", "states", inbox.States, "pool", inbox.Pool, "reason", err)
		return shortAckWait
	}
	return wait
}

// shortAckWait is an ack wait that no consumer goes below.
const shortAckWait = 3 * time.Second
