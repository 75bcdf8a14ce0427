package ports

import (
	"context"
	"encoding/json"
	"iter"

	"github.com/moorebus/moorebus/pkg/events"
)

// ArchivedBucket is what a bus stores outside the log under one name: values, or objects.
type ArchivedBucket struct {
	Name string `json:"name"`
	// Objects says that [Archive.Objects] reads it, and not [Archive.Values].
	Objects bool `json:"objects,omitempty"`
	// First, Last and Messages say what it has. If they are the same later, nothing has changed.
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	Messages uint64 `json:"messages"`
	// Config belongs to the adapter, which makes the bucket of it again.
	Config json.RawMessage `json:"config"`
}

// Value is one value of a bucket. Its Subject says where it belongs, on every bus; Header has
// what the adapter needs to know of it.
type Value struct {
	Subject string            `json:"subject"`
	Header  map[string]string `json:"header,omitempty"`
	Data    []byte            `json:"data,omitempty"`
}

// Object is an object with its number in its bucket.
type Object struct {
	Ref events.Ref
	Seq uint64
}

// Archive reads everything outside the log, for a backup, and writes it back. It needs an operator's
// permission. What lives for a short time, such as announcements, and what follows from the log,
// such as snapshots and the timers of runs, is not among it.
type Archive interface {
	// Buckets returns every bucket, sorted by name.
	Buckets(ctx context.Context) ([]ArchivedBucket, error)
	// Values yields the bucket's values, in the order in which they were put. A value that is
	// replaced meanwhile comes in its old form, its new one, or both, the new one last.
	Values(ctx context.Context, bucket string) iter.Seq2[Value, error]
	// Objects yields what was stored behind that number, in order. One that is deleted
	// meanwhile may be among it.
	Objects(ctx context.Context, bucket string, after uint64) iter.Seq2[Object, error]
	// MakeBucket makes a bucket that is not there.
	MakeBucket(ctx context.Context, b ArchivedBucket) error
	// PutValue puts a value where it belongs. Its bucket has to be there.
	PutValue(ctx context.Context, v Value) error
	// Gather makes appends of different runs that wait at the same moment one batch from now on,
	// which pays for a process that appends as much as it can.
	Gather()
}
