package planner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestPolicyNext(t *testing.T) {
	custom := planner.Policy{
		Base: time.Second, Max: 3 * time.Second, MaxRetryAfter: time.Minute, Attempts: 4, RateLimitAttempts: 5,
	}
	tests := []struct {
		name   string
		policy planner.Policy
		err    error
		failed int
		wait   time.Duration
		again  bool
	}{
		{"first overload waits the base", planner.Policy{}, fail(llm.KindOverloaded), 1, 500 * time.Millisecond, true},
		{"the wait doubles", planner.Policy{}, fail(llm.KindNetwork), 3, 2 * time.Second, true},
		{"six attempts in all", planner.Policy{}, fail(llm.KindNetwork), 5, 8 * time.Second, true},
		{"no seventh attempt", planner.Policy{}, fail(llm.KindNetwork), 6, 0, false},
		{"a rate limit is given more time", planner.Policy{}, fail(llm.KindRateLimited), 6, 16 * time.Second, true},
		{"the wait is bounded", planner.Policy{}, fail(llm.KindRateLimited), 99, 30 * time.Second, true},
		{"a rate limit ends too", planner.Policy{}, fail(llm.KindRateLimited), 100, 0, false},
		{"a short wait asked for at a rate limit", planner.Policy{}, after(llm.KindRateLimited, time.Millisecond), 5, time.Millisecond, true},
		{"but not for ever", planner.Policy{}, after(llm.KindRateLimited, time.Millisecond), 7, time.Second, true},
		{"auth never", planner.Policy{}, fail(llm.KindAuth), 1, 0, false},
		{"invalid never", planner.Policy{}, fail(llm.KindInvalid), 1, 0, false},
		{"context too long never", planner.Policy{}, fail(llm.KindContextTooLong), 1, 0, false},
		{"other once more", planner.Policy{}, fail(llm.KindOther), 1, 500 * time.Millisecond, true},
		{"other only once more", planner.Policy{}, fail(llm.KindOther), 2, 0, false},
		{"an unknown kind never", planner.Policy{}, fail("new"), 1, 0, false},
		{"a foreign error counts as other", planner.Policy{}, errors.New("?"), 1, 500 * time.Millisecond, true},
		{"a context's error too", planner.Policy{}, context.DeadlineExceeded, 2, 0, false},
		{"a wrapped error is found", planner.Policy{}, fmt.Errorf("plan: %w", fail(llm.KindAuth)), 1, 0, false},
		{"the provider's wait wins", planner.Policy{}, after(llm.KindRateLimited, 42*time.Second), 1, 42 * time.Second, true},
		{"a short wait wins too", planner.Policy{}, after(llm.KindOverloaded, time.Millisecond), 4, time.Millisecond, true},
		{"a wait asked for is bounded", planner.Policy{}, after(llm.KindRateLimited, time.Hour), 1, 10 * time.Minute, true},
		{"a wait does not make auth pass", planner.Policy{}, after(llm.KindAuth, time.Second), 1, 0, false},
		{"a wait does not add attempts", planner.Policy{}, after(llm.KindOverloaded, time.Second), 6, 0, false},
		{"custom base", custom, fail(llm.KindNetwork), 1, time.Second, true},
		{"custom max", custom, fail(llm.KindNetwork), 3, 3 * time.Second, true},
		{"custom attempts", custom, fail(llm.KindNetwork), 4, 0, false},
		{"custom rate limit attempts", custom, fail(llm.KindRateLimited), 5, 0, false},
		{"custom bound of a wait", custom, after(llm.KindRateLimited, time.Hour), 1, time.Minute, true},
		{"one attempt means no retry of others", planner.Policy{Attempts: 1}, fail(llm.KindOther), 1, 0, false},
		{"base above max", planner.Policy{Base: time.Hour, Max: time.Second}, fail(llm.KindNetwork), 1, time.Second, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wait, again := tt.policy.Next(tt.err, planner.Failures{Kind: tt.failed, Unlimited: tt.failed, All: tt.failed})
			require.Equal(t, tt.again, again)
			require.Equal(t, tt.wait, wait)
		})
	}
}

// Each kind of failure has attempts of its own, and all together have a bound. The waits grow with
// all of them.
func TestKindsOfFailuresAreCountedApart(t *testing.T) {
	for name, c := range map[string]struct {
		kind   llm.ErrorKind
		failed planner.Failures
		wait   time.Duration
		again  bool
	}{
		"garbage after two overloads":     {llm.KindOther, planner.Failures{Kind: 1, Unlimited: 3, All: 3}, 2 * time.Second, true},
		"garbage twice":                   {llm.KindOther, planner.Failures{Kind: 2, Unlimited: 4, All: 4}, 0, false},
		"a network after five overloads":  {llm.KindNetwork, planner.Failures{Kind: 1, Unlimited: 6, All: 6}, 16 * time.Second, true},
		"an overload after rate limits":   {llm.KindOverloaded, planner.Failures{Kind: 1, Unlimited: 1, All: 90}, 500 * time.Millisecond, true},
		"a rate limit after overloads":    {llm.KindRateLimited, planner.Failures{Kind: 1, Unlimited: 5, All: 6}, 500 * time.Millisecond, true},
		"all together":                    {llm.KindOverloaded, planner.Failures{Kind: 1, Unlimited: 1, All: 100}, 0, false},
		"a rate limit ends all, too":      {llm.KindRateLimited, planner.Failures{Kind: 80, Unlimited: 20, All: 100}, 0, false},
		"what never passes never does so": {llm.KindAuth, planner.Failures{Kind: 1, Unlimited: 1, All: 1}, 0, false},
	} {
		wait, again := planner.Policy{}.Next(fail(c.kind), c.failed)
		require.Equal(t, c.again, again, name)
		require.Equal(t, c.wait, wait, name)
	}
}

// However short the waits are that a provider asks for, a run outlives a rate
// limit of half an hour.
func TestRateLimitsDoNotUseAttemptsUpQuickly(t *testing.T) {
	for _, asked := range []time.Duration{0, time.Millisecond, time.Second, time.Minute} {
		total := time.Duration(0)
		for failed := 1; ; failed++ {
			wait, again := planner.Policy{}.Next(after(llm.KindRateLimited, asked), planner.Failures{Kind: failed, All: failed})
			if !again {
				break
			}
			require.Equal(t, wait, planner.Policy{}.Wait(after(llm.KindRateLimited, asked), failed))
			total += wait
		}
		require.Greater(t, total, 30*time.Minute, "asked for %s each time", asked)
		require.Less(t, total, 24*time.Hour)
	}
	require.Equal(t, 30*time.Second, planner.Policy{}.Wait(errors.New("?"), 1000), "it never gives up")
}

func TestErrorTellsKindAndMessageAndUnwraps(t *testing.T) {
	cause := errors.New("cause")
	err := &llm.Error{Kind: llm.KindNetwork, Message: "gone", Err: cause}
	require.Equal(t, "network: gone", err.Error())
	require.ErrorIs(t, err, cause)
}

func fail(k llm.ErrorKind) error { return &llm.Error{Kind: k, Message: "m"} }

func after(k llm.ErrorKind, d time.Duration) error {
	return &llm.Error{Kind: k, Message: "m", RetryAfter: d}
}
