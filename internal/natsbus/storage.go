package natsbus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An agent's storage is two buckets, one for each writer. An entry lies under the
// key of its tags ([journalcheck.TagsKey]). Beside it, each of its tags leads to it by
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
	bucket, key := kvSubjectPrefix+storageBucket(of, by)+".", journalcheck.TagsKey(e.Tags)
	create := func() error {
		if err := b.roomFor(ctx, of); err != nil {
			return err
		}
		return b.createBucket(ctx, storageOfBucket(of, by))
	}
	for _, tag := range e.Tags {
		if _, err := b.putMsg(ctx, &nats.Msg{Subject: bucket + tagKey(tag) + key, Data: tags}, create); err != nil {
			return err
		}
	}
	if _, err = b.putMsg(ctx, &nats.Msg{Subject: bucket + key, Data: body}, create); err != nil {
		return err
	}
	return b.keepTags(ctx, bucket, e.Tags, tags)
}

// keepTags stores an entry's index keys again if a deletion removed them since they were
// written.
func (b *Bus) keepTags(ctx context.Context, bucket string, of []string, tags []byte) error {
	key := journalcheck.TagsKey(of)
	for _, tag := range of {
		subject := bucket + tagKey(tag) + key
		rec, err := b.HeadOn(ctx, streamOf(bucket), subject)
		if errors.Is(err, journal.ErrNotFound) || err == nil && len(rec.Body) == 0 {
			_, err = b.store(ctx, &nats.Msg{Subject: subject, Data: tags})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// streamOf is the stream of the bucket whose keys begin with the subject.
func streamOf(bucket string) string {
	return kvStreamPrefix + strings.TrimSuffix(strings.TrimPrefix(bucket, kvSubjectPrefix), ".")
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
		deleted, err := b.deleteEntry(ctx, storageBucket(of, by), tags)
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

func (b *Bus) deleteEntry(ctx context.Context, bucket string, tags []string) (bool, error) {
	if there, err := b.isThere(ctx, bucket); err != nil || !there {
		return false, err
	}
	prefix, key := kvSubjectPrefix+bucket+".", journalcheck.TagsKey(tags)
	list, err := json.Marshal(tags)
	if err != nil {
		return false, err
	}
	for range mostDeletions {
		rec, err := b.HeadOn(ctx, kvStreamPrefix+bucket, prefix+key)
		if errors.Is(err, journal.ErrNotFound) || b.removed(bucket, err) || err == nil && len(rec.Body) == 0 {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		for _, tag := range tags {
			if err := b.deleteKey(ctx, bucket, prefix+tagKey(tag)+key, 0); err != nil && !errors.Is(err, journal.ErrConflict) {
				return false, err
			}
		}
		err = b.deleteKey(ctx, bucket, prefix+key, rec.Seq)
		if !errors.Is(err, journal.ErrConflict) {
			return err == nil, err
		}
		if err := b.keepTags(ctx, prefix, tags, list); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("the entry is being stored all the time; try again: %w", journal.ErrConflict)
}

// deleteKey stores the mark by which a key of a bucket is deleted, if the key's last message is
// still this one; 0: the one that it has now.
func (b *Bus) deleteKey(ctx context.Context, bucket, subject string, seq uint64) error {
	if seq == 0 {
		rec, err := b.HeadOn(ctx, kvStreamPrefix+bucket, subject)
		if errors.Is(err, journal.ErrNotFound) || err == nil && len(rec.Body) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		seq = rec.Seq
	}
	msg := nats.NewMsg(subject)
	msg.Header.Set(kvOperation, "DEL")
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(seq, 10))
	_, err := b.store(ctx, msg)
	return err
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
	var newest journal.Record
	for _, by := range writers {
		bucket := storageBucket(of, by)
		there, err := b.isThere(ctx, bucket)
		if err != nil {
			return events.Entry{}, err
		}
		if !there {
			continue
		}
		rec, err := b.HeadOn(ctx, kvStreamPrefix+bucket, kvSubjectPrefix+bucket+"."+journalcheck.TagsKey(tags))
		if errors.Is(err, journal.ErrNotFound) || b.removed(bucket, err) {
			continue
		}
		if err != nil {
			return events.Entry{}, err
		}
		if len(rec.Body) > 0 && !rec.Stored.Before(newest.Stored) {
			newest = rec
		}
	}
	if newest.Body == nil {
		return events.Entry{}, journal.ErrNotFound
	}
	var e events.Entry
	return e, json.Unmarshal(newest.Body, &e)
}

// isThere reports whether anybody has made a bucket. To read one that is not there
// takes its time, since a server that nobody answers for may be about to start.
func (b *Bus) isThere(ctx context.Context, bucket string) (bool, error) {
	if _, seen := b.there.Load(bucket); seen {
		return true, nil
	}
	_, err := b.Stream(ctx, kvStreamPrefix+bucket)
	if errors.Is(err, journal.ErrNotReady) && !errors.Is(err, nats.ErrNoResponders) {
		return false, nil
	}
	if err == nil {
		b.there.Store(bucket, true)
	}
	return err == nil, err
}

// removed reports whether an error says that a bucket that was there is not any
// more, and forgets it.
func (b *Bus) removed(bucket string, err error) bool {
	gone := errors.Is(err, journal.ErrNotReady) && !errors.Is(err, nats.ErrNoResponders)
	if gone {
		b.there.Delete(bucket)
	}
	return gone
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
		bucket := storageBucket(of, by)
		err := b.eachKey(ctx, bucket, tagKey(q.Tags[0])+"*", func(_ string, rec journal.Record) {
			var tags []string
			if json.Unmarshal(rec.Body, &tags) == nil && (journal.StorageQuery{Tags: q.Tags}).Match(events.Entry{Tags: tags}) {
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
// one. Beside what it returns it holds a key for each entry.
func (b *Bus) findByValue(ctx context.Context, of journal.StorageOf, q journal.StorageQuery) (journal.Found, error) {
	paged := map[string]time.Time{}
	observer := storageBucket(of, journal.WrittenByObserver)
	err := b.eachKey(ctx, observer, "*", func(key string, rec journal.Record) { paged[key] = rec.Stored })
	if err != nil {
		return journal.Found{}, err
	}
	m := matches{q: q, first: newFirst(q.Limit), entries: map[string]events.Entry{}}
	err = b.eachKey(ctx, storageBucket(of, journal.WrittenByActor), "*", func(key string, rec journal.Record) {
		if at, both := paged[key]; both && !at.Before(rec.Stored) {
			return
		}
		paged[key] = time.Time{}
		m.add(rec.Body)
	})
	if err != nil {
		return journal.Found{}, err
	}
	err = b.eachKey(ctx, observer, "*", func(key string, rec journal.Record) {
		if at, known := paged[key]; !known || !at.IsZero() {
			m.add(rec.Body)
		}
	})
	return m.found(), err
}

// eachKey hands the messages of a bucket on the keys that match to take, in the
// order in which they were stored. A bucket that is not there has none.
func (b *Bus) eachKey(ctx context.Context, bucket, keys string, take func(key string, rec journal.Record)) error {
	there, err := b.isThere(ctx, bucket)
	if err != nil || !there {
		return err
	}
	stream, prefix := kvStreamPrefix+bucket, kvSubjectPrefix+bucket+"."
	upTo, err := b.LeaderEnd(ctx, stream, prefix+keys)
	if errors.Is(err, journal.ErrNotFound) || b.removed(bucket, err) {
		return nil
	}
	if err != nil {
		return err
	}
	for rec, err := range b.RecordsOn(ctx, stream, prefix+keys, 0, upTo) {
		if b.removed(bucket, err) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(rec.Body) > 0 { // else other tools deleted the key
			take(strings.TrimPrefix(rec.Subject, prefix), rec)
		}
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
		stream := kvStreamPrefix + storageBucket(of, w)
		g.read(stream)
		g.api("STREAM.MSG.GET." + stream)
	}
	g.publish[kvSubjectPrefix+storageBucket(of, by)+".>"] = true
}

func (b *Bus) createPool(ctx context.Context, pool string) error {
	return errors.Join(
		b.createBucket(ctx, buckets.Tools(pool)),
		b.createStore(ctx, resultsConfig(pool, b.Replicas)),
	)
}
