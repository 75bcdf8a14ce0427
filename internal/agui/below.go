package agui

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// maxBelow bounds the interrupts of sub-runs that a turn ends with. The others come when
	// these are answered.
	maxBelow = 64
	// maxKeptInterrupts bounds what a run keeps of the interrupts of its sub-runs, in bytes.
	maxKeptInterrupts = 16 << 10
)

// wait is a call of a sub-run that waits for a human. N is the sub-run's number of events.
type wait struct {
	run       events.Run
	n         uint64
	request   events.Request
	interrupt Interrupt
}

// below is what the sub-runs of a run wait for, when the run had n events. The run rests if
// nothing works: every open call waits for the client, or for a sub-run that rests itself.
type below struct {
	n     uint64
	rests bool
	waits []wait
}

// interrupts returns the interrupts with which a turn ends now; none if the turn continues.
// Decided are the sub-runs' numbers of events for which the turn's request brings a decision.
func (b *below) interrupts(decided map[string]uint64) []Interrupt {
	if !b.rests {
		return nil
	}
	var all []Interrupt
	for _, w := range b.waits[:min(len(b.waits), maxBelow)] {
		if n, brought := decided[w.interrupt.ID]; brought && n == w.n {
			return nil // the decision is about to be made
		}
		all = append(all, w.interrupt)
	}
	return all
}

// find returns the call that waits under an interrupt's id, or nil.
func (b *below) find(id string) *wait {
	if i := slices.IndexFunc(b.waits, func(w wait) bool { return w.interrupt.ID == id }); i >= 0 {
		return &b.waits[i]
	}
	return nil
}

// below reads what the sub-runs of a run wait for.
func (s *server) below(ctx context.Context, at events.Run) (b below, err error) {
	var calls []string
	err = s.Control.View(ctx, at.Namespace, at.ID, func(run *runlog.Run) error {
		b.n = run.Memory().N
		calls, b.rests = s.agentCalls(run.Memory())
		return nil
	})
	for _, call := range calls {
		if err == nil && b.rests {
			err = s.addBelow(ctx, at.Namespace, events.Parent{Run: at.ID, CallID: call}, call, &b)
		}
	}
	b.rests = b.rests && len(b.waits) > 0
	return b, err
}

// agentCalls returns the open calls of a run that sub-runs work on, and whether no other work of
// the run is open.
func (s *server) agentCalls(mem *reducer.Memory) (calls []string, rests bool) {
	if s.Control.Table.Terminal(mem.State) || mem.Control.Poison != nil || mem.State == events.WaitingForHuman || mem.State == events.WaitingForUser {
		return nil, false
	}
	rests = true
	for i := range mem.Control.Calls {
		switch call := &mem.Control.Calls[i]; {
		case call.Answered || call.WaitsForClient():
		case call.Waits() && !call.HandedOff:
			calls = append(calls, call.ID)
		default:
			rests = false
		}
	}
	return calls, rests && len(calls) > 0
}

// addBelow adds what the sub-run of a call waits for. Top is the call of the thread's own run. A
// sub-run is found by its id and must name the call as its parent, because any client can start
// a run under such an id.
func (s *server) addBelow(ctx context.Context, ns string, parent events.Parent, top string, b *below) error {
	at := s.Control.Store.Place(ns, runid.Child(parent.Run, parent.CallID))
	var calls []string
	rests := false
	err := s.Control.View(ctx, ns, at.ID, func(run *runlog.Run) error {
		mem := run.Memory()
		switch {
		case !mem.Control.Parent.Answers(parent.Run, parent.CallID):
		case mem.State == events.WaitingForHuman && mem.Control.Poison == nil:
			waits := waitsOf(mem, at, top)
			b.waits, rests = append(b.waits, waits...), len(waits) > 0
		default:
			calls, rests = s.agentCalls(mem)
		}
		return nil
	})
	if runs.IsMissing(err) {
		err = nil
	}
	b.rests = b.rests && rests
	for _, call := range calls {
		if err == nil && b.rests {
			err = s.addBelow(ctx, ns, events.Parent{Run: at.ID, CallID: call}, top, b)
		}
	}
	return err
}

// waitsOf returns the calls of a sub-run that wait for a human. The id of an interrupt names the
// sub-run and the call; a call's id has no slash.
func waitsOf(mem *reducer.Memory, at events.Run, top string) (waits []wait) {
	for _, i := range interrupts(mem) {
		w := wait{run: at, n: mem.N, interrupt: i}
		for _, r := range mem.PendingApproval.Requests {
			if r.CallID == i.ID {
				w.request = r
			}
		}
		w.interrupt.ID, w.interrupt.ToolCallID, w.interrupt.SubagentRunID = at.ID+"/"+i.ID, top, at.ID
		w.interrupt.Metadata["call_id"], w.interrupt.Metadata["agent"] = i.ID, mem.Control.Agent.Name
		waits = append(waits, w)
	}
	return waits
}

// check returns the refusal of decisions on calls of sub-runs, before anything is appended.
func (s *server) check(ctx context.Context, w *wait, d events.Decision) error {
	return s.Control.View(ctx, w.run.Namespace, w.run.ID, func(run *runlog.Run) error {
		if !slices.Contains(decisions.Undecided(run.Memory().PendingApproval), d.CallID) {
			return runs.Conflict(run.Memory(), refusal.CodeNotWaiting, "interrupt %.100q does not wait for an answer", w.interrupt.ID)
		}
		return s.Control.CheckDecision(run.Memory(), d)
	})
}

// brief returns interrupts as the next turn keeps them: without what is long, if they are long.
func brief(all []Interrupt) []Interrupt {
	text, err := json.Marshal(all)
	if err == nil && len(text) <= maxKeptInterrupts {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Message, all[i].Metadata, all[i].ResponseSchema = "", nil, nil
	}
	return all
}

// watcher follows the sub-runs of a run for one client. Changed has an element if one of them may
// have come to wait for a human.
type watcher struct {
	s       *server
	changed chan struct{}

	mu   sync.Mutex
	runs map[string]bool
	all  sync.WaitGroup
}

func (s *server) newWatcher() *watcher {
	return &watcher{s: s, changed: make(chan struct{}, 1), runs: map[string]bool{}}
}

// watch follows the sub-runs that work on a run's open calls, and theirs, until ctx ends.
func (w *watcher) watch(ctx context.Context, ns string, mem *reducer.Memory) {
	for _, call := range mem.Delegated() {
		id := runid.Child(mem.RunID, call)
		w.mu.Lock()
		known := id == "" || w.runs[id]
		w.runs[id] = true
		w.mu.Unlock()
		if !known {
			w.all.Go(func() { w.follow(ctx, w.s.Control.Store.Place(ns, id)) })
		}
	}
}

func (w *watcher) follow(ctx context.Context, at events.Run) {
	fold := runlog.NewFold(w.s.Control.Log, w.s.Control.Store.Machine(), at)
	err := fold.Follow(ctx, at, func(_ journal.Record, _ *events.Event, refused error) error {
		if refused == nil {
			w.watch(ctx, at.Namespace, fold.Memory())
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		// The heartbeat of the stream checks the sub-runs, too.
		w.s.Logger.Debug("a sub-run of an AG-UI thread is not followed", "run", at.ID, "reason", err)
	}
}

// suspend ends the turn if the run's sub-runs wait for a human and nothing else works.
func (s *server) suspend(ctx context.Context, f *follower) {
	mem := f.fold.Memory()
	if !f.began || mem.N < f.head || !f.t.Open() {
		return
	}
	f.below.watch(ctx, f.run.Namespace, mem)
	if _, rests := s.agentCalls(mem); !rests {
		return
	}
	b, err := s.below(ctx, f.run)
	if err != nil {
		s.Logger.Debug("what the sub-runs of an AG-UI thread wait for is not known; the next heartbeat looks again", "run", f.run.ID, "reason", err)
	}
	if err != nil || b.n != mem.N { // or its next record comes
		return
	}
	if all := b.interrupts(turnOf(mem).Below); len(all) > 0 {
		f.t.Suspend(mem, all)
	}
}

// brought is a decision that a request brings, and the interrupt that it answers. N is the number
// of events of a sub-run that waits.
type brought struct {
	run       events.Run
	interrupt string
	n         uint64
	decision  events.Decision
}

// answersBelow returns the decisions that a request brings for calls of sub-runs, or refuses them.
func (s *server) answersBelow(ctx context.Context, b below, in *request) (all []brought, err error) {
	for i := range in.answers {
		w := b.find(in.answers[i].id)
		if w == nil {
			continue
		}
		d, err := in.answers[i].to(&w.request)
		if err == nil {
			err = s.check(ctx, w, d)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, brought{w.run, w.interrupt.ID, w.n, d})
	}
	return all, nil
}
