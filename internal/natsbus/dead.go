package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

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
		if journal.CheckSubject(b.shards, subject) != nil {
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
	if err := journal.CheckDropKey(key); err != nil {
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
