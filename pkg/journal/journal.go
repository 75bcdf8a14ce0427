// Package journal is the port to the log: where the events of runs are stored,
// read, followed and delivered to workers.
//
// The log is split into shards. Within a shard every record has a sequence
// number that only grows, and a run lies in one shard altogether, so the order
// of a run's records is the order of their sequence numbers. Records are never
// changed or removed by anything in this port.
//
// There is one way to write: [Log.Append], under the condition that nothing was
// appended to that run since the caller looked. That makes an append safe to
// repeat: a second one with the same condition fails with [ErrConflict].
//
// The port knows records, not runs' meaning: whether an event is legal in its
// run is for the reader to check. Adapters are in the sub-packages and pass the
// suite in package journaltest.
package journal

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/events"
)

// The errors of a journal. Adapters wrap them; match with errors.Is.
var (
	// ErrConflict says that the run's log was not where the append expected
	// it: another writer was first, or this very append was stored before.
	// Nothing was stored now.
	ErrConflict = errors.New("another event was appended first")
	// ErrUnknownOutcome says that an append may or may not be stored. Read the tail
	// to find out.
	ErrUnknownOutcome = errors.New("the append may or may not be stored")
	// ErrTooLarge says that an entry does not fit into the log.
	ErrTooLarge = errors.New("the event is too large for the log")
	// ErrNotFound says that there is no such run, record or object.
	ErrNotFound = errors.New("not found")
	// ErrDenied says that the connection's permissions do not allow it.
	ErrDenied = errors.New("not allowed")
	// ErrNotReady says that the bus is there but streams or consumers are
	// missing; the message names the command that makes them.
	ErrNotReady = errors.New("the bus is not set up")
	// ErrFull says that nothing was stored because the storage is full. It passes when somebody
	// frees space.
	ErrFull = errors.New("the log takes no writes: its storage is full")
	// ErrDiskFull is the ErrFull of a disk, or of a server that stores nothing any
	// more because writing to its disk failed.
	ErrDiskFull error = diskFull{}
)

// diskFull is the one value of ErrDiskFull.
type diskFull struct{}

func (diskFull) Error() string        { return "the log accepts no writes: the server's disk is full" }
func (diskFull) Is(target error) bool { return target == ErrFull }

// MaxBody is the largest body of an event, in bytes: what a message may hold,
// less its headers.
const MaxBody = 960 << 10

// MaxBatch is how many events are appended at once at most: what the server takes
// as one atomic batch.
const MaxBatch = 1000

// Entry is an event to be appended.
type Entry struct {
	Subject events.Subject
	Body    []byte
}

// Record is a stored event as it lies in the log. It may hold anything that
// somebody published on the log's subjects, so the reader checks Subject and Body.
type Record struct {
	Subject string
	// Seq is the record's number in its shard, from 1.
	Seq  uint64
	Body []byte
	// Stored is when the log took it.
	Stored time.Time
	// After is where the writer believed that the run's log ended, as the record
	// says itself; 0: it does not say, or it is the run's first. It shows where to
	// look for the record before it, and proves nothing.
	After uint64
	// First says that the log had no record of the run when it took this one, which
	// it made sure of. False says nothing, as of a run's first record among several
	// that were stored together. Like After it is said of what was delivered or
	// fetched.
	First bool
}

// Filter chooses records by their subject; an empty field matches everything.
type Filter struct {
	Namespace string
	From, To  events.State
	Pool      string
	Run       string
}

// Log stores and reads runs. All methods are safe for concurrent use.
type Log interface {
	// Shards returns the number of shards, 1 or more. It never changes.
	Shards() int

	// Append stores the entries in order, all or none, if the run's last record
	// has sequence number last (0: the run has no record). It returns the
	// sequence number of the last entry. All entries must belong to run. They must
	// not be changed afterwards, even if ctx has ended: they may be in flight. Errors:
	// ErrConflict, ErrUnknownOutcome, ErrTooLarge, ErrDenied, ErrFull, or the context's.
	Append(ctx context.Context, run events.Run, last uint64, entries ...Entry) (uint64, error)

	// Read yields the run's records after the given sequence number, in order,
	// to the head as it was at some moment after the call. A run without
	// records yields nothing; if after is not 0, that it has none is ErrNotFound,
	// since what the caller knows of it was removed. An error ends the sequence.
	Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[Record, error]

	// Head returns the run's last record, or ErrNotFound.
	Head(ctx context.Context, run events.Run) (Record, error)

	// Newest returns the shard's last record that matches, or ErrNotFound. For a
	// filter that names a run it costs no more than Head.
	Newest(ctx context.Context, shard int, filter Filter) (Record, error)

	// Scan yields a shard's records that match, after the given sequence number,
	// in order, to the end of the shard as it was at some moment after the call.
	Scan(ctx context.Context, shard int, filter Filter, after uint64) iter.Seq2[Record, error]

	// Follow is Scan without an end: it waits for more until ctx ends. It
	// misses nothing and repeats nothing, also when the bus goes away and comes
	// back meanwhile. The only error it yields is the context's.
	Follow(ctx context.Context, shard int, filter Filter, after uint64) iter.Seq2[Record, error]

	// Last returns the sequence number of the shard's last record, 0 if it is
	// empty.
	Last(ctx context.Context, shard int) (uint64, error)

	// MaxBody is the largest body of an event that fits into a message now, in bytes: at most
	// [MaxBody]. It changes when the connection finds a server with another limit.
	MaxBody() int
}

// Feed is the live side of the log. It is fast, may lose messages, and other users can
// forge them. So read the log for whatever counts.
type Feed interface {
	// Watch calls fn for records of all shards that match, as they are stored,
	// from one goroutine, until stop is called. Records can be missed; after a
	// time in which that may have happened lost is called. Neither may block.
	// Other users of the bus can forge records, with any subject, number and
	// body: take one as a hint that its run may have grown, and read the log.
	Watch(filter Filter, fn func(Record), lost func()) (stop func(), err error)

	// PublishChunk sends a part of a model's text to everyone who listens now. It does not wait,
	// and does not report whether the part arrives.
	PublishChunk(run events.Run, data []byte) error

	// WatchChunks calls fn for the run's chunks as they come, from one goroutine, until
	// stop is called. Other users of the bus can forge them: show them until the reply is
	// in the log.
	WatchChunks(run events.Run, fn func(data []byte)) (stop func(), err error)

	// AskCatchUp asks the planner that streams the run's reply to repeat on the chunks the
	// text so far. It does not wait, and there may be no such planner.
	AskCatchUp(run events.Run) error

	// WatchAsks calls fn for the runs, of all namespaces, that somebody asks about, from
	// one goroutine, until stop is called. fn must not block. Any user may ask about any
	// run, as often as it likes.
	WatchAsks(fn func(run events.Run)) (stop func(), err error)
}

// Inbox names the deliveries that one group of workers shares: the events that
// wake any of the states, in one pool.
type Inbox struct {
	States []events.State
	Pool   string
}

// Delivery is a record handed to one worker. It is given to another one if it
// is not finished within the ack wait; Extend starts that time again.
type Delivery interface {
	Record() Record
	// Attempt counts the times it was delivered, from 1.
	Attempt() int
	// Ack finishes the delivery: nobody gets it again. It returns after the
	// acknowledgement was sent, not after it was stored.
	Ack() error
	// Retry gives the delivery back, to come again after the delay.
	Retry(delay time.Duration) error
	// Extend says that work continues.
	Extend() error
}

// Queue hands records to workers, each to one at a time.
type Queue interface {
	// Consume hands the inbox's deliveries of all shards to handle, each in its own
	// goroutine and at most slots at once. It asks for no more than
	// it has free slots, since a delivery that waits here would be taken for
	// lost. When ctx ends it asks for no more, waits for the handlers that run,
	// and returns nil; other errors are final (ErrNotReady, ErrDenied).
	Consume(ctx context.Context, inbox Inbox, slots int, handle func(Delivery)) error

	// AckWait returns how long a delivery of the inbox may go without Extend.
	AckWait(ctx context.Context, inbox Inbox) (time.Duration, error)

	// Undelivered reports whether a record, given by its shard and sequence number,
	// still waits to be delivered for the first time. The inbox must be the one that the
	// record is for, with one state. An inbox that was never consumed has delivered nothing.
	Undelivered(ctx context.Context, inbox Inbox, shard int, seq uint64) (bool, error)

	// Limited reports whether the operator has bounded how many calls of a pool of tools run at
	// once, over all processes. Then the deliveries stand for the calls: a worker runs those of
	// one delivery one after the other. It may block for a moment.
	Limited(ctx context.Context, pool string) (bool, error)
}

// Claim is what an instance means by a name.
type Claim struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Digest is equal if the meaning is. It does not reveal the meaning.
	Digest string `json:"digest"`
	// Instance makes the claim, and Seq grows whenever it is announced again. Both are
	// set in what others announced.
	Instance string `json:"-"`
	Seq      uint64 `json:"-"`
}

// The kinds of a [Claim]: what its name is the name of.
const (
	ClaimAgent    = "agent"
	ClaimProvider = "provider"
)

// NameTakenError says that another live process uses a name for something else.
type NameTakenError struct {
	// Claim is the other process's, Instance this one.
	Claim    Claim
	Instance string
}

// Error names both processes.
func (e *NameTakenError) Error() string {
	return fmt.Sprintf("the %s %q has one definition in the process %s and another one in this process (%s): stop the other process, or give one of the two another name",
		e.Claim.Kind, e.Claim.Name, e.Claim.Instance, e.Instance)
}

// Blobs keeps what is too large for the log.
type Blobs interface {
	// PutBlob stores data under its digest in the pool's bucket; storing the
	// same data again changes nothing.
	PutBlob(ctx context.Context, pool string, data []byte) (events.Ref, error)
	// Blob returns what a reference points to, checked against its digest, or
	// ErrNotFound, also where what is there has another size.
	Blob(ctx context.Context, ref events.Ref) ([]byte, error)
}

// Bus is everything that the roles of an installation need of a journal. Its adapters
// implement further ports, which only this module's processes use, as they alone use [kv.Store].
type Bus interface {
	Log
	Feed
	Queue
	Timers
	Blobs
	kv.Store
}

// Subject returns the subject filter of a shard's records that match; a
// negative shard stands for every shard.
func (f Filter) Subject(shard int) string {
	tokens := []string{"moore", strconv.Itoa(shard), f.Namespace, string(f.From), string(f.To), f.Pool, f.Run}
	for i, token := range tokens {
		if token == "" || i == 1 && shard < 0 {
			tokens[i] = events.Wildcard
		}
	}
	return strings.Join(tokens, ".")
}

// Match reports whether a subject has the form of an event's and every field
// that the filter names.
func (f Filter) Match(subject string) bool {
	rest := subject
	want := [7]string{2: f.Namespace, 3: string(f.From), 4: string(f.To), 5: f.Pool, 6: f.Run}
	for i, token := range want {
		got, tail, more := strings.Cut(rest, ".")
		if more != (i < len(want)-1) || (token != "" && got != token) {
			return false
		}
		rest = tail
	}
	return true
}
