package simtest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// PutSnapshot replaces the run's snapshot.
func (p *Process) PutSnapshot(_ context.Context, run events.Run, s ports.Snapshot) error {
	if err := journalcheck.Run(p.Shards(), run); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("snapshot of run %s: %w", run.ID, err)
	}
	return p.locked(func(st *stores) { st.snapshots[runKey(run.Namespace, run.ID)] = text })
}

// Snapshot returns the run's snapshot, or ErrNotFound.
func (p *Process) Snapshot(_ context.Context, run events.Run) (ports.Snapshot, error) {
	var s ports.Snapshot
	err := p.lookUp(run, func(st *stores) map[string][]byte { return st.snapshots }, &s)
	if err != nil {
		return ports.Snapshot{}, fmt.Errorf("snapshot of run %s: %w", run.ID, err)
	}
	return s, nil
}

// lookUp reads what is stored of a run.
func (p *Process) lookUp(run events.Run, in func(*stores) map[string][]byte, to any) error {
	var text []byte
	found := false
	if err := p.locked(func(st *stores) { text, found = in(st)[runKey(run.Namespace, run.ID)] }); err != nil {
		return err
	}
	if !found {
		return journal.ErrNotFound
	}
	return json.Unmarshal(text, to)
}

// DeleteSnapshot removes the run's snapshot, if there is one.
func (p *Process) DeleteSnapshot(_ context.Context, run events.Run) error {
	return p.locked(func(st *stores) { delete(st.snapshots, runKey(run.Namespace, run.ID)) })
}

// Snapshotted returns the runs that have a snapshot.
func (p *Process) Snapshotted(context.Context) ([]events.Run, error) {
	var runs []events.Run
	err := p.locked(func(st *stores) {
		for _, key := range slices.Sorted(maps.Keys(st.snapshots)) {
			namespace, id, _ := strings.Cut(key, ".")
			runs = append(runs, events.NewRun(namespace, id, p.Shards()))
		}
	})
	return runs, err
}
