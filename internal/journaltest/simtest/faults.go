package simtest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ErrCrashed is what every operation of a killed process returns.
var ErrCrashed = errors.New("simulated crash: the process is dead")

// The points at which a process can be made to crash. To give a delivery back is
// an acknowledgement here.
const (
	BeforeAppend = "before-append"
	AfterAppend  = "after-append"
	BeforeAck    = "before-ack"
	AfterAck     = "after-ack"
	BeforeTimer  = "before-timer"
	AfterTimer   = "after-timer"
)

// Moment is where a process is when it is asked whether it crashes.
type Moment struct {
	// Point is one of [BeforeAppend], [AfterAppend], [BeforeAck], [AfterAck],
	// [BeforeTimer], [AfterTimer]. Where a timer is set or taken back, or one that
	// fired is acknowledged, there is no record: Nth counts how often the timer was
	// set before, and Attempt the tries to do so or its deliveries.
	Point   string
	Process *Process
	// Run and Nth name the record that is appended (the last one, if there are
	// several) or acknowledged: its run, and its place there, from 0.
	Run events.Run
	Nth int
	// Attempt counts the tries to append at this place, or the record's
	// deliveries, from 1.
	Attempt int
	// Together is how many runs a batch appends to; 0: it is no batch.
	Together int
	// Record is the record itself. It has no sequence number yet where it is
	// appended.
	Record journal.Record
}

// Observer is told what happens on the bus, in the order in which it happens.
// The journal is locked meanwhile: an observer must not call it.
type Observer interface {
	// Appended tells of records that were stored together.
	Appended(recs []journal.Record)
	// Finished tells of a record none of whose deliveries will come (again).
	Finished(rec journal.Record)
}

// Faults are the probabilities, from 0 to 1, of what can go wrong.
type Faults struct {
	// Delay holds a delivery or a timer back, for up to MaxDelay (0: one ack wait),
	// or a fetch, for up to a hundredth of that.
	Delay    float64
	MaxDelay time.Duration
	// Duplicate delivers a record a second time soon after the first.
	Duplicate float64
	// Reorder delivers a record after some that were stored later.
	Reorder float64
	// LoseAck drops an acknowledgement, so that the record is delivered again
	// after the ack wait.
	LoseAck float64
	// UnknownOutcome stores an append or a timer and reports ErrUnknownOutcome.
	UnknownOutcome float64
	// Lost does not store an append or a timer and reports ErrUnknownOutcome.
	Lost float64
	// BatchUnknown and BatchLost are UnknownOutcome and Lost for a batch of several runs.
	BatchUnknown, BatchLost float64
	// Bucket fails what is asked of a bucket that its first writer made, but for those of tools; half of
	// the writes that fail are done.
	Bucket float64
	// Fetch fails what is fetched by its number.
	Fetch float64
	// Lease takes a lease from the process that has it, within four ack waits.
	Lease float64
}

// Options says how the simulation behaves; the zero value is one shard without
// faults.
type Options struct {
	// Shards is the number of shards; 0: 1.
	Shards int
	// Revision is the reducer.Revision that every build on the bus knows; 0: nobody says it.
	Revision int
	// Seed chooses what goes wrong.
	Seed uint64
	// Faults says how often.
	Faults Faults
	// Jitter brings every delivery later by up to this much, each by another
	// time, so that what would happen at once happens in an order that the seed
	// chooses.
	Jitter time.Duration
	// Crash is asked at each crash point; when it returns true, the process that
	// is there dies at that point. It must not call the journal.
	Crash func(Moment) bool
	// GroupCommit gathers the appends of several runs that wait at the same moment,
	// see package groupcommit; each process does so for itself. A shard then takes
	// AppendTime for an append or a batch, and one at a time; 0: 5 ms.
	GroupCommit bool
	AppendTime  time.Duration
	// Grouped is told what a batch of several runs came to; may be nil. It must not
	// call the journal.
	Grouped func(Batch)
	// Observer sees what happens; may be nil.
	Observer Observer
	// AckWait is how long a delivery may go without a sign of life; 0: 15 s.
	AckWait time.Duration
}

func (o Options) withDefaults() Options {
	o.Shards = max(o.Shards, 1)
	if o.AckWait <= 0 {
		o.AckWait = 15 * time.Second
	}
	if o.AppendTime <= 0 {
		o.AppendTime = 5 * time.Millisecond
	}
	if o.Faults.MaxDelay <= 0 {
		o.Faults.MaxDelay = o.AckWait
	}
	return o
}

// chance returns [Chance] of the simulation's seed.
func (o Options) chance(kind string, key ...any) float64 { return Chance(o.Seed, kind, key...) }

// Chance returns a number from 0 to 1, always the same for the same seed, kind
// and key: what is decided by it does not depend on the order in which
// goroutines run.
func Chance(seed uint64, kind string, key ...any) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, seed, "\x00", kind)
	for _, k := range key {
		_, _ = fmt.Fprint(h, "\x00", k)
	}
	// FNV alone spreads the last bytes badly over the high bits.
	x := h.Sum64()
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}

// happens decides whether a fault strikes.
func (o Options) happens(probability float64, kind string, key ...any) bool {
	return probability > 0 && o.chance(kind, key...) < probability
}

// part returns a part of a duration.
func (o Options) part(d time.Duration, kind string, key ...any) time.Duration {
	return time.Duration(float64(d) * o.chance(kind, key...))
}
