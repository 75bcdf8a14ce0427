// Package announce keeps what a process offers known to the others: it repeats
// announcements in time, claims names that may mean one thing only, and measures how long
// something has not been announced.
package announce

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Repeat repeats an announcement until ctx ends, in the rhythm that keeps it
// alive. A failure is logged once and tried again sooner.
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

// withdrawTime bounds how long it is tried to take an announcement back: without that it
// expires.
const withdrawTime = 2 * time.Second

// During repeats an announcement while run runs, and returns run's error. It is taken back
// as soon as ctx or run ends: what is in work then may go on, but nobody should count on
// more.
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
