package retry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/retry"
)

var errFailed = errors.New("failed")

// fails runs a policy on work that fails with the given errors in turn, and returns
// when each attempt began, and the result.
func fails(t *testing.T, ctx context.Context, p retry.Policy, with ...error) (at []time.Duration, err error) {
	t.Helper()
	began := time.Now()
	err = p.Do(ctx, func(context.Context) error {
		at = append(at, time.Since(began))
		return with[min(len(at), len(with))-1]
	}, nil)
	return at, err
}

const s = time.Second

func TestPolicy(t *testing.T) {
	cases := []struct {
		name   string
		policy retry.Policy
		errs   []error
		at     []time.Duration
		err    error
	}{
		{"success at once", retry.Policy{First: s}, []error{nil}, []time.Duration{0}, nil},
		{"a constant pause", retry.Policy{First: s}, []error{errFailed, errFailed, nil}, []time.Duration{0, s, 2 * s}, nil},
		{"attempts", retry.Policy{First: s, Attempts: 2}, []error{errFailed}, []time.Duration{0, s}, errFailed},
		{"doubles up to the bound", retry.Policy{First: s, Factor: 2, Max: 3 * s, Attempts: 4}, []error{errFailed}, []time.Duration{0, s, 3 * s, 6 * s}, errFailed},
		{"a budget", retry.Policy{First: s, Budget: 2 * s}, []error{errFailed}, []time.Duration{0, s, 2 * s}, errFailed},
		{"stop", retry.Policy{First: s}, []error{errFailed, retry.Stop(errFailed)}, []time.Duration{0, s}, errFailed},
		{"later", retry.Policy{First: s}, []error{fmt.Errorf("busy: %w", retry.After(5*s, errFailed)), nil}, []time.Duration{0, 5 * s}, nil},
		{"later is never sooner", retry.Policy{First: s}, []error{retry.After(1, errFailed), nil}, []time.Duration{0, s}, nil},
		{"the last error as it is", retry.Policy{First: s, Attempts: 1}, []error{retry.After(5*s, errFailed)}, []time.Duration{0}, errFailed},
		{"jitter", retry.Policy{First: s, Factor: 2, Jitter: func(d time.Duration) time.Duration { return d / 2 }},
			[]error{errFailed, errFailed, nil}, []time.Duration{0, s / 2, 3 * s / 2}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at, err := fails(t, t.Context(), c.policy, c.errs...)
				require.Equal(t, c.at, at)
				require.ErrorIs(t, err, c.err)
			})
		})
	}
}

func TestDelayOfManyFailures(t *testing.T) {
	require.Equal(t, s, retry.Policy{First: s, Factor: 2}.Delay(0))
	require.Equal(t, s, retry.Policy{First: time.Hour, Max: s}.Delay(1), "a bound below the first delay")
	require.Equal(t, 100*365*24*time.Hour, retry.Policy{First: s, Factor: 2}.Delay(1e9), "no overflow without a bound")
}

func TestTheContextEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*s/2, why)
		defer cancel()
		at, err := fails(t, ctx, retry.Policy{First: s}, errFailed)
		require.Equal(t, []time.Duration{0, s}, at)
		require.ErrorIs(t, err, why)
		require.False(t, retry.Wait(ctx, 0))
	})
}

func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		err := retry.Policy{First: s, Factor: 2, Attempts: 3}.Do(t.Context(),
			func(context.Context) error { return errFailed },
			func(err error, delay time.Duration) { told = append(told, fmt.Sprint(err, " ", delay)) })
		require.ErrorIs(t, err, errFailed)
		require.Equal(t, []string{"failed 1s", "failed 2s"}, told, "not before the end")
	})
}

func TestAsked(t *testing.T) {
	delay, asked := retry.Asked(errors.Join(errFailed, retry.After(s, nil), fmt.Errorf("x: %w", retry.After(3*s, errFailed))))
	require.True(t, asked)
	require.Equal(t, 3*s, delay)
	_, asked = retry.Asked(errFailed)
	require.False(t, asked)
}

func TestErrors(t *testing.T) {
	require.NoError(t, retry.Stop(nil))
	require.ErrorIs(t, retry.Stop(errFailed), errFailed)
	require.EqualError(t, retry.Stop(errFailed), "failed")
	require.EqualError(t, retry.After(s, errFailed), "failed")
	require.EqualError(t, retry.After(s, nil), "try again in 1s")
}

func TestFromHeader(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		header, value string
		want          time.Duration
	}{
		{"X", "1", 0},
		{"Retry-After", "20", 20 * time.Second},
		{"Retry-After", " 0.5 ", 500 * time.Millisecond},
		{"Retry-After-Ms", "250", 250 * time.Millisecond},
		{"Retry-After", "Fri, 02 Jan 2026 03:05:05 GMT", time.Minute},
		{"Retry-After", "Fri, 02 Jan 2026 03:00:00 GMT", 0},
		{"Retry-After", "-5", 0},
		{"Retry-After", "0", 0},
		{"Retry-After", "soon", 0},
		{"Retry-After", "inf", 0},
		{"Retry-After", "NaN", 0},
		{"Retry-After", "1e300", 0},
	} {
		require.Equal(t, c.want, retry.FromHeader(http.Header{c.header: {c.value}}, now), c.value)
	}
}
