// Package notes keeps what people say of runs beside their logs, in one bucket. The first token of a key is
// what the note is, and of a note about a run the second and third are namespace and run: labels.NS.RUN. So a
// reader of the bucket needs no other table, and the notes of a run are found by its id.
package notes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// key returns the key of a run's labels.
func key(run events.Run) (string, error) {
	if events.CheckID(run.ID) != nil || !events.ValidToken(run.Namespace) {
		return "", fmt.Errorf("notes: %q in namespace %q is not a run", run.ID, run.Namespace)
	}
	return "labels." + run.Namespace + "." + run.ID, nil
}

// Labels returns the labels that were noted for a run, all that it has, or [journal.ErrNotFound] if they are
// those of its first event. The revision is there in both cases.
func Labels(ctx context.Context, store kv.Store, run events.Run) (labels events.Labels, revision uint64, err error) {
	key, err := key(run)
	if err != nil {
		return nil, 0, err
	}
	it, err := store.Get(ctx, buckets.Notes, key)
	if err == nil {
		err = json.Unmarshal(it.Value, &labels)
	}
	if err != nil {
		err = fmt.Errorf("labels of run %s: %w", run.ID, buckets.OrNone(err))
	}
	return labels, it.Revision, err
}

// PutLabels notes all labels of a run in place of what has the revision, or returns [journal.ErrConflict].
func PutLabels(ctx context.Context, store kv.Store, run events.Run, labels events.Labels, revision uint64) error {
	key, err := key(run)
	if err != nil {
		return err
	}
	value, err := json.Marshal(labels)
	if err == nil {
		_, err = store.Update(ctx, buckets.Notes, kv.Item{Key: key, Value: value, Revision: revision})
	}
	if err != nil {
		err = fmt.Errorf("labels of run %s: %w", run.ID, err)
	}
	return err
}

// Remove removes the notes of the runs for which gone returns true. The runs have no shard.
func Remove(ctx context.Context, store kv.Store, gone func(run events.Run) bool) error {
	keys, err := store.Keys(ctx, buckets.Notes, "labels.*.*")
	for _, key := range keys {
		_, of, _ := strings.Cut(key, ".")
		run := events.Run{}
		if run.Namespace, run.ID, _ = strings.Cut(of, "."); !gone(run) {
			continue
		}
		for {
			it, err := store.Get(ctx, buckets.Notes, key)
			if err == nil {
				err = store.Delete(ctx, buckets.Notes, key, it.Revision)
			}
			if err == nil || errors.Is(err, journal.ErrNotFound) {
				break
			}
			if !errors.Is(err, journal.ErrConflict) {
				return fmt.Errorf("notes of run %s: %w", run.ID, err)
			}
		}
	}
	if err = buckets.OrNone(err); errors.Is(err, journal.ErrNotFound) {
		return nil
	}
	return err
}
