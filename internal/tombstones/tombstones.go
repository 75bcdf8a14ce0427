// Package tombstones keeps the names of purged runs, so that nobody starts them again. It asks the
// leader of several replicas where it may: one that lags would let a purged run start.
package tombstones

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Tombstone stands for a run that was purged.
type Tombstone struct {
	Run       string    `json:"run"`
	Namespace string    `json:"namespace"`
	PurgedAt  time.Time `json:"purged_at"`
	// Events is how many events it had, Last the [events.Hash] of the last one's
	// body.
	Events uint64 `json:"events"`
	Last   string `json:"last"`
}

func key(run events.Run) (string, error) {
	if events.CheckID(run.ID) != nil || !events.ValidToken(run.Namespace) {
		return "", fmt.Errorf("tombstone: %q in namespace %q is not a run", run.ID, run.Namespace)
	}
	return run.Namespace + "." + run.ID, nil
}

// Put notes that the run was purged.
func Put(ctx context.Context, store kv.Store, run events.Run, t Tombstone) error {
	key, err := key(run)
	if err != nil {
		return err
	}
	body, err := json.Marshal(t)
	if err == nil {
		_, err = store.Put(ctx, buckets.Purged, kv.Item{Key: key, Value: body})
	}
	return of(run, err)
}

// Get returns the run's tombstone, or [journal.ErrNotFound].
func Get(ctx context.Context, store kv.Store, run events.Run) (t Tombstone, err error) {
	t, _, err = get(ctx, store, run)
	return t, err
}

func get(ctx context.Context, store kv.Store, run events.Run) (t Tombstone, revision uint64, err error) {
	key, err := key(run)
	if err != nil {
		return t, 0, err
	}
	it, err := store.Get(ctx, buckets.Purged, key)
	if err == nil {
		err = json.Unmarshal(it.Value, &t)
	}
	return t, it.Revision, of(run, buckets.OrNone(err))
}

// Runs returns the runs that have a tombstone, in a log of so many shards. Some may have been deleted.
func Runs(ctx context.Context, store kv.Store, shards int) (map[events.Run]bool, error) {
	keys, err := store.Keys(ctx, buckets.Purged, ">")
	runs := make(map[events.Run]bool, len(keys))
	for _, key := range keys {
		namespace, id, _ := strings.Cut(key, ".")
		runs[events.NewRun(namespace, id, shards)] = true
	}
	if err = buckets.OrNone(err); errors.Is(err, journal.ErrNotFound) {
		err = nil
	}
	return runs, err
}

// Delete removes the run's tombstone, if there is one.
func Delete(ctx context.Context, store kv.Store, run events.Run) error {
	_, revision, err := get(ctx, store, run)
	if errors.Is(err, journal.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = of(run, store.Delete(ctx, buckets.Purged, run.Namespace+"."+run.ID, revision))
	}
	return err
}

func of(run events.Run, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tombstone of run %s: %w", run.ID, err)
}
