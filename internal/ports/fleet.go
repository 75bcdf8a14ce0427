package ports

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Backlog is how much of a state's work waits, in all shards and namespaces.
type Backlog struct {
	// State is where the work is done; acting stands for parallel_acting as well. Pool is
	// that of the tools, empty for other states.
	State events.State `json:"state"`
	Pool  string       `json:"pool,omitempty"`
	// Waiting counts what was never delivered, InFlight what is delivered and not finished.
	Waiting  uint64 `json:"waiting"`
	InFlight int    `json:"in_flight"`
	// Oldest is when the oldest event was stored that has no verdict yet; zero: there is
	// none. Delivered is, for each shard, the sequence number up to which events were
	// delivered.
	Oldest    time.Time `json:"-"`
	Delivered []uint64  `json:"-"`
}

// ShardSize is how large a shard of the log is. MaxBytes below 1 is no limit.
type ShardSize struct {
	Records, Bytes uint64
	MaxBytes       int64
}

// Fleet is what a bus knows of itself and of the work of all processes.
type Fleet interface {
	// Quorum returns nil if every shard has a leader and the servers that it needs to store
	// anything, else why not. It answers within a few seconds, and is cheap.
	Quorum(ctx context.Context) error
	// Backlogs returns how much work waits in these states and in all pools of tools that the
	// caller may read, in the order of the states, then of the pools. A state without a
	// consumer is omitted. Errors: [journal.ErrDenied], or the bus's.
	Backlogs(ctx context.Context, states []events.State) ([]Backlog, error)
	// ShardSizes returns the sizes of the log's shards.
	ShardSizes(ctx context.Context) ([]ShardSize, error)

	// OldestTimer returns the position of the oldest message in the timers' stream, and when that was
	// started anew. It is behind a mark as long as nobody removed all timers since [Fleet.MarkTimers].
	OldestTimer(ctx context.Context) (seq uint64, begun time.Time, err error)
	// MarkTimers stores a mark, which stays until all timers are removed or another one is
	// stored, and returns its place.
	MarkTimers(ctx context.Context) (seq uint64, err error)
	// ArmedTimers returns all timers that are set, or that fired and have not been processed.
	ArmedTimers(ctx context.Context) (map[ArmedTimer]bool, error)
}
