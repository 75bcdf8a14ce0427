package ports

import (
	"context"
	"time"
)

// ArmedTimer names a run's timer.
type ArmedTimer struct{ Namespace, Run, Kind string }

// ArmedTimers know which timers there are.
type ArmedTimers interface {
	// OldestTimer returns the place of the oldest message beside the timers, and when they were
	// begun anew. It is behind a mark as long as nobody removed all timers since [ArmedTimers.MarkTimers].
	OldestTimer(ctx context.Context) (seq uint64, begun time.Time, err error)
	// MarkTimers stores a mark, which stays until all timers are removed or another one is
	// stored, and returns its place.
	MarkTimers(ctx context.Context) (seq uint64, err error)
	// ArmedTimers returns all timers that are set, or that fired and have not been processed.
	ArmedTimers(ctx context.Context) (map[ArmedTimer]bool, error)
}
