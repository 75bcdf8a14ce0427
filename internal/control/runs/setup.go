package runs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// setupEvery is how often a bus is tried that lacks something.
const setupEvery = 15 * time.Second

// UntilSetUp runs a part of the gateway. While the bus lacks what the part needs, or permits
// it not, as on a bus that an older build set up, it logs what does not happen and what to do,
// once for each reason, and runs the part again from time to time. It returns what part returns
// otherwise, or nil when ctx ends.
func UntilSetUp(ctx context.Context, log *slog.Logger, undone string, part func(context.Context) error) error {
	for said := ""; ; {
		err := part(ctx)
		if ctx.Err() != nil || !errors.Is(err, journal.ErrDenied) && !errors.Is(err, journal.ErrNotReady) {
			return err
		}
		if err.Error() != said {
			said = err.Error()
			log.Error(undone+": run `moorebus init` and print the permissions again (--print-permissions); it then starts by itself", "reason", err)
		}
		if !retry.Wait(ctx, setupEvery) {
			return nil
		}
	}
}
