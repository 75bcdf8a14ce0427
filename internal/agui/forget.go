package agui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// keepEnded is how long a thread is known after its last run has ended.
	keepEnded = 90 * 24 * time.Hour
	// forgetEvery is how often a gateway looks for such threads.
	forgetEvery = 6 * time.Hour
)

// lease lets one gateway forget threads.
var lease = ports.RoleKey{Role: "gateway", Name: "threads"}

// Run forgets threads that ended long ago, while this process has the lease, until ctx ends.
// Without leases it only waits.
func (f *Face) Run(ctx context.Context) error {
	if f.cfg.Leases == nil {
		<-ctx.Done()
		return nil
	}
	return runs.UntilSetUp(ctx, f.cfg.Logger, "ended threads are not forgotten", func(ctx context.Context) error {
		return f.cfg.Leases.Lead(ctx, lease, func(ctx context.Context) error {
			for {
				if err := f.forget(ctx); errors.Is(err, journal.ErrDenied) || errors.Is(err, journal.ErrNotReady) {
					return err
				} else if err != nil && ctx.Err() == nil {
					f.cfg.Logger.Warn("ended threads cannot be forgotten now", "reason", err)
				}
				if !retry.Wait(ctx, forgetEvery) {
					return nil
				}
			}
		})
	})
}

// forget removes the threads whose newest run ended longer than keepEnded ago, or is not in
// the log any more. A thread's entry is written when a run of it begins, so the time of the
// entry rules out most threads without reading the log. A request that uses the thread
// meanwhile wins.
func (f *Face) forget(ctx context.Context) error {
	before := f.cfg.Now().Add(-keepEnded)
	type old struct {
		kv.Item
		run events.Run
	}
	var found []old
	for it, err := range f.cfg.KV.Each(ctx, buckets.Threads, buckets.Threads.Keys) {
		if errors.Is(err, buckets.ErrMissing) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("threads: %w", err)
		}
		var t thread
		if !it.Stored.After(before) && len(found) < forgetAtOnce && json.Unmarshal(it.Value, &t) == nil && len(t.Runs) > 0 {
			namespace, _, _ := strings.Cut(it.Key, ".")
			it.Value = nil // of thousands, too much to keep
			found = append(found, old{it, f.cfg.Control.Store.Place(namespace, t.Runs[len(t.Runs)-1])})
		}
	}
	for _, o := range found {
		ended, err := f.endedBefore(ctx, o.run, before)
		if err == nil && ended {
			if err = f.cfg.KV.Delete(ctx, buckets.Threads, o.Key, o.Revision); errors.Is(err, journal.ErrConflict) {
				err = nil // it continues
			}
		}
		if err != nil {
			return fmt.Errorf("forget a thread: %w", err)
		}
	}
	return nil
}

// forgetAtOnce bounds how many threads one look removes, and so its memory.
const forgetAtOnce = 10_000

func (f *Face) endedBefore(ctx context.Context, run events.Run, before time.Time) (bool, error) {
	head, err := f.cfg.Control.Log.Head(ctx, run)
	if errors.Is(err, journal.ErrNotFound) {
		return true, nil // it was purged, or never started
	}
	if err != nil {
		return false, err
	}
	s, err := events.ParseSubject(head.Subject)
	return err == nil && f.cfg.Control.Table.Terminal(s.To) && head.Stored.Before(before), nil
}
