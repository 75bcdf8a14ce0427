package simtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var _ journal.Storage = (*Process)(nil)

// ErrStorageAway is what storage answers by [Faults.Storage].
var ErrStorageAway = errors.New("simulated fault: the storage does not answer")

// storage is the entries of every agent by [journal.StorageOf.String] and
// [journalcheck.TagsKey], of both writers together: the last one to write wins.
type storage struct {
	entries map[string]map[string]events.Entry
	// tries counts what was asked, so that what is repeated meets another fate.
	tries map[string]int
}

func newStorage() storage {
	return storage{entries: map[string]map[string]events.Entry{}, tries: map[string]int{}}
}

// away decides whether the storage answers. The lock is held.
func (j *Journal) away(of journal.StorageOf, what string) bool {
	key := of.String() + " " + what
	j.stores.storage.tries[key]++
	return j.opts.happens(j.opts.Faults.Storage, "storage", key, j.stores.storage.tries[key])
}

// SaveEntry stores an entry. By [Faults.Storage] it fails, and may have stored it
// all the same.
func (p *Process) SaveEntry(ctx context.Context, of journal.StorageOf, by journal.Writer, e events.Entry) error {
	if err := errors.Join(of.Check(), journalcheck.Entry(e)); err != nil {
		return fmt.Errorf("save to the storage of %s: %w", of, err)
	}
	if by != journal.WrittenByActor && by != journal.WrittenByObserver {
		return fmt.Errorf("save to the storage of %s: nobody writes as %q", of, by)
	}
	return p.asked(ctx, of, func(s *storage) error {
		key := journalcheck.TagsKey(e.Tags)
		away := p.j.away(of, "save "+key)
		if away && p.j.opts.chance("storage stored", of.String(), key, s.tries[of.String()+" save "+key]) < 0.5 {
			return ErrStorageAway
		}
		if s.entries[of.String()] == nil {
			s.entries[of.String()] = map[string]events.Entry{}
		}
		s.entries[of.String()][key] = events.Entry{Tags: slices.Clone(e.Tags), Value: e.Value}
		if away {
			return ErrStorageAway
		}
		return nil
	})
}

// StoredEntry returns the entry with exactly these tags, or ErrNotFound.
func (p *Process) StoredEntry(ctx context.Context, of journal.StorageOf, tags []string) (found events.Entry, err error) {
	err = p.asked(ctx, of, func(s *storage) error {
		key := journalcheck.TagsKey(tags)
		if p.j.away(of, "read "+key) {
			return ErrStorageAway
		}
		e, ok := s.entries[of.String()][key]
		if !ok {
			return journal.ErrNotFound
		}
		found = events.Entry{Tags: slices.Clone(e.Tags), Value: e.Value}
		return nil
	})
	return found, err
}

// FindEntries returns entries that match.
func (p *Process) FindEntries(ctx context.Context, of journal.StorageOf, q journal.StorageQuery) (found journal.Found, err error) {
	err = p.asked(ctx, of, func(s *storage) error {
		if p.j.away(of, "find "+journalcheck.TagsKey(q.Tags)+q.Value) {
			return ErrStorageAway
		}
		all := []events.Entry{}
		for _, e := range s.entries[of.String()] {
			if q.Match(e) {
				all = append(all, events.Entry{Tags: slices.Clone(e.Tags), Value: e.Value})
			}
		}
		slices.SortFunc(all, func(a, b events.Entry) int { return journalcheck.CompareTags(a.Tags, b.Tags) })
		found = journal.Found{Entries: journalcheck.TakeEntries(all, q), Total: len(all)}
		return nil
	})
	return found, err
}

// DeleteEntry removes an entry.
func (p *Process) DeleteEntry(ctx context.Context, of journal.StorageOf, tags []string) error {
	if err := journalcheck.Tags(tags); err != nil {
		return fmt.Errorf("delete from the storage of %s: %w", of, err)
	}
	return p.asked(ctx, of, func(s *storage) error {
		key := journalcheck.TagsKey(tags)
		if p.j.away(of, "delete "+key) {
			return ErrStorageAway
		}
		if _, there := s.entries[of.String()][key]; !there {
			return journal.ErrNotFound
		}
		delete(s.entries[of.String()], key)
		return nil
	})
}

// StorageOf returns the agents that have storage.
func (p *Process) StorageOf(ctx context.Context) (all []journal.StorageOf, err error) {
	err = p.locked(func(s *stores) {
		for name := range s.storage.entries {
			namespace, agent, _ := strings.Cut(name, "/")
			all = append(all, journal.StorageOf{Namespace: namespace, Agent: agent})
		}
	})
	slices.SortFunc(all, func(a, b journal.StorageOf) int { return strings.Compare(a.String(), b.String()) })
	return all, errors.Join(err, ctx.Err())
}

// asked does something with the storage under the lock, unless the process is
// dead.
func (p *Process) asked(ctx context.Context, of journal.StorageOf, do func(*storage) error) error {
	err := errors.Join(of.Check(), ctx.Err())
	if err == nil {
		var failed error
		err = p.locked(func(s *stores) { failed = do(&s.storage) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		return fmt.Errorf("storage of %s: %w", of, err)
	}
	return nil
}

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
