package control

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/entrystore"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// MaxEntries and MaxEntryBytes bound what [Controller.Stored] returns: entries, and bytes of
// their JSON text.
const (
	MaxEntries    = 1000
	MaxEntryBytes = 4 << 20
)

// Storages returns the names of the namespace's agents that have storage, sorted.
func (c *Controller) Storages(ctx context.Context, ns string) ([]string, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return nil, err
	}
	all, err := c.storage.Owners(ctx)
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

// storageOf returns an agent's storage, and tags as the set that they are.
func (c *Controller) storageOf(ns, agent string, tags []string) (entrystore.Owner, []string, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return entrystore.Owner{}, nil, err
	}
	if !events.ValidToken(agent) {
		return entrystore.Owner{}, nil, refusal.New(refusal.Invalid, refusal.CodeBadAgent, "%q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", agent)
	}
	return entrystore.Owner{Namespace: ns, Agent: agent}, reducer.NormalTags(tags), nil
}

// Stored returns entries of an agent's storage that have all of the tags and hold the value, those
// with the fewest tags first. A limit of 0 is [MaxEntries].
func (c *Controller) Stored(ctx context.Context, ns, agent string, q entrystore.Query) (entrystore.Found, error) {
	of, tags, err := c.storageOf(ns, agent, q.Tags)
	if err != nil {
		return entrystore.Found{}, err
	}
	if q.Limit < 0 || q.Limit > MaxEntries {
		return entrystore.Found{}, refusal.New(refusal.Invalid, refusal.CodeBadParameter, "limit: must be 1 to %d", MaxEntries)
	}
	if q.Limit == 0 {
		q.Limit = MaxEntries
	}
	q.Tags, q.MaxBytes = tags, MaxEntryBytes
	return c.storage.Find(ctx, of, q)
}

// StoredEntry returns the entry with exactly these tags. None is a CodeEntryNotFound.
func (c *Controller) StoredEntry(ctx context.Context, ns, agent string, tags []string) (events.Entry, error) {
	of, tags, err := c.entry(ns, agent, tags)
	if err != nil {
		return events.Entry{}, err
	}
	e, err := c.storage.Get(ctx, of, tags)
	return e, notStored(of, tags, err)
}

// SaveStored puts an entry into an agent's storage and returns it with its tags as they are stored. It
// replaces one with the same tags.
func (c *Controller) SaveStored(ctx context.Context, ns, agent string, e events.Entry) (events.Entry, error) {
	of, tags, err := c.entry(ns, agent, e.Tags)
	if err != nil {
		return events.Entry{}, err
	}
	e.Tags = tags
	if err := entrystore.CheckEntry(e); err != nil {
		return events.Entry{}, refusal.New(refusal.Invalid, refusal.CodeBadEntry, "%s", err.Error())
	}
	return e, c.storage.Save(ctx, of, entrystore.Actor, e)
}

// DeleteStored removes the entry with exactly these tags. None is a CodeEntryNotFound.
func (c *Controller) DeleteStored(ctx context.Context, ns, agent string, tags []string) error {
	of, tags, err := c.entry(ns, agent, tags)
	if err != nil {
		return err
	}
	return notStored(of, tags, c.storage.Delete(ctx, of, tags))
}

// entry is storageOf for the tags of one entry.
func (c *Controller) entry(ns, agent string, tags []string) (entrystore.Owner, []string, error) {
	of, tags, err := c.storageOf(ns, agent, tags)
	if err == nil {
		err = entrystore.CheckTags(tags)
		if err != nil {
			err = refusal.New(refusal.Invalid, refusal.CodeBadEntry, "tags: %s", err.Error())
		}
	}
	return of, tags, err
}

func notStored(of entrystore.Owner, tags []string, err error) error {
	if errors.Is(err, journal.ErrNotFound) {
		return refusal.Wrap(err, refusal.NotFound, refusal.CodeEntryNotFound, "the storage of %s has no entry with exactly the tags %q", of, tags)
	}
	return err
}
