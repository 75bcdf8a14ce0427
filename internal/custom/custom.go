// Package custom is the role that runs the states of an application's graph, which no other role
// serves.
//
// The [Handler] of a state is called when a run enters the state, and returns the event
// that follows. Any process with the same handlers may call it. It may be called again
// after a crash, and after its own failure.
package custom

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Visit is one call of a handler.
type Visit struct {
	Run events.Run
	// Memory is the handler's own copy.
	Memory *reducer.Memory
	// CallID names the tool call that is to be made, in a state that calls tools.
	CallID string
	// Next does the work of a built-in state, once, and returns its event. It blocks. In a
	// custom state it fails.
	Next func() (events.Payload, error)
}

// Handler does the work of a state, or of a built-in state around its own, see [Around]. It returns the event that
// follows, for which the table must have a row out of the state; an event without a row
// ends the run (invalid_transition).
//
// An error, a panic, a missing event and an event that cannot be stored count as failed
// attempts. The handler is called again a few times, with growing delays, and then the run
// ends (attempts_exhausted). For a failure that no retry mends, return an
// *[events.FatalError].
//
// A Handler is called from several goroutines and returns soon after ctx ends. Before an
// effect that must not happen twice it checks whether the effect happened: the outcome of
// an earlier call may not be in the log.
type Handler func(ctx context.Context, v Visit) (events.Payload, error)

// Config configures a [Custom].
type Config struct {
	worker.Base
	// States are the states that are served, with their handlers. A run that comes
	// to one with a nil handler ends (no_handler_for_state). At least one is required.
	States map[events.State]Handler
	// Timeout bounds one call of a handler. A handler that ignores it is abandoned, and
	// counts as failed. Default 10 min.
	Timeout time.Duration
}

// timeout is the default of [Config.Timeout].
const timeout = 10 * time.Minute

// Custom is the role. Make it with [New], use it once.
type Custom struct {
	cfg    Config
	worker *worker.Worker
}

// New checks the configuration.
func New(cfg Config) (*Custom, error) {
	var err error
	if cfg.Base, err = cfg.WithDefaults("custom"); err != nil {
		return nil, err
	}
	if len(cfg.States) == 0 {
		return nil, errors.New("custom: States are required")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = timeout
	}
	c := &Custom{cfg: cfg}
	var inboxes []journal.Inbox
	for _, state := range slices.Sorted(maps.Keys(cfg.States)) {
		if err := check(cfg.Store.Machine().Table(), state); err != nil {
			return nil, err
		}
		inboxes = append(inboxes, journal.Inbox{States: []events.State{state}, Pool: events.DefaultPool})
	}
	c.worker, err = worker.New(worker.Config{
		Role: "custom", Base: cfg.Base, Inboxes: inboxes,
		Handlers: map[effects.Kind]worker.Handler{effects.KindState: worker.HandlerFunc(c.prepare)},
	})
	return c, err
}

// check refuses a state of another role, and a terminal state.
func check(table *reducer.Table, state events.State) error {
	switch {
	case Wraps(state) || slices.Contains(reducer.DefaultTable().States(), state):
		return fmt.Errorf("custom: state %s is another role's", state)
	case !slices.Contains(table.States(), state):
		return fmt.Errorf("custom: state %s is not in the transition table", state)
	case table.Terminal(state):
		return fmt.Errorf("custom: state %s is terminal, there is nothing to be done", state)
	}
	return nil
}

// Run works until ctx ends.
func (c *Custom) Run(ctx context.Context) error { return c.worker.Run(ctx) }

// Step works on one delivery of any of the states.
func (c *Custom) Step(ctx context.Context) error { return c.worker.Step(ctx) }

func (c *Custom) prepare(run events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
	handler := c.cfg.States[mem.State]
	if handler == nil {
		none := &events.FatalError{Outcome: events.Outcome{
			Code: codes.NoHandler, Message: fmt.Sprintf("no handler for state %s", mem.State),
		}}
		return func(context.Context) worker.Result { return worker.Done(none) }
	}
	v := Visit{Run: run, Memory: mem.Clone(), Next: noWork}
	return func(ctx context.Context) worker.Result {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		answers := call(ctx, handler, v)
		a := answer{err: fmt.Errorf("the handler still runs %s after its timeout: %w", grace, context.DeadlineExceeded)}
		select {
		case a = <-answers:
		case <-ctx.Done():
			a = late(answers, a)
		}
		if a.err != nil {
			return worker.Fail(a.err)
		}
		return worker.Done(a.payload)
	}
}

func noWork() (events.Payload, error) {
	return nil, errors.New("the state is not built in, so its handler has no Next")
}

// answer is what a handler returned: an event or an error.
type answer struct {
	payload events.Payload
	err     error
}

// call calls the handler in a goroutine that can be abandoned.
func call(ctx context.Context, handler Handler, v Visit) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("the handler ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				a = answer{err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
			}
			answers <- a
		}()
		if a.payload, a.err = handler(ctx, v); a.payload == nil && a.err == nil {
			a.err = errors.New("the handler returned no event")
		}
	}()
	return answers
}

// late waits a moment for the answer of a handler whose context has ended.
func late(answers <-chan answer, none answer) answer {
	select {
	case a := <-answers:
		return a
	case <-time.After(grace):
		return none
	}
}

// grace is how long a handler may take to end after its context has.
const grace = time.Second
