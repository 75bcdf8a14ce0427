package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// unsureFor is how soon a run is looked at again of whose work the bus does not
// say where it is.
const unsureFor = 30 * time.Second

// lookAfter is how soon a run is looked at again, so that what happens to it between
// two looks adds little to its stall time.
func (g *Gateway) lookAfter() time.Duration { return g.cfg.StallAfter / 4 }

// watch is since when the work that is due in a run may be in somebody's hands, as
// its timer remembers it from one look to the next.
type watch struct {
	// N is the run's last event when it was looked at: what was seen of another one
	// counts for nothing.
	N uint64 `json:"n,omitempty"`
	// Since is when the work was first seen to have left its queue, or was last seen
	// in it.
	Since time.Time `json:"since,omitzero"`
	// Queued says that the work was in its queue then.
	Queued bool `json:"queued,omitempty"`

	// stuck says that the stall time is over, unsure that nobody knows.
	stuck, unsure bool
}

// inspect looks at the work that is due. Work that waits in a queue does not stand
// still, however long the queue, and when it left it nobody knows: its time begins
// when it is first seen outside. The bus is not asked about it again then, since
// what was delivered once is no more in the queue.
func (g *Gateway) inspect(ctx context.Context, run events.Run, mem *reducer.Memory, seen watch) watch {
	idle, now := g.idle(mem), g.store.Now()
	if len(idle) == 0 {
		return g.inspectChildren(ctx, run, mem, seen)
	}
	if seen.N == mem.N && !seen.Queued {
		seen.stuck = now.Sub(seen.Since) >= g.cfg.StallAfter
		return seen
	}
	queued, err := g.queued(ctx, run, idle)
	if err != nil {
		g.cfg.Logger.Warn("cannot tell whether a run stands still or waits for its turn", "run", run.ID, "reason", err)
		seen.unsure = true
		return seen
	}
	return watch{N: mem.N, Since: now, Queued: queued}
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
func (g *Gateway) nextLook(run *runlog.Run, w watch) (at time.Time, seen note) {
	mem := run.Memory()
	seen.Deadline, _ = reducer.Deadline(mem)
	in := g.lookAfter()
	switch {
	case len(g.idle(mem)) == 0 && w.N != mem.N && !w.unsure:
		seen.Seq = run.Seq()
	case w.unsure:
		seen.Watch, in = w, min(unsureFor, in)
	case w.N == mem.N && w.Queued:
		seen.Watch = w
	case w.N == mem.N:
		seen.Watch, seen.Seq = w, run.Seq()
		seen.Deadline = seen.atMost(w.Since.Add(g.cfg.StallAfter))
	}
	if restless(mem, w) {
		seen.Seq = 0
	}
	return seen.atMost(g.store.Now().Add(in)), seen
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
		at, seen := g.nextLook(run, w)
		return g.setTimer(ctx, run.ID, kind, at, seen)
	}
	return nil
}
