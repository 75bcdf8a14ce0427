package ports

import "context"

// ArmedTimer names a run's timer.
type ArmedTimer struct{ Namespace, Run, Kind string }

// ArmedTimers know which timers there are.
type ArmedTimers interface {
	// Armed reports whether nobody has removed all timers since MarkArmed.
	Armed(ctx context.Context) (bool, error)
	MarkArmed(ctx context.Context) error
	// ArmedTimers returns all timers that are set, or that fired and have not been processed.
	ArmedTimers(ctx context.Context) (map[ArmedTimer]bool, error)
}
