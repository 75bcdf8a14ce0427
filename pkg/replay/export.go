package replay

import (
	"context"
	"fmt"
	"iter"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ExportOptions say what is exported.
type ExportOptions struct {
	// Runs are exported one after another, in this order. Each has to be there.
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
		for _, run := range o.Runs {
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
