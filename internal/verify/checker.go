package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/jsondiff"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Outcome is how verification found a run.
type Outcome string

// The outcomes. Ended is for the terminal states of an application's own table.
const (
	Done       Outcome = "done"
	Errored    Outcome = "error"
	Cancelled  Outcome = "cancelled"
	Ended      Outcome = "ended"
	Unfinished Outcome = "unfinished"
	Poisoned   Outcome = "poisoned"
	Diverged   Outcome = "diverged"
	// Orphaned is a fork whose parent is not in the log.
	Orphaned Outcome = "orphaned"
	// Foreign is a run of a transition table that the machine does not have.
	Foreign Outcome = "foreign"
)

// Outcomes lists the outcomes in the order in which reports show them.
func Outcomes() []Outcome {
	return []Outcome{Done, Errored, Cancelled, Ended, Unfinished, Poisoned, Diverged, Orphaned, Foreign}
}

// Finding is the first record of a run that is not as it must be.
type Finding struct {
	Namespace string  `json:"namespace"`
	Run       string  `json:"run"`
	Outcome   Outcome `json:"outcome"`
	// N is the record's place in the run, Seq in its shard.
	N   uint64 `json:"n"`
	Seq uint64 `json:"seq"`
	// Type is the event's type, empty if it could not be read.
	Type   events.Type `json:"type,omitempty"`
	Reason string      `json:"reason"`
}

// checker verifies one run, record after record. Once the run has ended it
// keeps no memory of it but a few words, for the case that more records follow.
type checker struct {
	machine *reducer.Machine
	run     events.Run

	// fold is nil after the run has ended, and so is its memory.
	fold *runlog.Fold
	mem  *reducer.Memory
	room *room
	// shadow is the fold that went through JSON at event shadowAt.
	shadow   *reducer.Memory
	shadowAt uint64

	// kept is the run's stored snapshot, keptSeq and keptHead the record that it
	// stands on; nil if there is none that anybody would use.
	kept     *reducer.Memory
	keptSeq  uint64
	keptHead string

	n     uint64
	head  string
	state events.State

	first *Finding
	// broken: one of the checks beyond the fold failed. unchained: the first
	// illegal record does not stand on the one before it. wentOn: a later event
	// takes an illegal one for legal. handled: the run was ended for its poison.
	broken, unchained, wentOn, handled bool
	// parentGone: what the run was forked from is not in the log, so that nothing of
	// it can be checked.
	parentGone bool
	// foreign: the run is of another transition table, so that only its chain can
	// be checked.
	foreign bool
	// illegalID is the id of the last illegal record that could be read.
	illegalID string
}

// newChecker returns the checker of a run. Those whose records are taken by one
// goroutine may share the room.
func newChecker(log journal.Log, machine *reducer.Machine, run events.Run, room *room) *checker {
	fold := runlog.NewFold(log, machine, run)
	return &checker{machine: machine, run: run, fold: fold, mem: fold.Memory(), state: fold.Memory().State, room: room}
}

// room is where a checker notes what it needs while it takes a record, and no longer.
type room struct {
	before, after fields
}

// outcome is the verdict on what was read so far.
func (c *checker) outcome() Outcome {
	switch {
	case c.parentGone:
		return Orphaned
	case c.foreign && !c.broken:
		return Foreign
	case c.broken, c.first != nil && !c.handled && (c.wentOn || c.unchained):
		return Diverged
	case c.first != nil:
		return Poisoned
	case !c.machine.Table().Terminal(c.state):
		return Unfinished
	}
	switch c.state {
	case events.Done:
		return Done
	case events.Errored:
		return Errored
	case events.Cancelled:
		return Cancelled
	}
	return Ended
}

func (c *checker) finding() *Finding {
	if c.first == nil {
		return nil
	}
	found := *c.first
	found.Namespace, found.Run, found.Outcome = c.run.Namespace, c.run.ID, c.outcome()
	return &found
}

func (c *checker) found(rec journal.Record, t events.Type, reason string) {
	if c.first == nil {
		c.first = &Finding{N: c.n, Seq: rec.Seq, Type: t, Reason: reason}
	}
}

// next takes the run's next record, which came on the parsed subject s. The
// error is that of reading what the run was forked from; a parent that is gone is
// none, but how the run is found.
func (c *checker) next(ctx context.Context, rec journal.Record, s events.Subject) error {
	e, err := c.machine.Codec().Decode(rec.Body)
	hash := events.Hash(rec.Body)
	head, n := c.head, c.n
	c.n, c.head = n+1, hash
	chained := err == nil && e.N == n+1 && e.Prev == head
	switch {
	case c.parentGone:
		return nil
	case c.foreign:
		c.checkChain(rec, head)
		return nil
	case c.mem == nil:
		c.late(rec, e, chained)
		return nil
	case err != nil:
		// Apply finds the same and counts it.
		_, err = c.fold.Apply(ctx, rec)
		var newer *reducer.TableError
		if errors.As(err, &newer) {
			c.foreign = true
			c.found(rec, newer.Version.Type, err.Error())
			return nil
		}
		c.illegal(rec, nil, err)
	default:
		c.room.before.note(c.mem)
		err = c.fold.ApplyEvent(ctx, s, e, hash)
		var gone *runlog.ParentGoneError
		var table *reducer.TableError
		switch {
		case errors.As(err, &table):
			c.foreign = true
			c.found(rec, e.Type(), err.Error())
			return nil
		case errors.As(err, &gone):
			c.parentGone = true
			c.found(rec, e.Type(), err.Error())
			return nil
		case err != nil && !runlog.Refused(err):
			return err
		case err != nil:
			c.unchained = c.unchained || c.first == nil && !chained
			c.illegal(rec, e, err)
		default:
			c.legal(rec, s, e, hash)
		}
	}
	c.compareKept(rec, e)
	c.state = c.mem.State
	if c.machine.Table().Terminal(c.state) {
		c.compare(rec, e)
		c.fold, c.mem, c.shadow, c.kept = nil, nil, nil, nil
	}
	return nil
}

// late is for what comes after the run's end. An event that stands on the end
// was written by somebody who knew it.
func (c *checker) late(rec journal.Record, e *events.Event, chained bool) {
	var t events.Type
	if e != nil {
		t = e.Type()
	}
	c.wentOn = c.wentOn || chained
	c.found(rec, t, fmt.Sprintf("the run ended in %s before it: nothing may follow", c.state))
}

func (c *checker) illegal(rec journal.Record, e *events.Event, err error) {
	reason := err.Error()
	var t events.Type
	var refused *reducer.IllegalError
	if errors.As(err, &refused) {
		t, reason = refused.Type, refused.Reason
	}
	if e != nil {
		// After an illegal record only the run's end may come. Who wrote another
		// event of the run took that record for legal, or wrote it when
		// something else stood there.
		c.wentOn = c.wentOn || c.first != nil && e.Run == c.run.ID
		c.illegalID = e.ID
	}
	c.found(rec, t, reason)
}

// legal checks what the fold cannot check of an event that it accepted.
func (c *checker) legal(rec journal.Record, s events.Subject, e *events.Event, hash string) {
	if c.first != nil && !c.broken {
		c.afterPoison(e)
		return
	}
	c.room.before.begun(c.mem, e)
	c.room.after.note(c.mem)
	for _, reason := range [...]string{
		checkOwnership(&c.room.before, &c.room.after, e),
		checkStable(c.machine.Codec(), e, rec.Body),
	} {
		if reason != "" {
			c.broken = true
			c.found(rec, e.Type(), reason)
		}
	}
	if c.shadow != nil {
		if err := c.machine.ApplyEvent(c.shadow, s, e, hash); err != nil {
			c.broken = true
			c.found(rec, e.Type(), fmt.Sprintf("after a snapshot at event %d it is refused: %v", c.shadowAt, err))
		}
	}
	if c.n == nextSnapshot(c.shadowAt) && !c.machine.Table().Terminal(c.mem.State) {
		c.compare(rec, e)
		c.snapshot(rec, e)
	}
}

// snapshot begins another fold from a snapshot of the memory as it is.
func (c *checker) snapshot(rec journal.Record, e *events.Event) {
	shadow, err := runlog.Reloaded(c.mem)
	if err != nil {
		c.broken = true
		c.found(rec, e.Type(), fmt.Sprintf("a snapshot of it cannot be read: %v", err))
		return
	}
	c.shadow, c.shadowAt = shadow, c.n
}

// nextSnapshot places the snapshots so that all of them together cost a part of
// the fold that does not grow with the run, and that one lies well inside it. A
// snapshot costs as much as folding about 50 events.
func nextSnapshot(last uint64) uint64 { return max(4, 8*last) }

// afterPoison checks a legal event that follows an illegal record: it ends the run, and says
// why.
func (c *checker) afterPoison(e *events.Event) {
	switch p := e.Data.(type) {
	case *events.FatalError:
		c.handled = p.Code == codes.Poison && p.N == c.first.N
	case *events.CancelledRun:
		c.handled = e.Cause != c.illegalID
	}
	c.wentOn = c.wentOn || !c.handled
}

// compare checks the fold through the snapshot against the full one.
func (c *checker) compare(rec journal.Record, e *events.Event) {
	if c.shadow == nil || c.first != nil {
		return
	}
	c.compareTo(c.shadow, rec, e, fmt.Sprintf("the fold through a snapshot at event %d gives another memory", c.shadowAt))
}

// keep takes the run's stored snapshot, which is compared when the fold comes to its
// record. A snapshot that no reader would use is ignored.
func (c *checker) keep(s ports.Snapshot) {
	if mem, err := runlog.Restore(c.machine, c.run, s); err == nil {
		c.kept, c.keptSeq, c.keptHead = mem, s.Seq, s.Head
	}
}

// compareKept compares the stored snapshot with the fold if it stands on this record.
func (c *checker) compareKept(rec journal.Record, e *events.Event) {
	if c.kept != nil && rec.Seq == c.keptSeq && c.head == c.keptHead {
		c.compareTo(c.kept, rec, e, fmt.Sprintf("the stored snapshot of event %d is another memory", c.n))
		c.kept = nil
	}
}

// equal reports whether everything that two memories show is equal. Their JSON is then
// the same, but for the sign of a zero.
func equal(a, b *reducer.Memory) bool {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		if x.Type().Field(i).IsExported() && !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return false
		}
	}
	return true
}

// compareTo reports a memory whose JSON differs from that of the fold.
func (c *checker) compareTo(other *reducer.Memory, rec journal.Record, e *events.Event, reason string) {
	if equal(c.mem, other) {
		return // most are, and this takes a quarter of the time of their JSON
	}
	full, fullErr := json.Marshal(c.mem)
	got, gotErr := json.Marshal(other)
	if fullErr == nil && gotErr == nil && bytes.Equal(full, got) {
		return
	}
	c.broken = true
	if changes := jsondiff.Compare(full, got, 1); len(changes) > 0 {
		reason += ": " + changes[0].String()
	}
	var t events.Type
	if e != nil {
		t = e.Type()
	}
	c.found(rec, t, reason)
}

// checkChain checks a record of a run whose graph is not known against the one before it.
// Its place and the chain of hashes can be read without knowing what it means.
func (c *checker) checkChain(rec journal.Record, head string) {
	if c.broken {
		return
	}
	var envelope struct {
		Type events.Type `json:"type"`
		N    uint64      `json:"n"`
		Prev string      `json:"prev"`
	}
	err := json.Unmarshal(rec.Body, &envelope)
	switch {
	case err != nil:
		c.breaks(rec, "", "cannot be read: "+err.Error())
	case envelope.N != c.n:
		c.breaks(rec, envelope.Type, fmt.Sprintf("n is %d, the run's next is %d", envelope.N, c.n))
	case envelope.Prev != head:
		c.breaks(rec, envelope.Type, fmt.Sprintf("prev does not match the hash of event %d", c.n-1))
	}
}

// breaks notes what is wrong with the chain in the place of what was said of the
// run's graph.
func (c *checker) breaks(rec journal.Record, t events.Type, reason string) {
	c.broken, c.first = true, nil
	c.found(rec, t, reason)
}

// checkStable returns what an event loses when it is written again; empty if
// nothing. Our own bodies come out byte for byte. Others may be written
// differently and have to say the same, except for payloads of older versions,
// which are lifted.
func checkStable(codec *events.Codec, e *events.Event, body []byte) string {
	again, err := codec.Encode(e)
	if err != nil {
		return fmt.Sprintf("cannot be written again: %v", err)
	}
	if bytes.Equal(again, body) {
		return ""
	}
	second, err := codec.Decode(again)
	if err != nil {
		return fmt.Sprintf("cannot be read after it was written again: %v", err)
	}
	if third, err := codec.Encode(second); err != nil || !bytes.Equal(third, again) {
		return "is written differently each time"
	}
	if schema(body) != schema(again) {
		return ""
	}
	if changes := jsondiff.Compare(withoutTime(body), withoutTime(again), 1); len(changes) > 0 {
		return "is not the same when it is written again: " + changes[0].String()
	}
	return ""
}

func schema(body []byte) string {
	var envelope struct {
		DataSchema string `json:"dataschema"`
	}
	// The body was decoded before, so this cannot fail.
	_ = json.Unmarshal(body, &envelope)
	return envelope.DataSchema
}

// withoutTime removes the time, which others may write with fewer digits.
func withoutTime(body []byte) []byte {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return body
	}
	delete(members, "time")
	rest, err := json.Marshal(members)
	if err != nil {
		return body
	}
	return rest
}
