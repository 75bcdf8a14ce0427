package simtest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// PutSnapshot replaces the run's snapshot.
func (p *Process) PutSnapshot(_ context.Context, run events.Run, s journal.Snapshot) error {
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
func (p *Process) Snapshot(_ context.Context, run events.Run) (journal.Snapshot, error) {
	var s journal.Snapshot
	err := p.lookUp(run, func(st *stores) map[string][]byte { return st.snapshots }, &s)
	if err != nil {
		return journal.Snapshot{}, fmt.Errorf("snapshot of run %s: %w", run.ID, err)
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

// PutTombstone notes that the run was purged.
func (p *Process) PutTombstone(_ context.Context, run events.Run, t journal.Tombstone) error {
	if err := journalcheck.Run(p.Shards(), run); err != nil {
		return fmt.Errorf("tombstone: %w", err)
	}
	text, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("tombstone of run %s: %w", run.ID, err)
	}
	return p.locked(func(st *stores) { st.tombstones[runKey(run.Namespace, run.ID)] = text })
}

// Tombstone returns the run's tombstone, or ErrNotFound.
func (p *Process) Tombstone(_ context.Context, run events.Run) (journal.Tombstone, error) {
	var t journal.Tombstone
	err := p.lookUp(run, func(st *stores) map[string][]byte { return st.tombstones }, &t)
	if err != nil {
		return journal.Tombstone{}, fmt.Errorf("tombstone of run %s: %w", run.ID, err)
	}
	return t, nil
}

// DeleteTombstone removes the run's tombstone, if there is one.
func (p *Process) DeleteTombstone(_ context.Context, run events.Run) error {
	return p.locked(func(st *stores) { delete(st.tombstones, runKey(run.Namespace, run.ID)) })
}
