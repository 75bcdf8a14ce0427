// Package announce tells other processes what a process offers. It repeats announcements,
// claims names that must mean the same in every process, and measures how long something has
// been missing.
package announce

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Repeat repeats an announcement until ctx ends, often enough to keep it alive. A failure
// is logged once and retried sooner.
func Repeat(ctx context.Context, logger *slog.Logger, announce func(context.Context) error) {
	failing := false
	for ctx.Err() == nil {
		_ = retry.Policy{First: time.Second}.Do(ctx, announce, func(err error, _ time.Duration) {
			if !failing && ctx.Err() == nil {
				logger.Warn("cannot announce what this process offers; it will be retried", "reason", err)
			}
			failing = true
		})
		failing = false
		retry.Wait(ctx, buckets.AnnouncementRefresh)
	}
}

// withdrawTime bounds the attempt to withdraw an announcement. If it fails, the
// announcement expires.
const withdrawTime = 2 * time.Second

// During repeats an announcement while run runs, and returns run's error. It withdraws the
// announcement as soon as ctx or run ends: work in flight may continue then, but nobody
// should count on more.
func During(ctx context.Context, logger *slog.Logger, announce, withdraw, run func(context.Context) error) error {
	announceCtx, stop := context.WithCancel(ctx)
	var announcing sync.WaitGroup
	announcing.Go(func() {
		Repeat(announceCtx, logger, announce)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer cancel()
		if err := withdraw(ctx); err != nil {
			logger.Debug("an announcement is left to expire", "reason", err)
		}
	})
	defer func() { stop(); announcing.Wait() }()
	return run(ctx)
}

// claimLook is how often an instance checks whether a name has become free.
const claimLook = time.Second

// Claim waits until no other living instance uses one of the names for something else, and
// returns a [*journal.NameTakenError] if one does. An instance is alive if it repeats its
// announcement, which takes up to [buckets.AnnouncementRefresh]. The announcement of a
// dead instance is gone after [buckets.AnnouncementTTL].
//
// Other errors are the bus's. An instance that may not read the announcements, or finds
// none, claims its names without a check.
func Claim(ctx context.Context, logger *slog.Logger, dir *Directory, instance string, claims []journal.Claim) error {
	first := map[journal.Claim]uint64{} // by the claim without its number
	began := time.Now()
	return retry.Policy{First: claimLook}.Do(ctx, func(ctx context.Context) error {
		taken, err := takenBy(ctx, dir, instance, claims)
		switch {
		case errors.Is(err, journal.ErrDenied), errors.Is(err, journal.ErrNotReady):
			return nil
		case err != nil:
			return retry.Stop(err)
		}
		for _, c := range taken {
			seq := c.Seq
			c.Seq = 0
			known, before := first[c]
			if before && (seq != known || time.Since(began) > buckets.AnnouncementTTL+buckets.AnnouncementRefresh) {
				return retry.Stop(&journal.NameTakenError{Claim: c, Instance: instance})
			}
			if !before {
				first[c] = seq
				logger.Warn("another process has announced this name with another definition; waiting to see whether that process still runs",
					"kind", c.Kind, "name", c.Name, "other", c.Instance, "for_at_most", buckets.AnnouncementTTL)
			}
		}
		if len(taken) > 0 {
			return errTaken
		}
		return nil
	}, nil)
}

var errTaken = errors.New("a name is taken")

// Claimed returns a [*journal.NameTakenError] if another instance now uses one of the
// names for something else. Other errors are the bus's.
func Claimed(ctx context.Context, dir *Directory, instance string, claims []journal.Claim) error {
	taken, err := takenBy(ctx, dir, instance, claims)
	if err != nil || len(taken) == 0 {
		return err
	}
	return &journal.NameTakenError{Claim: taken[0], Instance: instance}
}

// takenBy returns the claims of other instances that contradict the given ones.
func takenBy(ctx context.Context, dir *Directory, instance string, claims []journal.Claim) ([]journal.Claim, error) {
	all, err := dir.Claims(ctx)
	var taken []journal.Claim
	for _, other := range all {
		for _, c := range claims {
			if other.Instance != instance && other.Kind == c.Kind && other.Name == c.Name && other.Digest != c.Digest {
				taken = append(taken, other)
			}
		}
	}
	return taken, err
}

// Misses measures for how long something that other processes may have has been missing.
// Make it with [NewMisses]. It is safe for concurrent use.
type Misses[K comparable] struct {
	forget time.Duration

	mu  sync.Mutex
	all map[K]miss
}

// miss is since when something has been missing, and when that was last checked.
type miss struct{ since, last time.Time }

// NewMisses returns an empty Misses. A miss that was last checked longer than forget ago
// no longer counts, since the missing thing may have been there meanwhile.
func NewMisses[K comparable](forget time.Duration) *Misses[K] {
	return &Misses[K]{forget: forget, all: map[K]miss{}}
}

// Miss records that key was not found, and returns how long ago the first miss in a row
// was; 0 for the first one.
func (m *Misses[K]) Miss(key K) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.all, func(_ K, one miss) bool { return now.Sub(one.last) > m.forget })
	one, known := m.all[key]
	if !known {
		one.since = now
	}
	one.last = now
	m.all[key] = one
	return now.Sub(one.since)
}

// Found records that the keys were found. Their next misses count from 0.
func (m *Misses[K]) Found(keys ...K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		delete(m.all, key)
	}
}

// Any reports whether anything is missing.
func (m *Misses[K]) Any() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all) > 0
}

// Clear forgets all misses, for when it is unknown what is there.
func (m *Misses[K]) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.all)
}
