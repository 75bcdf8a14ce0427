package announce_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/journal"
)

func claimOf(digest string) journal.Claim {
	return journal.Claim{Kind: journal.ClaimAgent, Name: "clerk", Digest: digest}
}

// claims claims a name for "new" while "old" has announced it, and returns how long
// that took.
func claims(t *testing.T, olds, news string, living bool) (took time.Duration, err error) {
	t.Helper()
	dir := announce.NewDirectory(simtest.New(simtest.Options{}), nil)
	old := func(ctx context.Context) error {
		return dir.AnnounceProviders(ctx, "old", nil, claimOf(olds))
	}
	require.NoError(t, old(t.Context()))
	if living {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go announce.Repeat(ctx, slog.New(slog.DiscardHandler), old)
	}
	began := time.Now()
	err = announce.Claim(t.Context(), slog.New(slog.DiscardHandler), dir, "new", []journal.Claim{claimOf(news)})
	return time.Since(began), err
}

// A name that another process uses for something else is refused, and the error names
// both. One that went away is waited for. Who means the same is no obstacle.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took, err := claims(t, "one", "other", true)
		var taken *journal.NameTakenError
		require.ErrorAs(t, err, &taken)
		require.ErrorContains(t, err, `the agent "clerk" has one definition in the process old and another one in this process (new)`)
		require.LessOrEqual(t, took, buckets.AnnouncementRefresh+2*time.Second)

		took, err = claims(t, "one", "other", false)
		require.NoError(t, err)
		require.InDelta(t, buckets.AnnouncementTTL, took, float64(2*time.Second))

		for _, living := range []bool{true, false} {
			took, err = claims(t, "one", "one", living)
			require.NoError(t, err)
			require.Zero(t, took)
		}
	})
}

// Waiting for a name ends with the context.
func TestClaimThatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := announce.NewDirectory(simtest.New(simtest.Options{}), nil)
		require.NoError(t, dir.AnnounceProviders(t.Context(), "old", nil, claimOf("one")))
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		err := announce.Claim(ctx, slog.New(slog.DiscardHandler), dir, "new", []journal.Claim{claimOf("other")})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestAnnounceRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var at []time.Duration
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			announce.Repeat(ctx, slog.New(slog.DiscardHandler), func(context.Context) error {
				at = append(at, time.Since(began))
				if len(at) == 2 || len(at) == 3 {
					return errors.New("away")
				}
				if len(at) == 5 {
					cancel()
				}
				return nil
			})
		}()
		<-done
		require.Equal(t, []time.Duration{0, 10 * time.Second, 11 * time.Second, 12 * time.Second, 22 * time.Second}, at)
	})
}

// Misses count from the first one in a row; finding the thing, or not looking for long,
// ends a row.
func TestMisses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := announce.NewMisses[string](10 * time.Second)
		require.False(t, m.Any())
		require.Zero(t, m.Miss("a"))
		time.Sleep(8 * time.Second) // in the bubble
		require.Zero(t, m.Miss("b"))
		require.Equal(t, 8*time.Second, m.Miss("a"))
		time.Sleep(8 * time.Second) // in the bubble
		require.Equal(t, 16*time.Second, m.Miss("a"))
		m.Found("a", "c")
		require.Zero(t, m.Miss("a"))
		require.Equal(t, 8*time.Second, m.Miss("b"))
		time.Sleep(11 * time.Second) // in the bubble
		require.Zero(t, m.Miss("b"))
		m.Clear()
		require.False(t, m.Any())
	})
}
