package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Result is where a run stands after a request: its state, and the number of its
// events.
type Result struct {
	State events.State `json:"state"`
	N     uint64       `json:"n"`
}

// place returns where a run's log is. An id that no run can have is not found.
func (g *Gateway) place(ns, id string) (events.Run, error) {
	ns, err := g.checkNamespace(ns)
	if err != nil {
		return events.Run{}, err
	}
	if events.CheckID(id) != nil {
		return events.Run{}, noRun(id)
	}
	return g.store.Place(ns, id), nil
}

// look calls fn with the run as the log has it now, under its lock.
func (g *Gateway) look(ctx context.Context, ns, id string, fn func(run *runlog.Run) error) error {
	at, err := g.place(ns, id)
	if err != nil {
		return err
	}
	run := g.store.Acquire(at)
	defer g.store.Release(run)
	if err := lock(ctx, run); err != nil {
		return err
	}
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	if run.Memory().N == 0 {
		return g.missing(ctx, at)
	}
	return fn(run)
}

// lockWait is how long a request waits for what appends to its run.
const lockWait = 4 * time.Second

// lock locks the run, unless somebody's append to it takes too long.
func lock(ctx context.Context, run *runlog.Run) error {
	ctx, stop := context.WithTimeout(ctx, lockWait)
	defer stop()
	if err := run.LockContext(ctx); err != nil {
		return wrap(err, http.StatusServiceUnavailable, CodeUnavailable,
			"an append to the run is under way and the log does not answer it: it takes no writes; try again, and look at /readyz")
	}
	return nil
}

// change appends to a run what decide wants, all or nothing, and returns where
// the run stands then. A run that has ended is a conflict. One that is poisoned
// is ended first, since its log takes nothing else: whoever meets it does that.
func (g *Gateway) change(ctx context.Context, ns, id string, decide runlog.Decide) (Result, error) {
	var result Result
	err := g.look(ctx, ns, id, func(run *runlog.Run) error {
		poisoned := false
		err := g.commit(ctx, run, func(mem *reducer.Memory) ([]runlog.Draft, error) {
			if g.table.Terminal(mem.State) {
				return nil, ended(mem)
			}
			drafts, err := decide(mem)
			if poisoned = mem.Control.Poison != nil && !isCancel(drafts); poisoned {
				return []runlog.Draft{{Origin: events.Control, Payload: reducer.End(mem)}}, nil
			}
			return drafts, err
		})
		switch mem := run.Memory(); {
		case err != nil:
			return err
		case poisoned:
			return ended(mem)
		default:
			result = Result{State: mem.State, N: mem.N}
			return nil
		}
	})
	return result, err
}

func isCancel(drafts []runlog.Draft) bool {
	if len(drafts) != 1 {
		return false
	}
	_, cancel := drafts[0].Payload.(*events.CancelledRun)
	return cancel
}

// commit is the one place where the gateway appends.
func (g *Gateway) commit(ctx context.Context, run *runlog.Run, decide runlog.Decide) error {
	wanted := 0
	appended, err := run.Commit(ctx, runlog.Stamp{Source: g.source}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		drafts, err := decide(mem)
		wanted = len(drafts)
		return drafts, err
	})
	if appended {
		g.counts.appended.Add(int64(wanted))
	}
	return err
}
