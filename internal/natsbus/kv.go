package natsbus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// kvOperation marks a message of a bucket that deletes a key.
	kvOperation = "KV-Operation"
	// maxLast is how many keys a server reads at once.
	maxLast = 1024
)

var _ kv.Store = (*Bus)(nil)

// kvSubject is the subject of a bucket's key, or of keys that match a pattern.
func kvSubject(bucket, key string) string { return kvSubjectPrefix + bucket + "." + key }

// Get returns what is kept under a key, as the leader has it where that may be asked.
func (b *Bus) Get(ctx context.Context, of kv.Bucket, key string) (it kv.Item, err error) {
	if err := journalcheck.Key(key); err != nil {
		return it, err
	}
	err = b.reading(ctx, of.Name, func(stream string) error {
		it, err = b.item(ctx, of, stream, key)
		return err
	})
	if err == nil && len(it.Value) == 0 {
		return kv.Item{Revision: it.Revision}, journal.ErrNotFound
	}
	return it, err
}

// item returns the last message of a key, which has no value if the key was deleted.
func (b *Bus) item(ctx context.Context, of kv.Bucket, stream, key string) (kv.Item, error) {
	subject := kvSubject(of.Name, key)
	if !of.AnyReplica {
		rec, err := b.HeadOn(ctx, stream, subject)
		return kv.Item{Key: key, Value: rec.Body, Revision: rec.Seq, Stored: rec.Stored}, err
	}
	for try := 1; ; try++ {
		msg, err := b.LastMessage(ctx, stream, subject)
		if errors.Is(err, journal.ErrNotFound) {
			// A replica may not have yet what was stored a moment ago.
			if lag := b.lacksNothing(ctx, stream, subject, nil); lag != nil {
				err = lag
			}
		}
		if errors.Is(err, api.ErrLag) && try < api.SilentPages && retry.Wait(ctx, api.ReadRetry) {
			continue
		}
		if err != nil {
			return kv.Item{}, err
		}
		rec, err := api.RecordOf(msg)
		return itemOf(key, msg, rec), err
	}
}

func itemOf(key string, msg *nats.Msg, rec journal.Record) kv.Item {
	it := kv.Item{Key: key, Value: rec.Body, Revision: rec.Seq, Stored: rec.Stored}
	if api.Header(msg, kvOperation) != "" {
		it.Value = nil
	}
	for name := range msg.Header {
		if !strings.HasPrefix(name, "Nats-") {
			if it.Header == nil {
				it.Header = map[string]string{}
			}
			it.Header[name] = api.Header(msg, name)
		}
	}
	return it
}

// Put keeps a value.
func (b *Bus) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	return b.putItem(ctx, of, it, nil, b.createBucket)
}

// Update keeps a value if the key has the revision. The mark that a deletion left is nothing, too.
func (b *Bus) Update(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	revision, err := b.putItem(ctx, of, it, &it.Revision, b.createBucket)
	if it.Revision > 0 || !errors.Is(err, journal.ErrConflict) {
		return revision, err
	}
	mark, asked := b.item(ctx, of, kvStreamPrefix+of.Name, it.Key)
	if asked != nil || len(mark.Value) > 0 {
		return 0, err
	}
	return b.putItem(ctx, of, it, &mark.Revision, b.createBucket)
}

// putItem stores an item, under the condition that its key has a revision, if that is given. create
// makes a bucket that is missing.
func (b *Bus) putItem(ctx context.Context, of kv.Bucket, it kv.Item, revision *uint64, create func(context.Context, kv.Bucket) error) (uint64, error) {
	if err := journalcheck.Key(it.Key); err != nil {
		return 0, err
	}
	msg := &nats.Msg{Subject: kvSubject(of.Name, it.Key), Data: it.Value, Header: nats.Header{}}
	for name, value := range it.Header {
		msg.Header[name] = []string{value}
	}
	if it.Lifetime > 0 {
		msg.Header.Set(headerTTL, it.Lifetime.String())
	}
	if revision != nil {
		msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(*revision, 10))
	}
	seq, err := b.store(ctx, msg)
	if !errors.Is(err, buckets.ErrMissing) {
		return seq, err
	}
	if made := create(ctx, of); made != nil {
		return 0, errors.Join(err, made)
	}
	return b.store(ctx, msg)
}

// Delete stores the mark by which a key is deleted.
func (b *Bus) Delete(ctx context.Context, of kv.Bucket, key string, revision uint64) error {
	if err := journalcheck.Key(key); err != nil {
		return err
	}
	msg := nats.NewMsg(kvSubject(of.Name, key))
	msg.Header.Set(kvOperation, "DEL")
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	if of.Marks {
		msg.Header.Set(headerTTL, kv.MarkLifetime.String())
	}
	_, err := b.store(ctx, msg)
	return err
}

// Each yields what is kept under the keys that match.
func (b *Bus) Each(ctx context.Context, of kv.Bucket, pattern string) iter.Seq2[kv.Item, error] {
	each := b.eachOfLeader
	if of.AnyReplica {
		each = b.eachOfAny
	}
	return func(yield func(kv.Item, error) bool) {
		err := b.reading(ctx, of.Name, func(stream string) error {
			return each(ctx, stream, kvSubject(of.Name, pattern), func(it kv.Item) bool {
				it.Key = strings.TrimPrefix(it.Key, kvSubject(of.Name, ""))
				return len(it.Value) == 0 || yield(it, nil)
			})
		})
		if err != nil && !errors.Is(err, api.ErrStopped) {
			yield(kv.Item{}, err)
		}
	}
}

// eachOfLeader hands on all that the leader has, in the order in which it was stored. A key is its
// subject.
func (b *Bus) eachOfLeader(ctx context.Context, stream, filter string, take func(kv.Item) bool) error {
	upTo, err := b.LeaderEnd(ctx, stream, filter)
	if errors.Is(err, journal.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for rec, err := range b.RecordsOn(ctx, stream, filter, 0, upTo) {
		if err != nil {
			return err
		}
		if !take(kv.Item{Key: rec.Subject, Value: rec.Body, Revision: rec.Seq, Stored: rec.Stored}) {
			return api.ErrStopped
		}
	}
	return nil
}

// eachOfAny hands on what any replica has. If that lacks what the leader has, it asks again, and some
// items come twice.
func (b *Bus) eachOfAny(ctx context.Context, stream, filter string, take func(kv.Item) bool) error {
	request := api.GetRequest{MultiLast: []string{filter}, Batch: maxLast}
	for try := 1; ; try++ {
		got := map[string]bool{}
		_, err := b.Page(ctx, stream, maxLast, request, func(msg *nats.Msg, rec journal.Record) bool {
			got[rec.Subject] = true
			return take(itemOf(rec.Subject, msg, rec))
		})
		if err == nil {
			err = b.lacksNothing(ctx, stream, filter, got)
		}
		passes := errors.Is(err, api.ErrGap) || errors.Is(err, api.ErrLag) || errors.Is(err, nats.ErrNoResponders)
		if !passes || try >= api.SilentPages || !retry.Wait(ctx, api.ReadRetry) {
			return b.Explain(ctx, stream, err)
		}
	}
}

// lacksNothing returns api.ErrLag if the stream's leader has subjects that a replica did not
// answer with.
func (b *Bus) lacksNothing(ctx context.Context, stream, filter string, got map[string]bool) error {
	if b.Replicas <= 1 {
		return nil // who answered is the leader
	}
	lags := false
	err := b.Subjects(ctx, stream, filter, func(subject string) { lags = lags || !got[subject] })
	if err == nil && lags {
		err = api.ErrLag
	}
	return err
}

// Keys returns the keys that match, also those that a mark of a deletion lies on.
func (b *Bus) Keys(ctx context.Context, of kv.Bucket, pattern string) ([]string, error) {
	keys := []string{}
	err := b.reading(ctx, of.Name, func(stream string) error {
		return b.Subjects(ctx, stream, kvSubject(of.Name, pattern), func(subject string) {
			keys = append(keys, strings.TrimPrefix(subject, kvSubject(of.Name, "")))
		})
	})
	slices.Sort(keys)
	return slices.Compact(keys), err
}

// Names returns the names of the buckets that begin with a prefix.
func (b *Bus) Names(ctx context.Context, prefix string) ([]string, error) {
	streams, err := b.StreamNames(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, stream := range streams {
		if strings.HasPrefix(stream, kvStreamPrefix+prefix) {
			names = append(names, strings.TrimPrefix(stream, kvStreamPrefix))
		}
	}
	slices.Sort(names)
	return names, nil
}

// pools returns the names of the pools of tools.
func (b *Bus) pools(ctx context.Context) ([]string, error) {
	names, err := b.Names(ctx, buckets.ToolsPrefix)
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], buckets.ToolsPrefix)
	}
	return names, err
}

// reading reads from a bucket's stream if that is there. To read from one that is not takes its
// time, since a server that nobody answers for may be about to start. So it is looked for first.
func (b *Bus) reading(ctx context.Context, bucket string, read func(stream string) error) error {
	stream := kvStreamPrefix + bucket
	if _, seen := b.there.Load(bucket); !seen {
		if _, err := b.Stream(ctx, stream); err != nil {
			return noBucket(bucket, err)
		}
		b.there.Store(bucket, true)
	}
	err := noBucket(bucket, read(stream))
	if errors.Is(err, buckets.ErrMissing) {
		b.there.Delete(bucket) // it was removed
	}
	return err
}

// noBucket makes the one error of a missing bucket of that of its stream.
func noBucket(bucket string, err error) error {
	if code, ok := api.Code(err); ok && code == api.CodeStreamNotFound {
		return buckets.Missing(bucket)
	}
	return err
}

// newBucketWaits are the pauses after which a message is published again that nobody took, though
// its bucket exists: another client has made it just now, or it has just lost its leader.
var newBucketWaits = []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond}

// store publishes a message into a bucket and returns its sequence number. Behind another write of
// its key that is in flight it tries again, for the client's Timeout at most.
func (b *Bus) store(ctx context.Context, msg *nats.Msg) (uint64, error) {
	deadline := time.Now().Add(b.Timeout)
	for busy := conflictPause(0); ; {
		seq, err := b.storeOnce(ctx, msg)
		if !behind(err) {
			return seq, err
		}
		if !pauseUntil(ctx, deadline, busy.next()) {
			return 0, behindError(ctx, msg.Subject)
		}
	}
}

func (b *Bus) storeOnce(ctx context.Context, msg *nats.Msg) (uint64, error) {
	if err := b.diskFull(); err != nil {
		return 0, err
	}
	ack, err := b.acknowledged(b.requestStored(ctx, b.Timeout, msg))
	for tries := 0; errors.Is(err, nats.ErrNoResponders); tries++ {
		bucket, _, _ := strings.Cut(strings.TrimPrefix(msg.Subject, kvSubjectPrefix), ".")
		_, asked := b.Stream(ctx, kvStreamPrefix+bucket)
		if asked := noBucket(bucket, asked); errors.Is(asked, buckets.ErrMissing) {
			return 0, asked
		}
		if asked != nil || tries == len(newBucketWaits) || !retry.Wait(ctx, newBucketWaits[tries]) {
			return 0, fmt.Errorf("no bucket takes %s: %w", msg.Subject, err)
		}
		ack, err = b.acknowledged(b.requestStored(ctx, b.Timeout, msg))
	}
	if err != nil {
		return 0, api.Classify(err)
	}
	if ack.Error != nil {
		return 0, b.full.note(placeOf(msg.Subject), api.Classify(ack.Error))
	}
	return ack.Seq, b.full.note(placeOf(msg.Subject), nil)
}

// createBucket makes a bucket that is missing. The library's CreateKeyValue would first ask for
// the account, which only the operator may.
func (b *Bus) createBucket(ctx context.Context, of kv.Bucket) error {
	return b.createStream(ctx, bucketStream(of, b.Replicas))
}

func (b *Bus) createStore(ctx context.Context, cfg jetstream.ObjectStoreConfig) error {
	return b.createStream(ctx, objectStream(cfg))
}

// createStream makes a stream. One of that name that is there already is left as it is.
func (b *Bus) createStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	err := b.Do(ctx, "STREAM.CREATE."+cfg.Name, func(ctx context.Context) error {
		_, err := b.JS.CreateStream(ctx, cfg)
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil
	}
	return err
}

// ListKeys allows to list the keys of a bucket.
func (g *Grants) ListKeys(of kv.Bucket) { g.api("STREAM.INFO." + kvStreamPrefix + of.Name) }

// ReadBucket allows to read a bucket, as its leader has it unless any replica may answer.
func (g *Grants) ReadBucket(of kv.Bucket) {
	g.read(kvStreamPrefix + of.Name)
	if !of.AnyReplica {
		g.api("STREAM.MSG.GET." + kvStreamPrefix + of.Name)
	}
}

// WriteKeys allows to write the keys of a bucket that match.
func (g *Grants) WriteKeys(of kv.Bucket, pattern string) {
	g.publish[kvSubject(of.Name, pattern)] = true
}

// UseBucket allows to read and write a bucket.
func (g *Grants) UseBucket(of kv.Bucket) {
	g.ReadBucket(of)
	g.WriteKeys(of, of.Keys)
}
