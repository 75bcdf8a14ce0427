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

// Quorum is a log that knows whether it can store events.
type Quorum interface {
	// Quorum returns nil if every shard has a leader and the servers that it needs to store
	// anything, else why not. It answers within a few seconds, and is cheap.
	Quorum(ctx context.Context) error
}

// Fleet returns the queued work of all processes.
type Fleet interface {
	// Backlogs returns how much work waits in these states and in all pools of tools that the
	// caller may read, in the order of the states, then of the pools. A state without a
	// consumer is omitted. Errors: [journal.ErrDenied], or the bus's.
	Backlogs(ctx context.Context, states []events.State) ([]Backlog, error)
	// ShardSizes returns the sizes of the log's shards.
	ShardSizes(ctx context.Context) ([]ShardSize, error)
}

// Limiter is a queue that knows whether the deliveries of a pool of tools stand for its calls:
// the operator has bounded how many of them run at once, over all processes. Then a worker runs
// the calls of one delivery one after the other.
type Limiter interface {
	// Limited reports whether the pool's calls are bounded. It may block for a moment.
	Limited(ctx context.Context, pool string) (bool, error)
}
