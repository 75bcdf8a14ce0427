// Package follow keeps a store of runs up to date with the log.
package follow

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
)

// ErrMoved says that the store is not where a batch begins: another process has written.
var ErrMoved = errors.New("the store was written by another process")

// Store is where a follower keeps what it makes of the log. Its methods are safe for concurrent use.
type Store interface {
	// Positions returns up to where each stream of the log was read, by the stream's name. A stream that
	// was never read is missing.
	Positions(ctx context.Context) (map[string]uint64, error)
	// Runs returns the rows of those of the runs that the store has, in any order.
	Runs(ctx context.Context, runs []events.Run) ([]history.Run, error)
	// Apply stores all of a batch and the stream's new position, or nothing. If the stream's position is
	// not the batch's From (0: it was never read), the error is ErrMoved. After any other error the batch
	// may be stored.
	Apply(ctx context.Context, b history.Batch) error
	// Reset removes everything, positions too. What is not made of the log stays.
	Reset(ctx context.Context) error
}
