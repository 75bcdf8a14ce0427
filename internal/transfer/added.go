package transfer

import (
	"context"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// add makes the events that the import itself appends to a run that has not ended: a
// ToolCallStarted for each call of class once that may have begun, and a Paused where the run is
// held. They are appended together with the run's last events, so that no worker begins anything
// before. It returns how many calls count as begun.
func (m *importer) add(ctx context.Context, a *arrival) (begun int, err error) {
	if ends(a.records[len(a.records)-1].Subject) || !m.o.CallsMayHaveRun && m.o.Hold == nil {
		return 0, nil
	}
	store := runlog.New(runlog.Options{Log: m.from, Machine: m.o.Machine})
	run := store.Acquire(a.run)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return 0, err
	}
	mem := run.Memory()
	if run.Terminal() || mem.Control.Poison != nil {
		return 0, nil
	}
	var payloads []events.Payload
	var origins []events.State
	if m.o.CallsMayHaveRun {
		for _, id := range unsure(mem) {
			payloads, origins = append(payloads, &events.ToolCallStarted{CallID: id}), append(origins, mem.State)
		}
	}
	begun = len(payloads)
	if m.o.Hold != nil && !mem.Control.Paused {
		held, err := m.o.Hold(ctx, a.run, mem)
		if err != nil {
			return 0, err
		}
		if held {
			payloads = append(payloads, &events.Paused{By: events.By{Reason: reasonRestored}, Restored: true})
			origins = append(origins, events.Control)
		}
	}
	a.added, err = m.draft(store, m.target(a.run), mem.Clone(), origins, payloads)
	return begun, err
}

// unsure returns the calls of class once that a run is about to begin.
func unsure(mem *reducer.Memory) (ids []string) {
	if mem.State != events.Acting && mem.State != events.ParallelActing {
		return nil // no call is open
	}
	for _, call := range mem.Control.Calls {
		if !call.Answered && call.Started == 0 && !call.Client && !call.Delegated() && !tool.Effect(call.Effect).Repeatable() {
			ids = append(ids, call.ID)
		}
	}
	return ids
}

// draft makes events that follow a memory, which it changes.
func (m *importer) draft(store *runlog.Store, to events.Run, mem *reducer.Memory, origins []events.State, payloads []events.Payload) ([]journal.Entry, error) {
	machine := store.Machine()
	var all []journal.Entry
	for i, p := range payloads {
		subject, e, err := machine.Draft(mem, to, origins[i], p, reducer.Stamp{ID: store.NewID(), Source: m.o.Source, Time: store.Now()})
		if err != nil {
			return nil, err
		}
		body, err := machine.Codec().Encode(e)
		if err != nil {
			return nil, err
		}
		if err := machine.ApplyEvent(mem, subject, e, events.Hash(body)); err != nil {
			return nil, err
		}
		all = append(all, journal.Entry{Subject: subject, Body: body})
	}
	return all, nil
}

// resume starts work on a run again: what wakes its worker may lie among the
// events that wake nobody. A run that waits for somebody outside, is paused, or
// has ended stays as it is; unless it is fresh, so does one with work of which
// all has a delivery, since somebody may be at it. It notes in the result whether the run
// was resumed, and whether an import holds it.
func (m *importer) resume(ctx context.Context, result *ImportedRun, fresh bool) error {
	run := m.store.Acquire(m.target(result.Run))
	defer m.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	resumed := false
	_, err := run.Commit(ctx, runlog.Stamp{Source: m.o.Source}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		resumed = false
		if run.Terminal() || mem.Control.Poison != nil || mem.Control.Paused {
			return nil, nil
		}
		if len(run.Effects()) == 0 || !fresh {
			if !stranded(mem, run.Effects()) {
				return nil, nil
			}
		}
		resumed = true
		return []runlog.Draft{{Origin: events.Control, Payload: &events.Resumed{By: events.By{Reason: "imported"}}}}, nil
	})
	control := run.Memory().Control
	result.Resumed, result.Held = resumed && err == nil, control.Paused && control.Restored && !run.Terminal()
	return err
}

// reasonRestored is the reason of the [events.Paused] that a restore appends.
const reasonRestored = "restored"
