package replay

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// ExportOptions say what is exported.
type ExportOptions struct {
	// Runs are exported one after another, in this order, each after those that
	// it was forked from. Each has to be there.
	Runs []events.Run
	// All exports every record of the log instead, shard by shard in the log's
	// order, those that belong to no run too; of Namespace alone if that is not
	// empty.
	All       bool
	Namespace string
}

// Export hands records to write, which stores them somewhere, and returns how
// many it were. An error of the log ends the sequence; write has to return it.
func Export(ctx context.Context, log journal.Log, o ExportOptions, write func(iter.Seq2[journal.Record, error]) error) (int, error) {
	count := 0
	err := write(func(yield func(journal.Record, error) bool) {
		for rec, err := range o.records(ctx, log) {
			if !yield(rec, err) || err != nil {
				return
			}
			count++
		}
	})
	return count, err
}

func (o ExportOptions) records(ctx context.Context, log journal.Log) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		runs, err := withAncestors(ctx, log, o.Runs)
		if err != nil {
			yield(journal.Record{}, err)
			return
		}
		for _, run := range runs {
			found := false
			for rec, err := range log.Read(ctx, run, 0) {
				found = true
				if !yield(rec, err) || err != nil {
					return
				}
			}
			if !found {
				yield(journal.Record{}, fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound))
				return
			}
		}
		if !o.All {
			return
		}
		for shard := range log.Shards() {
			for rec, err := range log.Scan(ctx, shard, journal.Filter{Namespace: o.Namespace}, 0) {
				if !yield(rec, err) || err != nil {
					return
				}
			}
		}
	}
}

// withAncestors puts before each run those that it was forked from, the oldest
// first, and each run there once.
func withAncestors(ctx context.Context, log journal.Log, runs []events.Run) ([]events.Run, error) {
	var all []events.Run
	for _, run := range runs {
		line := []events.Run{}
		for !slices.Contains(all, run) && !slices.Contains(line, run) {
			line = append(line, run)
			parent, forked, err := runlog.ForkedFrom(ctx, log, run)
			if err != nil {
				return nil, err
			}
			if !forked {
				break
			}
			run = parent
		}
		slices.Reverse(line)
		all = append(all, line...)
	}
	return all, nil
}
