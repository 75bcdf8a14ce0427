package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// unsureFor is how soon a run is looked at again of whose work the bus does not
// say where it is.
const unsureFor = 30 * time.Second

// watch is how long the work that is due in a run may have been in somebody's
// hands, as its timer remembers it from one look to the next.
type watch struct {
	// N is the run's last event: what was seen before it counts for nothing.
	N uint64 `json:"n,omitempty"`
	// Since is when that time begins at the earliest.
	Since time.Time `json:"since,omitzero"`
	// Queued says that the work was in its queue then.
	Queued bool `json:"queued,omitempty"`

	// stuck says that the stall time is over, unsure that nobody knows.
	stuck, unsure bool
}

// watched goes on with what the timer remembers, from the run's last event on if
// there is a newer one.
func watched(mem *reducer.Memory, seen watch) watch {
	if seen.N == mem.N {
		return seen
	}
	return watch{N: mem.N, Since: mem.Updated}
}

// inspect looks at the work that is due. Work that waits in a queue does not stand
// still, however long the queue: its time begins when it is seen to have left it.
// The bus is asked only about a run whose time seems to be over.
func (g *Gateway) inspect(ctx context.Context, run events.Run, mem *reducer.Memory, seen watch) watch {
	w, now := watched(mem, seen), g.store.Now()
	idle := g.idle(mem)
	if len(idle) == 0 || now.Sub(w.Since) < g.cfg.StallAfter {
		return w
	}
	queued, err := g.queued(ctx, run, idle)
	switch {
	case err != nil:
		g.cfg.Logger.Warn("cannot tell whether a run stands still or waits for its turn", "run", run.ID, "reason", err)
		w.unsure = true
	case queued || w.Queued:
		w.Since, w.Queued = now, queued
	default:
		w.stuck = true
	}
	return w
}

// queued reports whether a delivery that is to bring any of the work has not come
// to anybody yet.
func (g *Gateway) queued(ctx context.Context, run events.Run, work []reducer.Effect) (bool, error) {
	wakes := map[uint64]bool{}
	for _, e := range work {
		wakes[e.Wake] = true
	}
	n := uint64(0)
	for rec, err := range g.log.Read(ctx, run, 0) {
		if err != nil {
			return false, err
		}
		if stray(rec) {
			continue
		}
		if n++; !wakes[n] {
			continue
		}
		if waits, err := g.undelivered(ctx, run.Shard, rec); waits || err != nil {
			return waits, err
		}
	}
	return false, nil
}

// undelivered reports whether a record still waits for its first delivery.
func (g *Gateway) undelivered(ctx context.Context, shard int, rec journal.Record) (bool, error) {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return false, fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	return g.cfg.Queue.Undelivered(ctx, journal.Inbox{States: []events.State{s.To}, Pool: s.Pool}, shard, rec.Seq)
}

// nextLook says when the run is to be looked at next, and what its timer is to
// remember until then.
func (g *Gateway) nextLook(mem *reducer.Memory, w watch) (at time.Time, seen note) {
	seen.Deadline, _ = reducer.Deadline(mem)
	now := g.store.Now()
	if len(g.idle(mem)) == 0 {
		seen.N = mem.N
		return seen.atMost(now.Add(g.cfg.StallAfter)), seen
	}
	seen.Watch = watched(mem, w)
	at = seen.Watch.Since.Add(g.cfg.StallAfter)
	if w.unsure && w.N == mem.N {
		at = now.Add(min(unsureFor, g.cfg.StallAfter))
	}
	return seen.atMost(at), seen
}

// rearm sets a timer of the run again, for as long as the run needs it.
func (g *Gateway) rearm(ctx context.Context, run *runlog.Run, kind string, w watch) error {
	mem := run.Memory()
	switch {
	case run.Terminal():
		g.disarm(ctx, run.ID, kind)
	case kind == timerApproval:
		if at, waits := approvalDeadline(mem); waits {
			return g.setTimer(ctx, run.ID, kind, at, note{})
		}
	case kind == timerRun:
		at, seen := g.nextLook(mem, w)
		return g.setTimer(ctx, run.ID, kind, at, seen)
	}
	return nil
}
