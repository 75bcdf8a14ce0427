package journal

import (
	"context"

	"github.com/moorebus/moorebus/pkg/events"
)

// Fetcher is a [Log] that gives out a few records for less than it costs to look
// for all there are.
type Fetcher interface {
	// Fetch returns the record with that sequence number in the run's shard, of
	// whichever run it is, or [ErrNotFound]. It says nothing of what else is there.
	Fetch(ctx context.Context, run events.Run, seq uint64) (Record, error)
}
