// Package entrystore keeps what agents store beyond their runs, by agent.
//
// An agent's storage is two buckets, one for each writer, since a user who may write one key of a bucket
// can empty all of it. An entry lies under the key of its tags ([tagsKey]). In addition, each of
// its tags leads to it by a key `tag.<digest of the tag>.<key of the entry>`, so that a load reads only
// what has the tag. That is written first: a pointer to an entry that is not there is harmless, and the
// same save writes both again.
package entrystore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Owner says whose storage it is: an agent's in a namespace, shared by all of its runs.
type Owner struct {
	Namespace string
	Agent     string
}

// ParseOwner reads NAMESPACE/AGENT.
func ParseOwner(text string) (Owner, error) {
	namespace, agent, _ := strings.Cut(text, "/")
	o := Owner{Namespace: namespace, Agent: agent}
	return o, o.Check()
}

// String returns NAMESPACE/AGENT.
func (o Owner) String() string { return o.Namespace + "/" + o.Agent }

// Check reports whether the names can be names.
func (o Owner) Check() error {
	if !events.ValidToken(o.Namespace) || !events.ValidToken(o.Agent) {
		return fmt.Errorf("storage %q is not NAMESPACE/AGENT, each of [a-z0-9][a-z0-9_-]{0,62}", o.String())
	}
	return nil
}

// Writer says who writes to storage.
type Writer string

// The writers: actors store what models save, observers what is paged out of working memory.
const (
	Actor    Writer = "actor"
	Observer Writer = "observer"
)

// writers in the order in which their buckets are read.
var writers = []Writer{Actor, Observer}

const (
	storedPrefix = "storage_"
	pagedPrefix  = "paged_"
	// agentMark parts namespace and agent: names have no upper case.
	agentMark = "_A_"
)

// Bucket is what a writer stores for an agent.
func Bucket(of Owner, by Writer) kv.Bucket {
	prefix, what := storedPrefix, "what agent "+of.String()+" keeps"
	if by == Observer {
		prefix, what = pagedPrefix, "what was paged out of the memory of agent "+of.String()
	}
	return kv.Bucket{Name: prefix + of.Namespace + agentMark + of.Agent, About: what, Keys: ">"}
}

// Buckets are those of an agent's storage.
func Buckets(of Owner) []kv.Bucket { return []kv.Bucket{Bucket(of, Actor), Bucket(of, Observer)} }

// ownerOf is whose bucket has the name.
func ownerOf(name string) (of Owner, ok bool) {
	rest, known := strings.CutPrefix(name, storedPrefix)
	if !known {
		rest, known = strings.CutPrefix(name, pagedPrefix)
	}
	of.Namespace, of.Agent, _ = strings.Cut(rest, agentMark)
	return of, known && of.Check() == nil
}

// mostStorages bounds the agents for which processes make storage, since anybody who may start a run can
// name a new agent. What the operator makes has no bound.
const mostStorages = 1000

// Store keeps entries by agent. An entry is known by its set of tags: storing under the same set again
// replaces the value of any writer, and reading returns the value that was stored last. Make it with
// [New]. It is safe for concurrent use.
//
// Tags come and go as a set: sorted, each once, without spaces, at most [MaxTags] of at most
// [MaxTagBytes]. A value has at most [MaxValueBytes] as JSON text.
//
// Errors: [journal.ErrDenied] or [journal.ErrNotReady] where the storage is not there and the caller
// may not make it, with the command that does in words; [journal.ErrTooLarge]; the bus's.
type Store struct {
	kv   kv.Store
	most int
}

// New returns the storage on a bus.
func New(store kv.Store) *Store { return &Store{kv: store, most: mostStorages} }

// explain says whose storage it is and, where it is not there for this user,
// which command makes it.
func explain(of Owner, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, journal.ErrDenied) || errors.Is(err, journal.ErrNotReady) {
		return fmt.Errorf("storage of %s: the operator has to make it with `moorebus init --storage %s`, and to give this user's role the permissions that the same prints with --print-permissions: %w",
			of, of, err)
	}
	return fmt.Errorf("storage of %s: %w", of, err)
}

// Save stores an entry in the writer's bucket, which is made if it is missing
// and the connection may.
func (s *Store) Save(ctx context.Context, of Owner, by Writer, e events.Entry) error {
	if err := errors.Join(of.Check(), CheckEntry(e)); err != nil {
		return fmt.Errorf("save to the storage of %s: %w", of, err)
	}
	if !slices.Contains(writers, by) {
		return fmt.Errorf("save to the storage of %s: nobody writes as %q", of, by)
	}
	return explain(of, s.save(ctx, of, by, e))
}

func (s *Store) save(ctx context.Context, of Owner, by Writer, e events.Entry) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	tags, err := json.Marshal(e.Tags)
	if err != nil {
		return err
	}
	bucket, key := Bucket(of, by), tagsKey(e.Tags)
	if err := s.roomFor(ctx, of, bucket, key); err != nil {
		return err
	}
	for _, tag := range e.Tags {
		if _, err := s.kv.Put(ctx, bucket, kv.Item{Key: tagKey(tag) + key, Value: tags}); err != nil {
			return err
		}
	}
	if _, err = s.kv.Put(ctx, bucket, kv.Item{Key: key, Value: body}); err != nil {
		return err
	}
	return s.keepTags(ctx, bucket, e.Tags, tags)
}

// keepTags stores an entry's index keys again if a deletion removed them since they were
// written.
func (s *Store) keepTags(ctx context.Context, bucket kv.Bucket, of []string, tags []byte) error {
	for _, tag := range of {
		it := kv.Item{Key: tagKey(tag) + tagsKey(of), Value: tags}
		_, err := s.kv.Get(ctx, bucket, it.Key)
		if errors.Is(err, journal.ErrNotFound) {
			_, err = s.kv.Put(ctx, bucket, it)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mostDeletions is how often a deletion begins again because the entry is being stored.
const mostDeletions = 5

// Delete removes the entry with exactly these tags from the buckets of all writers, or returns
// [journal.ErrNotFound]. An entry that is being stored meanwhile is kept. In each bucket, the index keys
// go first. The entry goes last, if it is still the one that was read. A save writes in the opposite order and then looks
// whether its index keys are there. So whichever of the two is last finds what the other did.
func (s *Store) Delete(ctx context.Context, of Owner, tags []string) error {
	if err := errors.Join(of.Check(), CheckTags(tags)); err != nil {
		return fmt.Errorf("delete from the storage of %s: %w", of, err)
	}
	found := false
	for _, by := range writers {
		deleted, err := s.delete(ctx, Bucket(of, by), tags)
		if err != nil {
			return explain(of, err)
		}
		found = found || deleted
	}
	if !found {
		return journal.ErrNotFound
	}
	return nil
}

func (s *Store) delete(ctx context.Context, bucket kv.Bucket, tags []string) (bool, error) {
	key := tagsKey(tags)
	list, err := json.Marshal(tags)
	if err != nil {
		return false, err
	}
	for range mostDeletions {
		it, err := s.kv.Get(ctx, bucket, key)
		if errors.Is(buckets.OrNone(err), journal.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		for _, tag := range tags {
			index, err := s.kv.Get(ctx, bucket, tagKey(tag)+key)
			if err == nil {
				err = s.kv.Delete(ctx, bucket, index.Key, index.Revision)
			}
			if err != nil && !errors.Is(err, journal.ErrNotFound) && !errors.Is(err, journal.ErrConflict) {
				return false, err
			}
		}
		err = s.kv.Delete(ctx, bucket, key, it.Revision)
		if !errors.Is(err, journal.ErrConflict) {
			return err == nil, err
		}
		if err := s.keepTags(ctx, bucket, tags, list); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("the entry is being stored all the time; try again: %w", journal.ErrConflict)
}

// roomFor reports whether an entry may be stored in a bucket: one that is missing may be made only while
// few agents have storage. Those who may not list buckets may make none either, and hear that from the
// server.
func (s *Store) roomFor(ctx context.Context, of Owner, bucket kv.Bucket, key string) error {
	if _, err := s.kv.Get(ctx, bucket, key); !errors.Is(err, buckets.ErrMissing) {
		return nil // of any other error the write tells
	}
	all, err := s.Owners(ctx)
	switch {
	case errors.Is(err, journal.ErrDenied) || slices.Contains(all, of):
	case err == nil && len(all) >= s.most:
		return fmt.Errorf("there is storage of %d agents, and none is made beyond that but by the operator: %w", len(all), journal.ErrNotReady)
	case err != nil:
		return err
	}
	return nil
}

// Owners returns the agents that have storage, sorted by their names.
func (s *Store) Owners(ctx context.Context) ([]Owner, error) {
	names, err := s.kv.Names(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list storage: %w", err)
	}
	var all []Owner
	for _, name := range names {
		if of, ok := ownerOf(name); ok {
			all = append(all, of)
		}
	}
	slices.SortFunc(all, func(a, b Owner) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all), nil
}

// Get returns the entry with exactly these tags, or [journal.ErrNotFound].
func (s *Store) Get(ctx context.Context, of Owner, tags []string) (events.Entry, error) {
	if err := of.Check(); err != nil {
		return events.Entry{}, err
	}
	e, err := s.get(ctx, of, tags)
	return e, explain(of, err)
}

// get is the newer one of what both writers stored, by the server's clock.
func (s *Store) get(ctx context.Context, of Owner, tags []string) (events.Entry, error) {
	var newest kv.Item
	for _, by := range writers {
		it, err := s.kv.Get(ctx, Bucket(of, by), tagsKey(tags))
		if errors.Is(buckets.OrNone(err), journal.ErrNotFound) {
			continue
		}
		if err != nil {
			return events.Entry{}, err
		}
		if !it.Stored.Before(newest.Stored) {
			newest = it
		}
	}
	if newest.Value == nil {
		return events.Entry{}, journal.ErrNotFound
	}
	var e events.Entry
	return e, json.Unmarshal(newest.Value, &e)
}

// Find returns entries that match, those with the fewest tags first, then by their tags. So an entry
// with exactly the query's tags is the first. Of what is being stored meanwhile it may see some. By tags alone it reads those entries
// that it returns, and of the others the tags; by a value it reads all.
func (s *Store) Find(ctx context.Context, of Owner, q Query) (Found, error) {
	if err := of.Check(); err != nil {
		return Found{}, err
	}
	q = q.withDefaults()
	find := s.findByTags
	if q.Value != "" || len(q.Tags) == 0 {
		find = s.findByValue
	}
	found, err := find(ctx, of, q)
	return found, explain(of, err)
}

// findByTags looks the first of the tags up.
func (s *Store) findByTags(ctx context.Context, of Owner, q Query) (Found, error) {
	first := newFirst(q.Limit)
	for _, by := range writers {
		err := s.eachKey(ctx, Bucket(of, by), tagKey(q.Tags[0])+"*", func(it kv.Item) {
			var tags []string
			if json.Unmarshal(it.Value, &tags) == nil && (Query{Tags: q.Tags}).Match(events.Entry{Tags: tags}) {
				first.add(tags)
			}
		})
		if err != nil {
			return Found{}, err
		}
	}
	found := Found{Total: len(first.seen), Entries: []events.Entry{}}
	for _, tags := range first.tags {
		e, err := s.get(ctx, of, tags)
		if errors.Is(err, journal.ErrNotFound) {
			found.Total-- // it is about to be saved, or its writer died
			continue
		}
		if err != nil {
			return Found{}, err
		}
		found.Entries = append(found.Entries, e)
		if taken := takeFirst(found.Entries, q); len(taken) < len(found.Entries) {
			found.Entries = taken
			break
		}
	}
	return found, nil
}

// findByValue reads all entries, and of those that lie in both buckets the newer
// one. In addition to its result it holds a key for each entry.
func (s *Store) findByValue(ctx context.Context, of Owner, q Query) (Found, error) {
	paged := map[string]time.Time{}
	observer := Bucket(of, Observer)
	err := s.eachKey(ctx, observer, "*", func(it kv.Item) { paged[it.Key] = it.Stored })
	if err != nil {
		return Found{}, err
	}
	m := matches{q: q, first: newFirst(q.Limit), entries: map[string]events.Entry{}}
	err = s.eachKey(ctx, Bucket(of, Actor), "*", func(it kv.Item) {
		if at, both := paged[it.Key]; both && !at.Before(it.Stored) {
			return
		}
		paged[it.Key] = time.Time{}
		m.add(it.Value)
	})
	if err != nil {
		return Found{}, err
	}
	err = s.eachKey(ctx, observer, "*", func(it kv.Item) {
		if at, known := paged[it.Key]; !known || !at.IsZero() {
			m.add(it.Value)
		}
	})
	return m.found(), err
}

// eachKey hands what is under the keys that match to take. A bucket that is not there has nothing.
func (s *Store) eachKey(ctx context.Context, bucket kv.Bucket, keys string, take func(kv.Item)) error {
	for it, err := range s.kv.Each(ctx, bucket, keys) {
		if errors.Is(err, buckets.ErrMissing) {
			return nil
		}
		if err != nil {
			return err
		}
		take(it)
	}
	return nil
}
