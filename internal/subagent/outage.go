package subagent

import (
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// maxOutage is how long a store that does not answer is asked again, before the
// attempt counts as failed.
const maxOutage = time.Minute

// patiently does work on a call again as long as it fails by an outage, for a time.
func (s *Subagents) patiently(ctx context.Context, c call, try func(context.Context, call) (worker.Result, error)) worker.Result {
	for began := time.Now(); ; {
		result, err := try(ctx, c)
		switch {
		case err == nil:
			return result
		case !isOutage(err) || time.Since(began) >= maxOutage:
			return worker.Fail(err)
		}
		s.cfg.Logger.Warn("a call of an agent waits for a store", "run", c.Run, "call", c.ID, "tool", c.Name, "reason", err)
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return worker.Fail(context.Cause(ctx))
		}
	}
}

// isOutage reports whether an error may pass by itself: it is neither about what is
// stored nor about who asks.
func isOutage(err error) bool {
	var draft *runlog.DraftError
	var orphan *runlog.ParentGoneError
	var foreign *reducer.TableError
	var refusal *launch.Refusal
	switch {
	case errors.As(err, &draft), errors.As(err, &orphan), errors.As(err, &foreign), errors.As(err, &refusal):
		return false
	}
	return !errors.Is(err, journal.ErrDenied) && !errors.Is(err, journal.ErrNotReady) && !errors.Is(err, journal.ErrTooLarge)
}
