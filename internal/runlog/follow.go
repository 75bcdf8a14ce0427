package runlog

import (
	"context"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Follow folds a run's records as they are stored, from the first one until the run ends,
// and calls fn after each: with the event, or with the reason why the record is no legal
// event. It returns nil when the run has ended, otherwise the error of fn, of the log, or
// of the context, or what [Fold.Apply] returns for a record that cannot be folded.
func (f *Fold) Follow(ctx context.Context, run events.Run, fn func(rec journal.Record, e *events.Event, refused error) error) error {
	for rec, err := range f.log.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		if err != nil {
			return err
		}
		e, err := f.Apply(ctx, rec)
		if err != nil && !Refused(err) {
			return err
		}
		if err := fn(rec, e, err); err != nil {
			return err
		}
		if f.machine.Table().Terminal(f.mem.State) {
			return nil
		}
	}
	return ctx.Err()
}
