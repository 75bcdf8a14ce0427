// Package transfer moves runs between logs: [Export] writes them out, and [Import] puts them back.
//
// A run moves as a whole, after the runs that it was forked from: records byte for byte, and large results.
package transfer

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// forkOf returns what a run's first record says that it was forked from, nil if it
// was not forked.
func forkOf(codec *events.Codec, body []byte) *events.Forked {
	e, err := codec.Decode(body)
	if err != nil {
		return nil
	}
	fork, forked := e.Data.(*events.Forked)
	if !forked || events.CheckID(fork.Run) != nil {
		return nil
	}
	return fork
}

// Parent returns the run that a run was forked from, by its first record.
func Parent(codec *events.Codec, run events.Run, body []byte, shards int) (parent events.Run, forked bool) {
	fork := forkOf(codec, body)
	if fork == nil {
		return parent, false
	}
	return events.NewRun(run.Namespace, fork.Run, shards), true
}

// first returns a run's first record, or ErrNotFound.
func first(ctx context.Context, log journal.Log, run events.Run) (journal.Record, error) {
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil || !notOfRun(rec) {
			return rec, err
		}
	}
	return journal.Record{}, journal.ErrNotFound
}

// notOfRun reports whether a record lies among a run's and belongs to none: no fold
// counts it.
func notOfRun(rec journal.Record) bool {
	_, err := events.ParseSubject(rec.Subject)
	return err != nil
}

// withAncestors returns the runs with all runs that they were forked from, each after its
// parent. Parents that the log does not have are left out, and returned as missing.
func withAncestors(ctx context.Context, log journal.Log, codec *events.Codec, runs []events.Run) (ordered, missing []events.Run, err error) {
	seen := map[events.Run]bool{}
	var visit func(run events.Run) error
	visit = func(run events.Run) error {
		if seen[run] {
			return nil
		}
		seen[run] = true
		rec, err := first(ctx, log, run)
		if err != nil {
			return err
		}
		if parent, forked := Parent(codec, run, rec.Body, log.Shards()); forked {
			switch err := visit(parent); {
			case errors.Is(err, journal.ErrNotFound):
				missing = append(missing, parent)
			case err != nil:
				return err
			}
		}
		ordered = append(ordered, run)
		return nil
	}
	for _, run := range runs {
		if err := visit(run); err != nil {
			return nil, nil, notThere(run, err)
		}
	}
	return ordered, missing, nil
}
