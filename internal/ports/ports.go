// Package ports has the parts of a journal that only Moorebus's processes use:
// snapshots, the operator's ports, and loans between workers. A bus of [journal.Bus] may
// implement them; package control and the roles ask for one in their On.
package ports

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Fetcher is a [journal.Log] that gives out a few records for less than it costs to look
// for all there are.
type Fetcher interface {
	// Fetch returns the record with that sequence number in the run's shard, of
	// whichever run it is, or [journal.ErrNotFound]. It says nothing of what else is there.
	Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error)
}

// Early is a [journal.Log] that says that it has entries before they are on the disk.
type Early interface {
	// AppendThen is Append. It may call then before the entries are on the disk, if no other
	// append to the run can take their place any more. Until AppendThen returns nil the disk may
	// not have them, so then may append what follows from them, and must let nothing of it leave
	// the process.
	AppendThen(ctx context.Context, run events.Run, last uint64, then func(seq uint64), entries ...journal.Entry) (uint64, error)
}

// Revised is a [journal.Log] that says which builds work on the bus.
type Revised interface {
	// Revision returns the reducer.Revision that every build on the bus knows, as its operator
	// says; 0: nobody said it.
	Revision() int
}

// Snapshot is a run's memory after one of its records. It saves reading the
// records before, and proves nothing: its user checks it against the log, and can
// do without it.
type Snapshot struct {
	// Seq is the record's sequence number, N its place in the run, Head the
	// [events.Hash] of its body.
	Seq  uint64 `json:"seq"`
	N    uint64 `json:"n"`
	Head string `json:"head"`
	// Fold says what made the memory: the version of its shape and the hash of
	// the transition table. To a reader that says something else it is of no use.
	Fold   string          `json:"fold"`
	Memory json.RawMessage `json:"memory"`
}

// Snapshots keeps the latest snapshot of runs. Losing one loses nothing.
type Snapshots interface {
	// PutSnapshot replaces the run's snapshot. A memory may be larger than an
	// event.
	PutSnapshot(ctx context.Context, run events.Run, s Snapshot) error
	// Snapshot returns the run's snapshot, or [journal.ErrNotFound]. Any other error but
	// the context's and the bus's says that it cannot be read.
	Snapshot(ctx context.Context, run events.Run) (Snapshot, error)
	// DeleteSnapshot removes the run's snapshot, if there is one.
	DeleteSnapshot(ctx context.Context, run events.Run) error
	// Snapshotted returns the runs that have a snapshot, in no order. Their
	// shards are those of this log.
	Snapshotted(ctx context.Context) ([]events.Run, error)
}

// ErrPurgeDenied says that the log was made so that nothing can be purged.
var ErrPurgeDenied = errors.New("this log was made with deny_purge, which cannot be taken back: export it and import it into a new one")

// Purger removes runs: an operator's permission. Nothing in this port prevents
// others from appending to a run meanwhile, so the caller must ensure that nobody
// does.
type Purger interface {
	// Purge removes the run's records up to the sequence number and returns how
	// many they were. Errors: ErrPurgeDenied, [journal.ErrDenied], or the bus's.
	Purge(ctx context.Context, run events.Run, upTo uint64) (uint64, error)
	// Trim removes every record of a shard, of whichever run, that stands before
	// the sequence number, all at once, and returns how many they were. The errors
	// are those of Purge. Where many runs go it takes the time of one Purge, which
	// may grow with all that the shard has.
	Trim(ctx context.Context, shard int, before uint64) (uint64, error)
	// Records returns how many records a shard has, whatever they are, and the
	// number of its last one, 0 if it never had any.
	Records(ctx context.Context, shard int) (n, last uint64, err error)
	// DeleteBlob removes what a reference points to, unless it was stored, or
	// asked to be stored again, after the given time. It reports whether it did;
	// of what is not there, false. A time within the last [BlobSafe] removes what
	// a worker may be about to refer to.
	DeleteBlob(ctx context.Context, ref events.Ref, before time.Time) (bool, error)
}

// BlobSafe is how long a stored object is safe from [Purger.DeleteBlob]: the
// event that refers to it must be appended within that time.
const BlobSafe = time.Hour

// Runless lists records of the log that belong to no run: those whose subject is not an
// event's, or whose shard is not that of their run. See package journalcheck.
// [journal.Log.Scan] leaves some of them out, [journal.Log.Read] all.
type Runless interface {
	// Runless yields a shard's records that belong to no run, in order.
	Runless(ctx context.Context, shard int) iter.Seq2[journal.Record, error]
}
