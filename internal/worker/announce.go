package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// Announce repeats an announcement until ctx ends, in the rhythm that keeps it
// alive. A failure is logged once and tried again sooner.
func Announce(ctx context.Context, logger *slog.Logger, announce func(context.Context) error) {
	failing := false
	for {
		wait := journal.AnnouncementRefresh
		if err := announce(ctx); err != nil && ctx.Err() == nil {
			if !failing {
				logger.Warn("cannot announce what this process offers; it is tried again", "reason", err)
			}
			failing, wait = true, time.Second
		} else {
			failing = false
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// withdrawTime bounds how long it is tried to take an announcement back: without that it
// expires.
const withdrawTime = 2 * time.Second

// RunAnnounced repeats an announcement while run runs. It is taken back as soon as ctx or
// run ends: what is in work then may go on, but nobody should count on more.
func RunAnnounced(ctx context.Context, logger *slog.Logger, announce, withdraw, run func(context.Context) error) error {
	announceCtx, stop := context.WithCancel(ctx)
	var announcing sync.WaitGroup
	announcing.Go(func() {
		Announce(announceCtx, logger, announce)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer cancel()
		if err := withdraw(ctx); err != nil {
			logger.Debug("an announcement is left to expire", "reason", err)
		}
	})
	defer func() { stop(); announcing.Wait() }()
	return run(ctx)
}
