package natsbus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
)

// An agent's storage is two buckets, one for each writer. An entry lies under the
// key of its tags ([journalcheck.TagsKey]). In addition, each of its tags leads to it by
// a key `tag.<digest of the tag>.<key of the entry>`, so that a load reads only what
// has the tag. That is written first: a pointer to an entry that is not there is
// harmless, and the same save writes both again.
const (
	storagePrefix = "storage_"
	pagedPrefix   = "paged_"
	// agentMark parts namespace and agent: names have no upper case.
	agentMark = "_A_"
	tagKeys   = "tag."
)

var _ journal.Storage = (*Bus)(nil)

func storageBucket(of journal.StorageOf, by journal.Writer) string {
	prefix := storagePrefix
	if by == journal.WrittenByObserver {
		prefix = pagedPrefix
	}
	return prefix + of.Namespace + agentMark + of.Agent
}

// writers in the order in which their buckets are read.
var writers = []journal.Writer{journal.WrittenByActor, journal.WrittenByObserver}

func storageOfBucket(of journal.StorageOf, by journal.Writer) kv.Bucket {
	what := "what agent " + of.String() + " keeps"
	if by == journal.WrittenByObserver {
		what = "what was paged out of the memory of agent " + of.String()
	}
	return kv.Bucket{Name: storageBucket(of, by), About: what, Keys: ">"}
}

// tagKey is the part of a bucket's keys that leads from a tag to its entries.
func tagKey(tag string) string {
	sum := sha256.Sum256([]byte(tag))
	return tagKeys + hex.EncodeToString(sum[:16]) + "."
}

// storageError says whose storage it is and, where it is not there for this user,
// which command makes it.
func storageError(of journal.StorageOf, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, journal.ErrDenied) || errors.Is(err, journal.ErrNotReady) {
		return fmt.Errorf("storage of %s: the operator has to make it with `%s --storage %s`, and to give this user's role the permissions that the same prints with --print-permissions: %w",
			of, api.InitCommand, of, err)
	}
	return fmt.Errorf("storage of %s: %w", of, err)
}

// SaveEntry stores an entry in the writer's bucket, which is made if it is missing
// and the connection may.
func (b *Bus) SaveEntry(ctx context.Context, of journal.StorageOf, by journal.Writer, e events.Entry) error {
	if err := errors.Join(of.Check(), journalcheck.Entry(e)); err != nil {
		return fmt.Errorf("save to the storage of %s: %w", of, err)
	}
	if !slices.Contains(writers, by) {
		return fmt.Errorf("save to the storage of %s: nobody writes as %q", of, by)
	}
	return storageError(of, b.saveEntry(ctx, of, by, e))
}

func (b *Bus) saveEntry(ctx context.Context, of journal.StorageOf, by journal.Writer, e events.Entry) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	tags, err := json.Marshal(e.Tags)
	if err != nil {
		return err
	}
	bucket, key := storageOfBucket(of, by), journalcheck.TagsKey(e.Tags)
	create := func(ctx context.Context, bucket kv.Bucket) error {
		if err := b.roomFor(ctx, of); err != nil {
			return err
		}
		return b.createBucket(ctx, bucket)
	}
	for _, tag := range e.Tags {
		if _, err := b.putItem(ctx, bucket, kv.Item{Key: tagKey(tag) + key, Value: tags}, nil, create); err != nil {
			return err
		}
	}
	if _, err = b.putItem(ctx, bucket, kv.Item{Key: key, Value: body}, nil, create); err != nil {
		return err
	}
	return b.keepTags(ctx, bucket, e.Tags, tags)
}

// keepTags stores an entry's index keys again if a deletion removed them since they were
// written.
func (b *Bus) keepTags(ctx context.Context, bucket kv.Bucket, of []string, tags []byte) error {
	for _, tag := range of {
		it := kv.Item{Key: tagKey(tag) + journalcheck.TagsKey(of), Value: tags}
		_, err := b.Get(ctx, bucket, it.Key)
		if errors.Is(err, journal.ErrNotFound) {
			_, err = b.Put(ctx, bucket, it)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mostDeletions is how often a deletion begins again because the entry is being stored.
const mostDeletions = 5

// DeleteEntry removes an entry from both buckets. In each, the index keys go first and the entry
// last, if it is still the one that was read. A save writes in the opposite order and then looks
// whether its index keys are there. So whichever of the two is last finds what the other did.
func (b *Bus) DeleteEntry(ctx context.Context, of journal.StorageOf, tags []string) error {
	if err := errors.Join(of.Check(), journalcheck.Tags(tags)); err != nil {
		return fmt.Errorf("delete from the storage of %s: %w", of, err)
	}
	found := false
	for _, by := range writers {
		deleted, err := b.deleteEntry(ctx, storageOfBucket(of, by), tags)
		if err != nil {
			return storageError(of, err)
		}
		found = found || deleted
	}
	if !found {
		return journal.ErrNotFound
	}
	return nil
}

func (b *Bus) deleteEntry(ctx context.Context, bucket kv.Bucket, tags []string) (bool, error) {
	key := journalcheck.TagsKey(tags)
	list, err := json.Marshal(tags)
	if err != nil {
		return false, err
	}
	for range mostDeletions {
		it, err := b.Get(ctx, bucket, key)
		if errors.Is(buckets.OrNone(err), journal.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		for _, tag := range tags {
			index, err := b.Get(ctx, bucket, tagKey(tag)+key)
			if err == nil {
				err = b.Delete(ctx, bucket, index.Key, index.Revision)
			}
			if err != nil && !errors.Is(err, journal.ErrNotFound) && !errors.Is(err, journal.ErrConflict) {
				return false, err
			}
		}
		err = b.Delete(ctx, bucket, key, it.Revision)
		if !errors.Is(err, journal.ErrConflict) {
			return err == nil, err
		}
		if err := b.keepTags(ctx, bucket, tags, list); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("the entry is being stored all the time; try again: %w", journal.ErrConflict)
}

// roomFor reports whether storage may be made for one more agent. Those who may not
// list streams may make none either, and hear that from the server.
func (b *Bus) roomFor(ctx context.Context, of journal.StorageOf) error {
	all, err := b.StorageOf(ctx)
	switch {
	case errors.Is(err, journal.ErrDenied) || slices.Contains(all, of):
		return nil
	case err == nil && len(all) >= b.opts.MaxStorages:
		return fmt.Errorf("there is storage of %d agents, and none is made beyond that but by the operator: %w", len(all), journal.ErrNotReady)
	}
	return err
}

// StoredEntry returns the entry with exactly these tags, or ErrNotFound.
func (b *Bus) StoredEntry(ctx context.Context, of journal.StorageOf, tags []string) (events.Entry, error) {
	if err := of.Check(); err != nil {
		return events.Entry{}, err
	}
	e, err := b.storedEntry(ctx, of, tags)
	return e, storageError(of, err)
}

// storedEntry is the newer one of what both writers stored, by the server's clock.
func (b *Bus) storedEntry(ctx context.Context, of journal.StorageOf, tags []string) (events.Entry, error) {
	var newest kv.Item
	for _, by := range writers {
		it, err := b.Get(ctx, storageOfBucket(of, by), journalcheck.TagsKey(tags))
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

// FindEntries returns entries that match. By tags alone it reads those entries
// that it returns, and of the others the tags; by a value it reads all.
func (b *Bus) FindEntries(ctx context.Context, of journal.StorageOf, q journal.StorageQuery) (journal.Found, error) {
	if err := of.Check(); err != nil {
		return journal.Found{}, err
	}
	q = journalcheck.WithDefaults(q)
	find := b.findByTags
	if q.Value != "" || len(q.Tags) == 0 {
		find = b.findByValue
	}
	found, err := find(ctx, of, q)
	return found, storageError(of, err)
}

// findByTags looks the first of the tags up.
func (b *Bus) findByTags(ctx context.Context, of journal.StorageOf, q journal.StorageQuery) (journal.Found, error) {
	first := newFirst(q.Limit)
	for _, by := range writers {
		err := b.eachKey(ctx, storageOfBucket(of, by), tagKey(q.Tags[0])+"*", func(it kv.Item) {
			var tags []string
			if json.Unmarshal(it.Value, &tags) == nil && (journal.StorageQuery{Tags: q.Tags}).Match(events.Entry{Tags: tags}) {
				first.add(tags)
			}
		})
		if err != nil {
			return journal.Found{}, err
		}
	}
	found := journal.Found{Total: len(first.seen), Entries: []events.Entry{}}
	for _, tags := range first.tags {
		e, err := b.storedEntry(ctx, of, tags)
		if errors.Is(err, journal.ErrNotFound) {
			found.Total-- // it is about to be saved, or its writer died
			continue
		}
		if err != nil {
			return journal.Found{}, err
		}
		found.Entries = append(found.Entries, e)
		if taken := journalcheck.TakeEntries(found.Entries, q); len(taken) < len(found.Entries) {
			found.Entries = taken
			break
		}
	}
	return found, nil
}

// findByValue reads all entries, and of those that lie in both buckets the newer
// one. In addition to its result it holds a key for each entry.
func (b *Bus) findByValue(ctx context.Context, of journal.StorageOf, q journal.StorageQuery) (journal.Found, error) {
	paged := map[string]time.Time{}
	observer := storageOfBucket(of, journal.WrittenByObserver)
	err := b.eachKey(ctx, observer, "*", func(it kv.Item) { paged[it.Key] = it.Stored })
	if err != nil {
		return journal.Found{}, err
	}
	m := matches{q: q, first: newFirst(q.Limit), entries: map[string]events.Entry{}}
	err = b.eachKey(ctx, storageOfBucket(of, journal.WrittenByActor), "*", func(it kv.Item) {
		if at, both := paged[it.Key]; both && !at.Before(it.Stored) {
			return
		}
		paged[it.Key] = time.Time{}
		m.add(it.Value)
	})
	if err != nil {
		return journal.Found{}, err
	}
	err = b.eachKey(ctx, observer, "*", func(it kv.Item) {
		if at, known := paged[it.Key]; !known || !at.IsZero() {
			m.add(it.Value)
		}
	})
	return m.found(), err
}

// eachKey hands what is under the keys that match to take. A bucket that is not there has nothing.
func (b *Bus) eachKey(ctx context.Context, bucket kv.Bucket, keys string, take func(kv.Item)) error {
	for it, err := range b.Each(ctx, bucket, keys) {
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

// first holds the first sets of tags in the order of [journalcheck.CompareTags], and
// counts them all.
type first struct {
	limit int
	seen  map[string]struct{}
	tags  [][]string
}

func newFirst(limit int) *first { return &first{limit: limit, seen: map[string]struct{}{}} }

// add takes a set, and returns one that has to make way for it.
func (f *first) add(tags []string) (out []string) {
	key := journalcheck.TagsKey(tags)
	if _, known := f.seen[key]; known {
		return nil
	}
	f.seen[key] = struct{}{}
	at, _ := slices.BinarySearchFunc(f.tags, tags, journalcheck.CompareTags)
	if at >= f.limit {
		return tags
	}
	f.tags = slices.Insert(f.tags, at, tags)
	if len(f.tags) > f.limit {
		out, f.tags = f.tags[f.limit], f.tags[:f.limit]
	}
	return out
}

type matches struct {
	q       journal.StorageQuery
	first   *first
	entries map[string]events.Entry
}

func (m *matches) add(body []byte) {
	var e events.Entry
	if json.Unmarshal(body, &e) != nil || !m.q.Match(e) {
		return
	}
	m.entries[journalcheck.TagsKey(e.Tags)] = e
	if out := m.first.add(e.Tags); out != nil {
		delete(m.entries, journalcheck.TagsKey(out))
	}
}

func (m *matches) found() journal.Found {
	all := make([]events.Entry, 0, len(m.first.tags))
	for _, tags := range m.first.tags {
		all = append(all, m.entries[journalcheck.TagsKey(tags)])
	}
	return journal.Found{Entries: journalcheck.TakeEntries(all, m.q), Total: len(m.first.seen)}
}

func (o *InitOptions) initStorage(ctx context.Context, js jetstream.JetStream) error {
	for _, of := range o.Storage {
		for _, by := range writers {
			bucket := storageOfBucket(of, by)
			if _, err := putStream(ctx, js, bucketStream(bucket, o.Replicas)); err != nil {
				return fmt.Errorf("bucket %s: %w", bucket.Name, err)
			}
		}
	}
	return nil
}

// StorageOf returns the agents that have storage, sorted by their names.
func (b *Bus) StorageOf(ctx context.Context) ([]journal.StorageOf, error) {
	names, err := b.StreamNames(ctx)
	if err != nil {
		return nil, fmt.Errorf("list storage: %w", err)
	}
	return storageIn(names), nil
}

func storageIn(streams []string) []journal.StorageOf {
	var all []journal.StorageOf
	for _, name := range streams {
		for _, prefix := range []string{storagePrefix, pagedPrefix} {
			rest, ok := strings.CutPrefix(name, kvStreamPrefix+prefix)
			namespace, agent, parted := strings.Cut(rest, agentMark)
			of := journal.StorageOf{Namespace: namespace, Agent: agent}
			if ok && parted && of.Check() == nil {
				all = append(all, of)
			}
		}
	}
	slices.SortFunc(all, func(a, b journal.StorageOf) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// checkStorage says whose storage there is, where the user may see it. Of storage
// that nobody has used nothing is to be said.
func (e *examiner) checkStorage(ctx context.Context) {
	all, err := e.bus.StorageOf(ctx)
	if err != nil {
		return // who may not list buckets uses them without
	}
	for _, of := range all {
		e.add(Good, "", "storage of %s", of)
	}
}

// UseStorage allows to read the storage of an agent, and to write to it as the
// writer.
func (g *Grants) UseStorage(of journal.StorageOf, by journal.Writer) {
	for _, w := range writers {
		g.ReadBucket(storageOfBucket(of, w))
	}
	g.WriteKeys(storageOfBucket(of, by), ">")
}

func (b *Bus) createPool(ctx context.Context, pool string) error {
	return errors.Join(
		b.createBucket(ctx, buckets.Tools(pool)),
		b.createStore(ctx, resultsConfig(pool, b.Replicas)),
	)
}
