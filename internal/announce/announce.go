// Package announce keeps what a process offers known to the others. It repeats
// announcements, claims names that may mean one thing only, and measures how long
// something has been missing.
package announce

import (
	"context"
	"log/slog"
	"sync"
	"time"

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
				logger.Warn("cannot announce what this process offers; it is tried again", "reason", err)
			}
			failing = true
		})
		failing = false
		retry.Wait(ctx, journal.AnnouncementRefresh)
	}
}

// withdrawTime bounds the attempt to withdraw an announcement. If it fails, the
// announcement expires.
const withdrawTime = 2 * time.Second

// During repeats an announcement while run runs, and returns run's error. It withdraws the
// announcement as soon as ctx or run ends: work in flight may go on then, but nobody
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
