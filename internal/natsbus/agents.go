package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func agentKey(namespace, name string) (string, error) {
	if !events.ValidToken(namespace) {
		return "", fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	if !events.ValidToken(name) {
		return "", fmt.Errorf("agent name %q is not of the form [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return namespace + "." + name, nil
}

// PutAgent stores an agent definition; the bucket keeps the last few.
func (b *Bus) PutAgent(ctx context.Context, namespace, name string, definition []byte) error {
	key, err := agentKey(namespace, name)
	if err != nil {
		return err
	}
	if most := b.MaxBody(); len(definition) > most {
		return &ports.TooLargeError{What: "agent " + name, Size: len(definition), Limit: most}
	}
	if err := b.put(ctx, agentsConfig(b.Replicas), key, definition); err != nil {
		return fmt.Errorf("agent %s: %w", name, err)
	}
	return nil
}

// Agent returns a definition, or ErrNotFound.
func (b *Bus) Agent(ctx context.Context, namespace, name string) ([]byte, error) {
	key, err := agentKey(namespace, name)
	if err != nil {
		return nil, err
	}
	subject := kvSubjectPrefix + agentBucket + "." + key
	msg, err := b.LastMessage(ctx, kvStreamPrefix+agentBucket, subject)
	for try := 1; errors.Is(err, journal.ErrNotFound); try++ {
		// A replica may not have yet what was stored a moment ago.
		lag := b.lacksNothing(ctx, kvStreamPrefix+agentBucket, subject, nil)
		if lag == nil {
			break
		}
		if err = lag; errors.Is(lag, api.ErrLag) && try < api.SilentPages && retry.Wait(ctx, api.ReadRetry) {
			msg, err = b.LastMessage(ctx, kvStreamPrefix+agentBucket, subject)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", name, err)
	}
	if api.Header(msg, kvOperation) != "" {
		return nil, fmt.Errorf("agent %s: %w", name, journal.ErrNotFound)
	}
	return msg.Data, nil
}

// AgentStored returns when a definition was stored last.
func (b *Bus) AgentStored(ctx context.Context, namespace, name string) (time.Time, error) {
	key, err := agentKey(namespace, name)
	if err != nil {
		return time.Time{}, err
	}
	rec, err := b.LastOn(ctx, kvStreamPrefix+agentBucket, kvSubjectPrefix+agentBucket+"."+key)
	return rec.Stored, err
}

// AgentNames returns the names of a namespace's agents, sorted.
func (b *Bus) AgentNames(ctx context.Context, namespace string) ([]string, error) {
	if !events.ValidToken(namespace) {
		return nil, fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	names, err := b.keys(ctx, agentBucket, namespace+".")
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	// A definition that was deleted with other tools has left a mark in the bucket.
	var failed error
	names = slices.DeleteFunc(names, func(name string) bool {
		_, err := b.Agent(ctx, namespace, name)
		deleted := errors.Is(err, journal.ErrNotFound)
		if err != nil && !deleted {
			failed = err
		}
		return deleted
	})
	return names, failed
}

// Runless yields a shard's records that belong to no run. It looks through the
// names of all subjects, not through what lies on them.
func (b *Bus) Runless(ctx context.Context, shard int) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		recs, err := b.runless(ctx, shard)
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("messages of no run in shard %d: %w", shard, err))
			return
		}
		for _, rec := range recs {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

func (b *Bus) runless(ctx context.Context, shard int) ([]journal.Record, error) {
	if err := journalcheck.Shard(b.shards, shard); err != nil {
		return nil, err
	}
	stream := events.StreamName(shard)
	var found []string
	err := b.Subjects(ctx, stream, events.StreamSubjects(shard), func(subject string) {
		if journalcheck.Subject(b.shards, subject) != nil {
			found = append(found, subject)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(found)
	var all []journal.Record
	for _, filter := range filtersFor(found, events.StreamSubjects(shard)) {
		for rec, err := range b.prove(shard).each(ctx, b.RecordsOn(ctx, stream, filter, 0, 0)) {
			if err != nil {
				return nil, err
			}
			if _, ok := slices.BinarySearch(found, rec.Subject); ok {
				all = append(all, rec)
			}
		}
	}
	slices.SortFunc(all, func(x, y journal.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	return all, nil
}

// filtersFor returns filters that match the subjects: the subjects themselves, or everything
// if one of them has the token * or >, which a publisher on moore.0.> may use.
func filtersFor(subjects []string, everything string) []string {
	for _, subject := range subjects {
		for token := range strings.SplitSeq(subject, ".") {
			if token == "*" || token == ">" {
				return []string{everything}
			}
		}
	}
	return subjects
}

// Drop remembers a key.
func (b *Bus) Drop(ctx context.Context, key string) error {
	if err := journalcheck.DropKey(key); err != nil {
		return err
	}
	if err := b.put(ctx, droppedConfig(b.Replicas), key, nil); err != nil {
		return fmt.Errorf("drop %s: %w", key, err)
	}
	return nil
}

// Dropped returns every key; without the bucket there is none.
func (b *Bus) Dropped(ctx context.Context) ([]string, error) {
	keys, err := b.keys(ctx, droppedBucket, "")
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return nil, fmt.Errorf("list what was dropped: %w", err)
	}
	return keys, nil
}

// threadSubject is the place of a thread. A client's name may be any text, so its digest is used.
func threadSubject(of journal.StorageOf, thread string) (string, error) {
	if err := of.Check(); err != nil {
		return "", err
	}
	return kvSubjectPrefix + threadBucket + "." + of.Namespace + "." + of.Agent + "." + events.Hash([]byte(thread)), nil
}

// Thread returns what is kept of a thread, or ErrNotFound. It asks the leader where it may.
func (b *Bus) Thread(ctx context.Context, of journal.StorageOf, thread string) (value []byte, revision uint64, err error) {
	subject, err := threadSubject(of, thread)
	if err != nil {
		return nil, 0, err
	}
	rec, err := b.HeadOn(ctx, kvStreamPrefix+threadBucket, subject)
	if errors.Is(err, journal.ErrNotReady) {
		err = fmt.Errorf("no bucket %s: %w", threadBucket, journal.ErrNotFound) // PutThread makes it
	}
	if err != nil {
		return nil, 0, fmt.Errorf("thread %.100q of %s: %w", thread, of, err)
	}
	if len(rec.Body) == 0 { // the mark of a thread that was forgotten
		return nil, 0, fmt.Errorf("thread %.100q of %s: %w", thread, of, journal.ErrNotFound)
	}
	return rec.Body, rec.Seq, nil
}

// PutThread replaces what is kept of a thread, if it has the revision.
func (b *Bus) PutThread(ctx context.Context, of journal.StorageOf, thread string, value []byte, revision uint64) error {
	subject, err := threadSubject(of, thread)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(subject)
	msg.Data = value
	if revision == 0 { // the mark of a thread that was forgotten is nothing, too
		if revision, err = b.markOn(ctx, threadBucket, subject); err != nil {
			return fmt.Errorf("thread %.100q of %s: %w", thread, of, err)
		}
	}
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	if _, err := b.putMsg(ctx, msg, func() error { return b.createBucket(ctx, threadsConfig(b.Replicas)) }); err != nil {
		return fmt.Errorf("thread %.100q of %s: %w", thread, of, err)
	}
	return nil
}

// EachThread calls take for every thread. Its key is the digest of its name.
func (b *Bus) EachThread(ctx context.Context, take func(of journal.StorageOf, key string, value []byte, revision uint64, stored time.Time)) error {
	err := b.eachKey(ctx, threadBucket, "*.*.*", func(key string, rec journal.Record) {
		if tokens := strings.Split(key, "."); len(tokens) == 3 {
			take(journal.StorageOf{Namespace: tokens[0], Agent: tokens[1]}, tokens[2], rec.Body, rec.Seq, rec.Stored)
		}
	})
	if err != nil {
		return fmt.Errorf("threads: %w", err)
	}
	return nil
}

// ForgetThread removes a thread by its key. The server removes the mark that stays after a while.
func (b *Bus) ForgetThread(ctx context.Context, of journal.StorageOf, key string, revision uint64) error {
	if err := of.Check(); err != nil {
		return err
	}
	msg := nats.NewMsg(kvSubjectPrefix + threadBucket + "." + of.Namespace + "." + of.Agent + "." + key)
	msg.Header.Set(kvOperation, "DEL")
	msg.Header.Set(headerTTL, markTTL.String())
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	if _, err := b.putMsg(ctx, msg, func() error { return fmt.Errorf("no bucket %s: %w", threadBucket, journal.ErrNotReady) }); err != nil {
		return fmt.Errorf("forget a thread of %s: %w", of, err)
	}
	return nil
}
