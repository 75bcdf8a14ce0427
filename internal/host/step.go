package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
)

// NewClient returns a host without roles, for a bus that other processes serve.
func NewClient(o Options) (*Host, error) {
	process := o.prepare(nil)
	gateway, err := process.Controller(o.control())
	return &Host{store: process.Store, gateway: gateway}, err
}

// standing is where a run stands between two steps.
type standing struct {
	n, armed uint64
	state    events.State
	ended    bool
	// owner serves what is due next; nil: no role here does.
	owner role
}

// ErrWaits says that the run waits for a human.
var ErrWaits = errors.New("the run waits for a human")

// Step lets roles work until the run's next transition is in the log. No role may run
// meanwhile. It returns the number of the last event, and the state after it.
func (h *Host) Step(ctx context.Context, run events.Run) (uint64, events.State, error) {
	before, err := h.standing(ctx, run)
	for now := before; err == nil; now, err = h.standing(ctx, run) {
		switch {
		case now.ended, now.armed != before.armed:
			return now.n, now.state, nil
		case now.owner == nil && now.state == events.WaitingForHuman, now.owner == nil && now.state == events.WaitingForUser:
			return now.n, now.state, ErrWaits
		case now.owner == nil:
			return now.n, now.state, fmt.Errorf("nobody here can do anything in state %s", now.state)
		}
		if err := now.owner.Step(ctx); err != nil {
			return now.n, now.state, err
		}
	}
	return before.n, before.state, err
}

func (h *Host) standing(ctx context.Context, at events.Run) (standing, error) {
	run := h.store.Acquire(at)
	defer h.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return standing{}, err
	}
	mem := run.Memory()
	s := standing{n: mem.N, armed: mem.Control.Armed, state: mem.State, ended: run.Terminal()}
	for _, e := range run.Effects() {
		if e.Held {
			return s, errors.New("the run is paused")
		}
		owner := e.State
		if e.Kind == effects.KindEnd {
			owner = mem.State
		}
		if s.owner = h.owners[owner]; s.owner != nil {
			break
		}
	}
	return s, nil
}

// Withdraw withdraws the names that [Host.Announce] announced, for a host that never ran.
func (h *Host) Withdraw(ctx context.Context) error { return h.planner.Withdraw(ctx) }
