package gateway

import (
	"context"
	"net/http"

	"github.com/moorebus/moorebus/pkg/events"
)

// missing says why a run is not in the log: it was purged, or never there.
func (g *Gateway) missing(ctx context.Context, at events.Run) error {
	if err := g.purged(ctx, at, http.StatusNotFound); err != nil {
		return err
	}
	return noRun(at.ID)
}

// purged returns an *[Error] with the status if the run was purged. A purge
// leaves its tombstone long before it removes the first event.
func (g *Gateway) purged(ctx context.Context, at events.Run, status int) error {
	stone, err := g.launcher.Tombstone(ctx, at)
	if stone == nil || err != nil {
		return err
	}
	e := fault(status, CodeRunPurged, "run %s was purged; its archive can be imported again", at.ID)
	e.Fields = map[string]any{"run": at.ID, "purged_at": stone.PurgedAt, "n": stone.Events}
	return e
}
