package timers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// recheckUnknown is the recheck interval when the queue position of a run's work is unknown.
const recheckUnknown = 30 * time.Second

// stall is since when a run's due work may be with a worker. The run's timer stores it from one
// check to the next, so its keys must not change.
type stall struct {
	// N is the run's last event at that check. What was seen before another event does not
	// count.
	N uint64 `json:"n,omitempty"`
	// Since is when the work was first seen outside of its queue, or last seen in it.
	Since time.Time `json:"since,omitzero"`
	// Queued says that the work was in its queue then, or waited for an actor of its pool.
	Queued bool `json:"queued,omitempty"`

	// over says that the stall time is over, unknown that the bus did not answer.
	over, unknown bool
	// quiet is when the run last made progress, redrives how often its work was re-driven since.
	// They are set if the stall time is over.
	quiet    time.Time
	redrives int
}

// checkStall checks the due work, and what was done about it if it has stalled.
func (t *Timers) checkStall(ctx context.Context, run events.Run, mem *reducer.Memory, seen stall) stall {
	s := t.checkWork(ctx, run, mem, seen)
	if !s.over {
		return s
	}
	var err error
	if s.quiet, s.redrives, err = t.redrives(ctx, run, mem); err != nil {
		t.Logger.Warn("cannot read how often a run was re-driven", "run", run.ID, "reason", err)
		s.over, s.unknown = false, true
	}
	return s
}

// redrives reads when the run last got somewhere, and how often a gateway re-drove its work
// since. A dispatch of calls to their pools is no progress. A resume by a client does not
// count as a re-drive.
func (t *Timers) redrives(ctx context.Context, run events.Run, mem *reducer.Memory) (quiet time.Time, n int, err error) {
	quiet = mem.Updated
	if !mem.Control.Redriven {
		return quiet, 0, nil
	}
	for rec, err := range t.a.Log.Read(ctx, run, 0) {
		if err != nil {
			return quiet, 0, err
		}
		e := t.a.Decode(rec)
		if e == nil {
			continue
		}
		switch p := e.Data.(type) {
		case *events.ToolCallDispatched:
			if n == 0 {
				quiet = e.Time
			}
		case *events.Resumed:
			if n++; !p.Redrive {
				quiet, n = e.Time, 0
			}
		default:
			quiet, n = e.Time, 0
		}
	}
	return quiet, n, nil
}

// checkWork checks the due work. Queued work does not stall, however long the queue is, and
// neither do calls of a pool without actors, also if an actor took one before it died. The time
// begins when the work is first seen outside of the queue. The bus is not asked again then:
// delivered work does not return to the queue.
func (t *Timers) checkWork(ctx context.Context, run events.Run, mem *reducer.Memory, seen stall) stall {
	work, now := t.work(mem), t.a.Store.Now()
	if len(work) == 0 {
		return t.checkSubruns(ctx, run, mem, seen)
	}
	if t.awaitsActor(ctx, mem, work) {
		return stall{N: mem.N, Since: now, Queued: true}
	}
	if seen.N == mem.N && !seen.Queued {
		seen.over = now.Sub(seen.Since) >= t.StallAfter
		return seen
	}
	queued, err := t.queued(ctx, run, work)
	if err != nil {
		t.Logger.Warn("cannot read whether a run has stalled or is queued", "run", run.ID, "reason", err)
		seen.unknown = true
		return seen
	}
	return stall{N: mem.N, Since: now, Queued: queued}
}

// work returns the due work of a run. A paused run has none, and one that waits for its client
// has none either.
func (t *Timers) work(mem *reducer.Memory) []effects.Effect {
	if mem.Control.Paused {
		return nil
	}
	return slices.DeleteFunc(effects.Of(t.a.Table, mem), func(e effects.Effect) bool { return e.Client })
}

// awaitsActor reports whether one of the calls is for a pool that no actor serves.
func (t *Timers) awaitsActor(ctx context.Context, mem *reducer.Memory, work []effects.Effect) bool {
	pools := t.Unserved(ctx)
	return slices.ContainsFunc(work, func(e effects.Effect) bool {
		call := mem.Call(e.CallID)
		if e.Kind != effects.KindTool || call == nil {
			return false
		}
		_, unserved := pools[call.Pool]
		return unserved
	})
}

// queued reports whether a record that wakes any of the work still waits for its first delivery.
func (t *Timers) queued(ctx context.Context, run events.Run, work []effects.Effect) (bool, error) {
	wakes := map[uint64]bool{}
	for _, e := range work {
		wakes[e.Wake] = true
	}
	n := uint64(0)
	for rec, err := range t.a.Log.Read(ctx, run, 0) {
		if err != nil {
			return false, err
		}
		if runs.NotOfLog(rec) {
			continue
		}
		if n++; !wakes[n] {
			continue
		}
		if waits, err := t.undelivered(ctx, run.Shard, rec); waits || err != nil {
			return waits, err
		}
	}
	return false, nil
}

// undelivered reports whether a record still waits for its first delivery.
func (t *Timers) undelivered(ctx context.Context, shard int, rec journal.Record) (bool, error) {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return false, fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	return t.Queue.Undelivered(ctx, journal.Inbox{States: []events.State{s.To}, Pool: s.Pool}, shard, rec.Seq)
}

// checkSubruns checks a run without work that waits for sub-runs. The run has not
// stalled while they continue. A sub-run that has ended or is gone is due work: its call needs
// an answer.
func (t *Timers) checkSubruns(ctx context.Context, run events.Run, mem *reducer.Memory, seen stall) stall {
	now, over, queued := t.a.Store.Now(), false, false
	for _, call := range awaited(mem) {
		ended, waits, err := t.subrunEnded(ctx, run, call)
		if err != nil {
			t.Logger.Warn("cannot read whether a run still waits for a sub-run", "run", run.ID, "call", call, "reason", err)
			return stall{unknown: true}
		}
		over, queued = over || ended, queued || waits
	}
	switch {
	case !over:
		return stall{}
	case seen.N == mem.N && !seen.Queued && !queued:
		seen.over = now.Sub(seen.Since) >= t.StallAfter
		return seen
	}
	return stall{N: mem.N, Since: now, Queued: queued}
}

// awaited returns the calls that wait for sub-runs. A paused run has none.
func awaited(mem *reducer.Memory) []string {
	if mem.Control.Paused {
		return nil
	}
	var ids []string
	for i := range mem.Control.Calls {
		if call := &mem.Control.Calls[i]; call.Waits() {
			ids = append(ids, call.ID)
		}
	}
	return ids
}

// subrunEnded reports whether the sub-run of a call has ended or is gone, and whether its end is
// still queued. It trusts the last record: whatever acts on it reads the run.
func (t *Timers) subrunEnded(ctx context.Context, parent events.Run, call string) (ended, queued bool, err error) {
	child := t.a.Store.Place(parent.Namespace, runid.Child(parent.ID, call))
	head, err := t.a.Log.Head(ctx, child)
	if errors.Is(err, journal.ErrNotFound) {
		return true, false, nil
	}
	if err != nil {
		return false, false, err
	}
	s, err := events.ParseSubject(head.Subject)
	if err != nil || !t.a.Table.Terminal(s.To) {
		return false, false, nil
	}
	queued, err = t.undelivered(ctx, child.Shard, head)
	return true, queued, err
}

// nextCheck returns the time of the next check and the note for its timer.
func (t *Timers) nextCheck(run *runlog.Run, s stall) (at time.Time, n note) {
	mem := run.Memory()
	n.Deadline, _ = effects.Deadline(mem)
	for _, w := range t.waits { // whose own timers can be lost
		if at, waits := w.Deadline(mem); waits {
			n.Deadline = n.earliest(at)
		}
	}
	in := CheckEvery(t.StallAfter)
	switch {
	case s.unknown:
		n.Stall, in = s, min(recheckUnknown, in)
	case s.N == mem.N && s.Queued:
		n.Stall = s
	case s.N == mem.N:
		n.Stall, n.Seq = s, run.Seq()
		n.Deadline = n.earliest(s.Since.Add(t.StallAfter))
	case len(t.work(mem)) == 0:
		n.Seq = run.Seq()
	}
	if mem.Control.Parent != nil || s.N == 0 && len(awaited(mem)) > 0 {
		// Its parent or its sub-runs may end without an event in this run.
		n.Seq = 0
	}
	return n.earliest(t.a.Store.Now().Add(in)), n
}

// mostRedrives is how often stalled work is re-driven: a bus that lost a delivery may lose that of
// a re-drive as well.
const mostRedrives = 2

// endStall re-drives stalled work, or ends the run if that was done often enough.
func (t *Timers) endStall(mem *reducer.Memory, s stall) ([]runlog.Draft, error) {
	what := fmt.Sprintf("no answer since %s to %s", s.quiet.UTC().Format(time.RFC3339), describe(mem, t.work(mem)))
	if s.redrives >= mostRedrives {
		return runs.One(events.Control, &events.FatalError{Outcome: events.Outcome{
			Code: codes.Stalled, Message: fmt.Sprintf("%s, which was driven again %d times", what, s.redrives),
		}})
	}
	return runs.One(events.Control, &events.Resumed{By: events.By{Reason: what, By: t.a.Source}, Redrive: true})
}

// mostDescribed is the number of deliveries that a message names.
const mostDescribed = 5

// describe names what the run waits for: the deliveries of its work, or the ends of the runs that
// answer its calls.
func describe(mem *reducer.Memory, work []effects.Effect) string {
	var names []string
	for _, e := range work {
		names = append(names, delivery(mem, e))
	}
	if len(work) == 0 {
		for _, id := range awaited(mem) {
			names = append(names, fmt.Sprintf("%s by run %s", nameCall(mem, id), runid.Child(mem.RunID, id)))
		}
	}
	if more := len(names) - mostDescribed; more > 0 {
		names = append(names[:mostDescribed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// delivery names the delivery that does a piece of work.
func delivery(mem *reducer.Memory, e effects.Effect) string {
	call := mem.Call(e.CallID)
	switch {
	case call == nil:
		return "the delivery to " + string(e.State)
	case e.Kind == effects.KindDispatch:
		return fmt.Sprintf("the delivery to %s that sends %s to pool %s", e.State, nameCall(mem, e.CallID), call.Pool)
	}
	return fmt.Sprintf("the delivery of %s to pool %s", nameCall(mem, e.CallID), call.Pool)
}

// nameCall names a call with its tool.
func nameCall(mem *reducer.Memory, id string) string {
	if call := mem.Call(id); call != nil {
		return fmt.Sprintf("call %s (%s)", id, call.Name)
	}
	return "call " + id
}
