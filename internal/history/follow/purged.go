package follow

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// sweeps drops purged runs now and then, until ctx ends.
func (f *Follower) sweeps(ctx context.Context) error {
	for {
		if err := f.sweep(ctx); err != nil {
			return err
		}
		if !retry.Wait(ctx, f.o.Sweep) {
			return nil
		}
	}
}

// swept is how many purged runs the store is asked for at a time.
const swept = 500

// sweep drops the purged runs.
func (f *Follower) sweep(ctx context.Context) error {
	if f.o.Purged == nil {
		return nil
	}
	var runs []events.Run
	for run, err := range f.o.Purged(ctx) {
		if err != nil {
			return err
		}
		if runs = append(runs, run); len(runs) == swept {
			if err := f.Drop(ctx, runs...); err != nil {
				return err
			}
			runs = nil
		}
	}
	return f.Drop(ctx, runs...)
}

// Drop drops those runs that the store has and the log has not. What they used stays counted. A batch that was
// read before a run was purged may bring the run back, until the next sweep.
func (f *Follower) Drop(ctx context.Context, runs ...events.Run) error {
	if len(runs) == 0 || !f.follows() {
		return nil
	}
	rows, err := f.o.Store.Runs(ctx, runs)
	if err != nil {
		return err
	}
	gone := make([][]history.Change, len(f.applying))
	for _, row := range rows {
		run := events.Run{Shard: row.Shard, Namespace: row.Namespace, ID: row.ID}
		if _, err := f.o.Log.Head(ctx, run); errors.Is(err, journal.ErrNotFound) {
			gone[run.Shard] = append(gone[run.Shard], history.Change{Gone: true, Run: history.Run{Namespace: run.Namespace, ID: run.ID, Shard: run.Shard}})
		} else if err != nil {
			return err
		}
	}
	for shard, changes := range gone {
		if err := f.drop(ctx, shard, changes); err != nil {
			return wrap(shard, err)
		}
	}
	return nil
}

func (f *Follower) drop(ctx context.Context, shard int, gone []history.Change) error {
	if len(gone) == 0 {
		return nil
	}
	f.applying[shard].Lock()
	defer f.applying[shard].Unlock()
	at := f.position(shard) // if another process has written since, it is the one that drops runs
	return f.o.Store.Apply(ctx, history.Batch{Stream: f.o.Streams[shard], From: at, To: at, Runs: gone})
}
