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

// RunAnnounced repeats an announcement while run runs, and ends with it.
func RunAnnounced(ctx context.Context, logger *slog.Logger, announce, run func(context.Context) error) error {
	announceCtx, stop := context.WithCancel(ctx)
	var announcing sync.WaitGroup
	announcing.Go(func() { Announce(announceCtx, logger, announce) })
	defer func() { stop(); announcing.Wait() }()
	return run(ctx)
}
