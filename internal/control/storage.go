package control

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/journalcheck"
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
	if c.cfg.Storage == nil {
		return nil, noStorage()
	}
	all, err := c.cfg.Storage.StorageOf(ctx)
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

func noStorage() error {
	return refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "this gateway has no storage of agents")
}

// storageOf returns an agent's storage, and tags as the set that they are.
func (c *Controller) storageOf(ns, agent string, tags []string) (journal.StorageOf, []string, error) {
	ns, err := c.CheckNamespace(ns)
	if err != nil {
		return journal.StorageOf{}, nil, err
	}
	if c.cfg.Storage == nil {
		return journal.StorageOf{}, nil, noStorage()
	}
	if !events.ValidToken(agent) {
		return journal.StorageOf{}, nil, refusal.New(refusal.Invalid, refusal.CodeBadAgent, "%q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", agent)
	}
	return journal.StorageOf{Namespace: ns, Agent: agent}, reducer.NormalTags(tags), nil
}

// Stored returns entries of an agent's storage that have all of the tags and hold the value, those
// with the fewest tags first. A limit of 0 is [MaxEntries].
func (c *Controller) Stored(ctx context.Context, ns, agent string, q journal.StorageQuery) (journal.Found, error) {
	of, tags, err := c.storageOf(ns, agent, q.Tags)
	if err != nil {
		return journal.Found{}, err
	}
	if q.Limit < 0 || q.Limit > MaxEntries {
		return journal.Found{}, refusal.New(refusal.Invalid, refusal.CodeBadParameter, "limit: must be 1 to %d", MaxEntries)
	}
	if q.Limit == 0 {
		q.Limit = MaxEntries
	}
	q.Tags, q.MaxBytes = tags, MaxEntryBytes
	return c.cfg.Storage.FindEntries(ctx, of, q)
}

// StoredEntry returns the entry with exactly these tags. None is a CodeEntryNotFound.
func (c *Controller) StoredEntry(ctx context.Context, ns, agent string, tags []string) (events.Entry, error) {
	of, tags, err := c.entry(ns, agent, tags)
	if err != nil {
		return events.Entry{}, err
	}
	e, err := c.cfg.Storage.StoredEntry(ctx, of, tags)
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
	if err := journalcheck.Entry(e); err != nil {
		return events.Entry{}, refusal.New(refusal.Invalid, refusal.CodeBadEntry, "%s", err.Error())
	}
	return e, c.cfg.Storage.SaveEntry(ctx, of, journal.WrittenByActor, e)
}

// DeleteStored removes the entry with exactly these tags. None is a CodeEntryNotFound.
func (c *Controller) DeleteStored(ctx context.Context, ns, agent string, tags []string) error {
	of, tags, err := c.entry(ns, agent, tags)
	if err != nil {
		return err
	}
	return notStored(of, tags, c.cfg.Storage.DeleteEntry(ctx, of, tags))
}

// entry is storageOf for the tags of one entry.
func (c *Controller) entry(ns, agent string, tags []string) (journal.StorageOf, []string, error) {
	of, tags, err := c.storageOf(ns, agent, tags)
	if err == nil {
		err = journalcheck.Tags(tags)
		if err != nil {
			err = refusal.New(refusal.Invalid, refusal.CodeBadEntry, "tags: %s", err.Error())
		}
	}
	return of, tags, err
}

func notStored(of journal.StorageOf, tags []string, err error) error {
	if errors.Is(err, journal.ErrNotFound) {
		return refusal.Wrap(err, refusal.NotFound, refusal.CodeEntryNotFound, "the storage of %s has no entry with exactly the tags %q", of, tags)
	}
	return err
}
