package natsbus

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

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
	err := b.Subjects(ctx, stream, streamSubjects(shard), func(subject string) {
		if journalcheck.Subject(b.shards, subject) != nil {
			found = append(found, subject)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(found)
	var all []journal.Record
	for _, filter := range filtersFor(found, streamSubjects(shard)) {
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
