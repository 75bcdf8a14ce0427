package worker

import (
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// outage says how long work waits for a store that does not answer, and how often it
// retries. The result in hand may have been expensive, or impossible to repeat. After that
// the attempt counts as failed.
var outage = retry.Policy{First: 500 * time.Millisecond, Budget: time.Minute}

// fullDelay is the pause where the log has no room.
const fullDelay = 2 * time.Second

// Outlast calls try until it succeeds, fails for a reason that waiting does not mend (see
// [Passing] and [retry.Stop]), or has failed for a minute. waiting is that of
// [retry.Policy.Do].
func Outlast(ctx context.Context, try func(context.Context) error, waiting func(err error, delay time.Duration)) error {
	return outage.Do(ctx, func(ctx context.Context) error {
		err := try(ctx)
		if !Passing(err) {
			return retry.Stop(err)
		}
		return outageOf(err)
	}, waiting)
}

// outageOf adds to an outage when to retry.
func outageOf(err error) error {
	if errors.Is(err, journal.ErrFull) {
		return retry.After(fullDelay, err)
	}
	return retry.After(outage.First, err)
}

// Passing reports whether an error may pass by itself: it is neither about what is stored
// nor about permissions.
func Passing(err error) bool {
	var draft *runlog.DraftError
	var parentGone *runlog.ParentGoneError
	var foreign *reducer.TableError
	switch {
	case err == nil, errors.As(err, &draft), errors.As(err, &parentGone), errors.As(err, &foreign):
		return false
	}
	return !errors.Is(err, journal.ErrDenied) && !errors.Is(err, journal.ErrNotReady) && !errors.Is(err, journal.ErrTooLarge)
}
