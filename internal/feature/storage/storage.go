// Package storage shows and changes the storage of agents. Actors and observers write to it too, by package
// entrystore, which they know of it alone.
package storage

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Feature returns the feature.
func Feature() feature.Feature {
	return feature.Feature{Row: entrystore.Row(), Commands: []feature.Command{command}, New: func(c *control.Controller) feature.Part {
		return feature.Part{Rows: New(c).rows()}
	}}
}

// MaxEntries and maxEntryBytes bound what is found: entries, and bytes of their JSON text.
const (
	MaxEntries    = 1000
	maxEntryBytes = 4 << 20
)

// Storage is the storage of agents.
type Storage struct {
	c     *control.Controller
	store *entrystore.Store
}

// New returns the storage on the bus of a controller.
func New(c *control.Controller) *Storage { return &Storage{c, entrystore.New(c.Config().KV)} }

// agents returns the names of the namespace's agents that have storage, sorted.
func (s *Storage) agents(ctx context.Context, ns string) ([]string, error) {
	ns, err := s.c.CheckNamespace(ns)
	if err != nil {
		return nil, err
	}
	all, err := s.store.Owners(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, of := range all {
		if of.Namespace == ns {
			names = append(names, of.Agent)
		}
	}
	return names, nil
}

// of returns whose storage a request is about.
func (s *Storage) of(ns, agent string) (entrystore.Owner, error) {
	ns, err := s.c.CheckNamespace(ns)
	if err == nil && !events.ValidToken(agent) {
		err = refusal.New(refusal.Invalid, refusal.CodeBadAgent, "%q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", agent)
	}
	return entrystore.Owner{Namespace: ns, Agent: agent}, err
}

// find returns entries of an agent's storage that have all of the tags and hold the value, those with the
// fewest tags first. A limit of 0 is [MaxEntries].
func (s *Storage) find(ctx context.Context, ns, agent string, q entrystore.Query) (entrystore.Found, error) {
	of, err := s.of(ns, agent)
	if err != nil {
		return entrystore.Found{}, err
	}
	if q.Limit < 0 || q.Limit > MaxEntries {
		return entrystore.Found{}, refusal.New(refusal.Invalid, refusal.CodeBadParameter, "limit: must be 1 to %d", MaxEntries)
	}
	if q.Limit == 0 {
		q.Limit = MaxEntries
	}
	q.Tags, q.MaxBytes = reducer.NormalTags(q.Tags), maxEntryBytes
	return s.store.Find(ctx, of, q)
}

// entry returns whose storage has an entry, and its tags as they are stored.
func (s *Storage) entry(ns, agent string, tags []string) (entrystore.Owner, []string, error) {
	of, err := s.of(ns, agent)
	if err != nil {
		return of, nil, err
	}
	tags = reducer.NormalTags(tags)
	if err := entrystore.CheckTags(tags); err != nil {
		return of, nil, refusal.New(refusal.Invalid, entrystore.CodeBadEntry, "tags: %s", err.Error())
	}
	return of, tags, nil
}

// get returns the entry with exactly these tags.
func (s *Storage) get(ctx context.Context, ns, agent string, tags []string) (events.Entry, error) {
	of, tags, err := s.entry(ns, agent, tags)
	if err != nil {
		return events.Entry{}, err
	}
	e, err := s.store.Get(ctx, of, tags)
	return e, notStored(of, tags, err)
}

// put stores an entry and returns it with its tags as they are stored. It replaces one with the same tags.
func (s *Storage) put(ctx context.Context, ns, agent string, e events.Entry) (events.Entry, error) {
	of, tags, err := s.entry(ns, agent, e.Tags)
	if err != nil {
		return events.Entry{}, err
	}
	e.Tags = tags
	if err := entrystore.CheckEntry(e); err != nil {
		return events.Entry{}, refusal.New(refusal.Invalid, entrystore.CodeBadEntry, "%s", err.Error())
	}
	return e, s.store.Save(ctx, of, entrystore.Actor, e)
}

// remove removes the entry with exactly these tags.
func (s *Storage) remove(ctx context.Context, ns, agent string, tags []string) error {
	of, tags, err := s.entry(ns, agent, tags)
	if err != nil {
		return err
	}
	return notStored(of, tags, s.store.Delete(ctx, of, tags))
}

func notStored(of entrystore.Owner, tags []string, err error) error {
	if errors.Is(err, journal.ErrNotFound) {
		return refusal.Wrap(err, refusal.NotFound, entrystore.CodeEntryNotFound, "the storage of %s has no entry with exactly the tags %q", of, tags)
	}
	return err
}
