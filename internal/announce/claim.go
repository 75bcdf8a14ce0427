package announce

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// claimLook is how often an instance checks whether a name has become free.
const claimLook = time.Second

// Claim waits until no other living instance uses one of the names for something else, and
// returns a [*journal.NameTakenError] if one does. An instance is alive if it repeats its
// announcement, which takes up to [journal.AnnouncementRefresh]. The announcement of a
// dead instance is gone after [journal.AnnouncementTTL].
//
// Other errors are the bus's. An instance that may not read the announcements, or finds
// none, claims its names without a check.
func Claim(ctx context.Context, logger *slog.Logger, dir journal.Directory, instance string, claims []journal.Claim) error {
	first := map[journal.Claim]uint64{} // by the claim without its number
	began := time.Now()
	return retry.Policy{First: claimLook}.Do(ctx, func(ctx context.Context) error {
		taken, err := takenBy(ctx, dir, instance, claims)
		switch {
		case errors.Is(err, journal.ErrDenied), errors.Is(err, journal.ErrNotReady):
			return nil
		case err != nil:
			return retry.Stop(err)
		}
		for _, c := range taken {
			seq := c.Seq
			c.Seq = 0
			known, before := first[c]
			if before && (seq != known || time.Since(began) > journal.AnnouncementTTL+journal.AnnouncementRefresh) {
				return retry.Stop(&journal.NameTakenError{Claim: c, Instance: instance})
			}
			if !before {
				first[c] = seq
				logger.Warn("another process has announced this name with another definition; waiting to see whether that process still runs",
					"kind", c.Kind, "name", c.Name, "other", c.Instance, "for_at_most", journal.AnnouncementTTL)
			}
		}
		if len(taken) > 0 {
			return errTaken
		}
		return nil
	}, nil)
}

var errTaken = errors.New("a name is taken")

// Claimed returns a [*journal.NameTakenError] if another instance now uses one of the
// names for something else. Other errors are the bus's.
func Claimed(ctx context.Context, dir journal.Directory, instance string, claims []journal.Claim) error {
	taken, err := takenBy(ctx, dir, instance, claims)
	if err != nil || len(taken) == 0 {
		return err
	}
	return &journal.NameTakenError{Claim: taken[0], Instance: instance}
}

// takenBy returns the claims of other instances that contradict the given ones.
func takenBy(ctx context.Context, dir journal.Directory, instance string, claims []journal.Claim) ([]journal.Claim, error) {
	all, err := dir.Claims(ctx)
	var taken []journal.Claim
	for _, other := range all {
		for _, c := range claims {
			if other.Instance != instance && other.Kind == c.Kind && other.Name == c.Name && other.Digest != c.Digest {
				taken = append(taken, other)
			}
		}
	}
	return taken, err
}
