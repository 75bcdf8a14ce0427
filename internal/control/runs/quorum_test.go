package runs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/journal"
)

// lag is how long an answer to the question for a quorum takes where nobody gives it.
const lag = 3500 * time.Millisecond

// hangs is a request that ends with its context, after so long a time at most.
func hangs(most time.Duration, end error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return fmt.Errorf("append: %w", errors.Join(end, ctx.Err()))
		case <-time.After(most):
			return nil
		}
	}
}

// quorumAt is a log that has no quorum in these times after the beginning.
func quorumAt(began time.Time, from, to, lag time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		if now := time.Since(began); now < from || now >= to {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lag):
			return errors.New("stream MOORE_0 has no quorum")
		}
	}
}

func TestWhileQuorum(t *testing.T) {
	for name, c := range map[string]struct {
		from, to, lag time.Duration
		takes         time.Duration
		end           error
		// ends is when the request ends, code and unknown how.
		ends    time.Duration
		code    string
		unknown bool
	}{
		"a request that takes long":            {takes: 25 * time.Second, ends: 25 * time.Second},
		"no quorum, and a leader that says so": {to: time.Hour, takes: time.Hour, ends: 7 * time.Second, code: refusal.CodeUnavailable},
		"no quorum, and nobody who answers":    {to: time.Hour, lag: lag, takes: time.Hour, ends: 7 * time.Second, code: refusal.CodeUnavailable},
		"an append in flight":                  {to: time.Hour, takes: time.Hour, end: journal.ErrUnknownOutcome, ends: 7 * time.Second, unknown: true},
		"an election":                          {to: 5 * time.Second, takes: 6 * time.Second, ends: 6 * time.Second},
		"a quorum that is lost later":          {from: 10 * time.Second, to: time.Hour, takes: time.Hour, ends: 17 * time.Second, code: refusal.CodeUnavailable},
		"a refusal":                            {to: time.Hour, takes: time.Hour, end: refusal.New(refusal.Conflict, refusal.CodePaused, "it is paused"), ends: 7 * time.Second, code: refusal.CodePaused},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				a := &Editor{Quorum: quorumAt(began, c.from, c.to, c.lag)}
				err := a.WhileQuorum(t.Context(), hangs(c.takes, c.end))
				took := time.Since(began)
				require.LessOrEqual(t, took, c.ends)
				require.Greater(t, took, c.ends-2*unansweredAfter)
				switch {
				case c.unknown:
					require.ErrorIs(t, err, journal.ErrUnknownOutcome)
					require.ErrorContains(t, err, "nothing can be stored now: stream MOORE_0 has no quorum")
				case c.code == "":
					require.NoError(t, err)
					require.Equal(t, c.ends, took)
				default:
					require.True(t, refusal.Is(err, c.code), "%v", err)
				}
			})
		})
	}
}

func TestNoQuorum(t *testing.T) {
	require.NoError(t, (&Editor{}).NoQuorum(t.Context()), "a log that does not know")
	err := (&Editor{Quorum: func(context.Context) error { return errors.New("stream MOORE_0 has no quorum") }}).NoQuorum(t.Context())
	require.True(t, refusal.Is(err, refusal.CodeUnavailable))
	require.ErrorContains(t, err, "stream MOORE_0 has no quorum")
}
