package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func agentSubject(namespace, name string) (string, error) {
	if !events.ValidToken(namespace) {
		return "", fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	if !events.ValidToken(name) {
		return "", fmt.Errorf("agent name %q is not of the form [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return kvSubjectPrefix + agentBucket + "." + namespace + "." + name, nil
}

// PutAgent stores an agent definition; the bucket keeps the last few.
func (b *Bus) PutAgent(ctx context.Context, namespace, name string, definition []byte) error {
	subject, err := agentSubject(namespace, name)
	if err != nil {
		return err
	}
	if len(definition) > journal.MaxBody {
		return fmt.Errorf("agent %s: %d bytes, at most %d are allowed: %w", name, len(definition), journal.MaxBody, journal.ErrTooLarge)
	}
	err = b.put(ctx, subject, definition, func() error { return b.createBucket(ctx, agentsConfig(b.Replicas)) })
	if err != nil {
		return fmt.Errorf("agent %s: %w", name, err)
	}
	return nil
}

// Agent returns a definition, or ErrNotFound.
func (b *Bus) Agent(ctx context.Context, namespace, name string) ([]byte, error) {
	subject, err := agentSubject(namespace, name)
	if err != nil {
		return nil, err
	}
	msg, err := b.LastMessage(ctx, kvStreamPrefix+agentBucket, subject)
	for try := 1; errors.Is(err, journal.ErrNotFound); try++ {
		// What was stored a moment ago a replica may not have yet.
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

// AgentNames returns the names of a namespace's agents, sorted.
func (b *Bus) AgentNames(ctx context.Context, namespace string) ([]string, error) {
	if !events.ValidToken(namespace) {
		return nil, fmt.Errorf("namespace %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", namespace)
	}
	prefix := kvSubjectPrefix + agentBucket + "." + namespace + "."
	names := []string{}
	err := b.Subjects(ctx, kvStreamPrefix+agentBucket, prefix+"*", func(subject string) {
		names = append(names, strings.TrimPrefix(subject, prefix))
	})
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	slices.Sort(names)
	return b.living(ctx, namespace, slices.Compact(names))
}

// living drops the names whose definition somebody deleted with other tools: the
// mark of it is still in the bucket.
func (b *Bus) living(ctx context.Context, namespace string, names []string) ([]string, error) {
	deleted := make(map[string]bool)
	var errs error
	for _, name := range names {
		if _, err := b.Agent(ctx, namespace, name); errors.Is(err, journal.ErrNotFound) {
			deleted[name] = true
		} else if err != nil {
			errs = err
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return deleted[name] }), errs
}

// Strays yields a shard's records that belong to no run. It looks through the
// names of all subjects, not through what lies on them.
func (b *Bus) Strays(ctx context.Context, shard int) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		recs, err := b.strays(ctx, shard)
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("strays of shard %d: %w", shard, err))
			return
		}
		for _, rec := range recs {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

func (b *Bus) strays(ctx context.Context, shard int) ([]journal.Record, error) {
	if err := journal.CheckShard(b.shards, shard); err != nil {
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
		for rec, err := range b.RecordsOn(ctx, stream, filter, 0, 0) {
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

// filtersFor returns filters that find what lies on the subjects: the subjects
// themselves, or everything if one of them would match others. Whoever may publish on
// moore.0.> may do so on a subject that has * or > as a token.
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
	subject := kvSubjectPrefix + droppedBucket + "." + key
	err := b.put(ctx, subject, nil, func() error { return b.createBucket(ctx, droppedConfig(b.Replicas)) })
	if err != nil {
		return fmt.Errorf("drop %s: %w", key, err)
	}
	return nil
}

// Dropped returns every key; without the bucket there is none.
func (b *Bus) Dropped(ctx context.Context) ([]string, error) {
	prefix := kvSubjectPrefix + droppedBucket + "."
	keys := []string{}
	err := b.Subjects(ctx, kvStreamPrefix+droppedBucket, prefix+"*", func(subject string) {
		keys = append(keys, strings.TrimPrefix(subject, prefix))
	})
	if err != nil && !errors.Is(err, journal.ErrNotReady) {
		return nil, fmt.Errorf("list what was dropped: %w", err)
	}
	slices.Sort(keys)
	return keys, nil
}
