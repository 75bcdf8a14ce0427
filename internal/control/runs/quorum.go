package runs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// unansweredAfter is how long a request takes before the log is asked whether it has a
	// quorum, and quorumWait how long it may be without one from then on.
	unansweredAfter, quorumWait = 3 * time.Second, 3500 * time.Millisecond
	// quorumPause is the pause before the log is asked again.
	quorumPause = 250 * time.Millisecond
)

// noQuorumError is why the log stores nothing.
type noQuorumError struct{ reason error }

func (e *noQuorumError) Error() string { return "nothing can be stored now: " + e.reason.Error() }
func (e *noQuorumError) Unwrap() error { return e.reason }

// WhileQuorum runs do for a request that somebody waits for. If the log has no quorum, it ends
// do's context before 7 s are over, and the error is Unavailable, or
// [journal.ErrUnknownOutcome]. While the log has a quorum, do may take any time.
func (a *Editor) WhileQuorum(ctx context.Context, do func(context.Context) error) error {
	if a.Quorum == nil {
		return do(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(unansweredAfter, func() {
		for a.awaitQuorum(ctx, cancel) && retry.Wait(ctx, unansweredAfter) {
		}
	}).Stop()
	err := do(ctx)
	var lost *noQuorumError
	var known *refusal.Error
	switch {
	case err == nil || !errors.As(context.Cause(ctx), &lost) || errors.Is(err, journal.ErrFull):
		return err
	case errors.As(err, &known):
		if errors.Is(err, journal.ErrUnknownOutcome) {
			why := *known
			why.Message = lost.Error() + ": " + known.Message
			return &why
		}
		return err
	case errors.Is(err, journal.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", lost, err)
	}
	return lost.refusal()
}

// awaitQuorum waits until the log has a quorum. If it has none for quorumWait, it cancels and
// reports false.
func (a *Editor) awaitQuorum(ctx context.Context, cancel context.CancelCauseFunc) bool {
	waiting, stop := context.WithTimeout(ctx, quorumWait)
	defer stop()
	var reason error
	for {
		err := a.Quorum(waiting)
		if err == nil {
			return true
		}
		if reason == nil || waiting.Err() == nil {
			reason = err
		}
		if !retry.Wait(waiting, quorumPause) {
			cancel(&noQuorumError{reason})
			return false
		}
	}
}

// NoQuorum returns an Unavailable refusal if the log has no quorum, else nil.
func (a *Editor) NoQuorum(ctx context.Context) error {
	if a.Quorum == nil {
		return nil
	}
	if err := a.Quorum(ctx); err != nil {
		return (&noQuorumError{err}).refusal()
	}
	return nil
}

func (e *noQuorumError) refusal() error {
	return refusal.Wrap(e, refusal.Unavailable, refusal.CodeUnavailable, "%s; try again, and see /readyz", e)
}
