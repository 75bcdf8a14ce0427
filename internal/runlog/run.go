package runlog

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Run is one run as far as it was read. Everything but ID is used under [Run.Lock].
type Run struct {
	ID    events.Run
	store *Store

	lock runLock
	fold *Fold
	mem  *reducer.Memory // the fold's
	// seq is the last sequence number that mem holds. The next append is conditional on
	// it.
	seq uint64

	// written is the event of record seq if this process appended it, so that its delivery
	// need not be decoded.
	written *events.Event

	// first is the run's first event if this process appended it. It is read without the
	// lock.
	first atomic.Pointer[events.Event]

	// effects are what mem wants. They are valid if asked is set.
	effects []effects.Effect
	asked   bool

	// doubtful is set while mem may end with events that the disk does not have, and nothing may be
	// acknowledged because of them. It is read without the lock.
	doubtful atomic.Bool

	// ended is set when mem is terminal. The store reads it without the lock.
	ended atomic.Bool

	// size is the length of all bodies that mem was folded from, in bytes. The store reads
	// it without the lock.
	size atomic.Int64

	// holders, idle and idleSize belong to the store.
	holders  int
	idle     *list.Element
	idleSize int64
}

// Lock locks the run. Its holder may be appending, which takes as long as the log takes to
// answer.
func (r *Run) Lock() { r.lock <- struct{}{} }

// LockContext locks the run. If ctx ends before, it returns the context's error.
func (r *Run) LockContext(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case r.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock unlocks the run.
func (r *Run) Unlock() { <-r.lock }

// runLock is a mutex whose wait can be cancelled. It is held while its one place is taken.
type runLock chan struct{}

// Memory returns the run's memory. It changes with the next call of any other
// method and must not be used after Unlock.
func (r *Run) Memory() *reducer.Memory { return r.mem }

// Written returns the event of the last record if this process appended it, else nil. It
// must not be changed.
func (r *Run) Written() *events.Event { return r.written }

// Seq returns the sequence number of the last record that was read.
func (r *Run) Seq() uint64 { return r.seq }

// Doubtful reports whether the memory may hold what the disk does not: a flush failed, and the log
// could not be read since. The lock need not be held.
func (r *Run) Doubtful() bool { return r.doubtful.Load() }

// Terminal reports whether the run has ended.
func (r *Run) Terminal() bool { return r.store.machine.Table().Terminal(r.mem.State) }

// Effects returns what the run wants done. The slice must not be changed.
func (r *Run) Effects() []effects.Effect {
	if !r.asked {
		r.effects, r.asked = effects.Of(r.store.machine.Table(), r.mem), true
	}
	return r.effects
}

// Effect returns the effect of that key, if the run wants it.
func (r *Run) Effect(key string) (effects.Effect, bool) {
	all := r.Effects()
	for i := range all {
		if all[i].Key == key {
			return all[i], true
		}
	}
	return effects.Effect{}, false
}

// Refresh reads the log to its head, starting from a snapshot if nothing is known yet.
// Illegal records are in the memory as poison; errors are only the log's. Of a run that
// was purged nothing is known afterwards.
func (r *Run) Refresh(ctx context.Context) error {
	err := r.refresh(ctx)
	if errors.Is(err, journal.ErrNotFound) && r.seq > 0 {
		r.forget()
		return nil
	}
	return err
}

func (r *Run) refresh(ctx context.Context) error {
	if r.seq == 0 {
		if done, err := r.loadSnapshot(ctx); done || err != nil {
			return err
		}
	}
	return r.readOn(ctx)
}

// forget drops everything that is known of the run.
func (r *Run) forget() {
	fold := NewFold(r.store.log, r.store.machine, r.ID)
	r.fold, r.mem, r.seq = fold, fold.mem, 0
	r.effects, r.asked, r.written = nil, false, nil
	r.first.Store(nil)
	r.doubtful.Store(false)
	r.ended.Store(false)
	r.size.Store(0)
}

// readOn reads the log from the last known record to its head.
func (r *Run) readOn(ctx context.Context) error { return r.readUntil(ctx, nil) }

// readUntil is readOn, and calls seen for each event. A doubtful run is read from the beginning, and
// stays as it is if that fails: without its memory nothing would seem due.
func (r *Run) readUntil(ctx context.Context, seen func(*events.Event)) error {
	into := r
	if r.Doubtful() {
		into = &Run{ID: r.ID, store: r.store}
		into.forget()
	}
	for rec, err := range r.store.log.Read(ctx, r.ID, into.seq) {
		if err != nil {
			return fmt.Errorf("reading run %s: %w", r.ID.ID, err)
		}
		e, err := into.apply(ctx, rec)
		if err != nil {
			return err
		}
		if e != nil && seen != nil {
			seen(e)
		}
	}
	if into != r {
		r.forget()
		r.fold, r.mem, r.seq = into.fold, into.mem, into.seq
		r.ended.Store(into.ended.Load())
		r.size.Store(into.size.Load())
	}
	return nil
}

// apply folds the next record and returns its event, nil if it cannot be decoded. The
// error is that of reading the run's ancestors.
func (r *Run) apply(ctx context.Context, rec journal.Record) (*events.Event, error) {
	e, err := r.fold.Apply(ctx, rec)
	if err != nil && !Refused(err) {
		return nil, err
	}
	r.advance(rec.Seq, len(rec.Body))
	if err != nil {
		return nil, nil // it is poison, and the memory says so; or of no run
	}
	return e, nil
}

// Adopt gives a run with an empty log the memory of its parent, which then belongs to the
// run. The first commit has to be the Forked event that says so.
func (r *Run) Adopt(parent *Fold) {
	r.mem.Adopt(parent.mem)
	r.fold.size = parent.size
}

// advance records that mem changed.
func (r *Run) advance(seq uint64, bytes int) {
	r.seq = seq
	r.size.Add(int64(bytes) + r.fold.size)
	r.fold.size = 0
	r.effects, r.asked, r.written = nil, false, nil
	if r.Terminal() {
		r.ended.Store(true)
		r.store.Unbind(r.ID)
	}
}

// Extend brings the run to a delivered record. If the record is the next one, or was read
// before, it reads nothing; else it fills the gap or reads to the head. It returns the
// record's event, nil if it cannot be decoded.
func (r *Run) Extend(ctx context.Context, rec journal.Record) (*events.Event, error) {
	if r.Doubtful() {
		if err := r.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	if r.written != nil && rec.Seq == r.seq {
		return r.written, nil
	}
	e, err := r.store.machine.Codec().Decode(rec.Body)
	if err != nil {
		return nil, r.catchUp(ctx, rec, r.Refresh)
	}
	// A run's first event proves nothing by its chain: anything may precede it. So a run
	// of which nothing is known is read, or traced back to its first event.
	if r.seq > 0 && rec.Seq > r.seq && e.N == r.mem.N+1 && e.Prev == r.mem.Control.Head {
		if n, own := r.nextOf(rec, e); own {
			return e, r.applyNext(ctx, n)
		}
	}
	if rec.Seq > r.seq {
		if folded, err := r.fillGap(ctx, rec, e); folded || err != nil {
			return e, err
		}
	}
	if e.N < fewEvents {
		return e, r.catchUp(ctx, rec, r.readOn)
	}
	return e, r.catchUp(ctx, rec, r.Refresh)
}

func (r *Run) catchUp(ctx context.Context, rec journal.Record, refresh func(context.Context) error) error {
	if rec.Seq <= r.seq {
		return nil
	}
	if err := refresh(ctx); err != nil {
		return err
	}
	if r.seq < rec.Seq {
		// The replica that answered lags behind the one that delivered. Without the record
		// nothing would seem due, and the delivery would be acknowledged too early.
		return fmt.Errorf("reading run %s: the log ends at %d, before the delivered record %d", r.ID.ID, r.seq, rec.Seq)
	}
	return nil
}

// Draft is an event to be appended.
type Draft struct {
	// Origin is the state that the writer owns, or [events.Control].
	Origin events.State
	// Payload is what happened.
	Payload events.Payload
}

// Decide returns what to append to a run with this memory; nothing leaves the run as it
// is. After a lost race it is called again, with the new memory.
type Decide func(mem *reducer.Memory) ([]Draft, error)

// maxRaces bounds the attempts of one commit. Every lost race means that another process
// appended to the run, so the bound is never reached by chance.
const maxRaces = 1000

// Stamp names the writer and the cause of a commit.
type Stamp struct {
	Source      string
	Cause       string
	TraceParent string
	// Then, unless nil, is called when the events are in the log and in the memory. It may
	// commit what follows from them, which then shares their flush to the disk, and must let
	// nothing else leave the process.
	Then func()
	// Leads reports whether the writer goes on by itself with what the last event asks for, under
	// the delivery that it has. Then the event wakes nobody. Nil: it does not.
	Leads func(mem *reducer.Memory, e *events.Event, to events.Subject) bool
	// IDs are the events' ids; missing ones are made. To repeat a commit of unknown
	// outcome, give the same ids, so that nothing is stored twice.
	IDs []string
}

// Commit appends what decide returns, all events or none. It reports whether anything was
// appended. After a lost race or an unknown outcome it reads the tail. If the tail holds
// the events, they count as appended; else decide is called again. Errors are decide's,
// the draft's ([DraftError]) and the log's. An error is also [journal.ErrUnknownOutcome] if an
// earlier attempt may still be stored.
func (r *Run) Commit(ctx context.Context, stamp Stamp, decide Decide) (bool, error) {
	c := commit{run: r, stamp: stamp, ids: slices.Clip(stamp.IDs)}
	if c.told = r.Doubtful(); c.told {
		if mine, err := c.resolve(ctx); mine || err != nil {
			return mine, err
		}
		c.told = false
	}
	open := false // an earlier try may still be stored
	for range maxRaces {
		drafts, err := decide(r.mem)
		if err != nil || len(drafts) == 0 {
			return false, err
		}
		before := r.seq
		err = c.try(ctx, drafts)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, journal.ErrUnknownOutcome):
			open = true
			meter.Add(r.store.meter, meter.Unknown, 1)
		case !errors.Is(err, journal.ErrConflict):
			if open {
				err = fmt.Errorf("%w: %w", journal.ErrUnknownOutcome, err)
			}
			return false, err
		default:
			meter.Add(r.store.meter, meter.LostRaces, 1)
		}
		mine, readErr := c.resolve(ctx)
		open = open && r.seq == before // else another event stands where it belongs
		if readErr != nil {
			return false, errors.Join(err, readErr)
		}
		if mine {
			return true, nil
		}
	}
	return false, fmt.Errorf("run %s: lost %d races in a row", r.ID.ID, maxRaces)
}

// DraftError is a draft that the reducer or the codec refused. It is the writer's fault,
// not the log's.
type DraftError struct{ Err error }

// Error returns the reason.
func (e *DraftError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *DraftError) Unwrap() error { return e.Err }

// commit is one Commit in progress. The events keep their ids over all attempts, so that
// they are found again. ids begins with those that were given.
type commit struct {
	run   *Run
	stamp Stamp
	ids   []string
	// told says that [Options.Appended] was called for them.
	told bool
}

type prepared struct {
	subject events.Subject
	event   *events.Event
	hash    string
}

// wake is whom the events of one append have to wake: the `<to>` and `<pool>` of the last of
// them that wakes anybody. Only the last event of an append does so, else two workers would
// start on one state. So it takes over what an earlier one owes, unless it wakes somebody
// itself. Both have the same publisher, which may publish on the edge: one worker publishes
// its events from one state, and control may wake every state, as Resumed does.
type wake struct {
	to   events.State
	pool string
}

// pass passes the wake on to the next event of the append, and from it unless it is the last.
func (w *wake) pass(p *prepared, last bool) {
	s := &p.subject
	if _, dispatch := p.event.Data.(*events.ToolCallDispatched); dispatch {
		return // it wakes a worker for its own call, wherever it stands
	}
	switch {
	case s.To != events.Nobody:
		w.to, w.pool = s.To, s.Pool
	case w.to != "" && s.Pool == events.DefaultPool:
		s.To, s.Pool = w.to, w.pool
	}
	if !last && s.To != events.Nobody {
		s.To, s.Pool = events.Nobody, events.DefaultPool
	}
}

func (c *commit) try(ctx context.Context, drafts []Draft) error {
	r := c.run
	entries := make([]journal.Entry, len(drafts))
	var room [1]prepared
	ready := room[:0]
	mem := r.mem
	var owed wake
	for i, d := range drafts {
		p, body, err := c.prepare(mem, i, d)
		if err != nil {
			return err
		}
		last := i == len(drafts)-1
		owed.pass(&p, last)
		if last && p.subject.To != events.Nobody && c.stamp.Leads != nil && c.stamp.Leads(mem, p.event, p.subject) {
			p.subject.To, p.subject.Pool = events.Nobody, events.DefaultPool
		}
		if !last {
			// The next draft stands on this one.
			if i == 0 {
				mem = mem.Clone()
			}
			if err := r.store.machine.ApplyEvent(mem, p.subject, p.event, p.hash); err != nil {
				return &DraftError{err}
			}
		}
		ready, entries[i] = append(ready, p), journal.Entry{Subject: p.subject, Body: body}
	}
	return c.append(ctx, ready, entries)
}

// append appends the events and folds them.
func (c *commit) append(ctx context.Context, ready []prepared, entries []journal.Entry) (err error) {
	r, began, before, folded := c.run, c.run.store.startTime(), c.run.seq, error(nil)
	stored := func(seq uint64) {
		if folded = c.fold(ready, entries, seq); folded == nil && c.stamp.Then != nil {
			c.stamp.Then()
		}
	}
	seq := uint64(0)
	if log, early := r.store.log.(ports.Early); early && c.stamp.Then != nil {
		seq, err = log.AppendThen(ctx, r.ID, before, stored, entries...)
	} else {
		seq, err = r.store.log.Append(ctx, r.ID, before, entries...)
	}
	meter.Since(r.store.meter, meter.AppendTime, began)
	if err == nil && r.seq == before && folded == nil {
		stored(seq)
	}
	r.doubtful.Store(err != nil && r.seq != before)
	return cmp.Or(err, folded)
}

// fold folds events that are in the log, the last one as record seq.
func (c *commit) fold(ready []prepared, entries []journal.Entry, seq uint64) error {
	r := c.run
	if r.seq == 0 {
		r.first.Store(ready[0].event)
	}
	bytes := 0
	for i, p := range ready {
		if !c.told {
			r.appended(p.event)
		}
		// An event that the application's own fold refuses now is in the log all the same,
		// and in the memory as poison.
		if err := r.store.machine.ApplyEvent(r.mem, p.subject, p.event, p.hash); err != nil && !Refused(err) {
			return fmt.Errorf("an event that was legal when it was drafted is not any more: %w", err)
		}
		bytes += len(entries[i].Body)
	}
	c.told = true
	r.advance(seq, bytes)
	r.written = ready[len(ready)-1].event
	return nil
}

func (c *commit) prepare(mem *reducer.Memory, i int, d Draft) (prepared, []byte, error) {
	store := c.run.store
	if i == len(c.ids) {
		c.ids = append(c.ids, store.newID())
	}
	subject, event, err := store.machine.Draft(mem, c.run.ID, d.Origin, d.Payload, reducer.Stamp{
		ID: c.ids[i], Source: c.stamp.Source, Cause: c.stamp.Cause, TraceParent: c.stamp.TraceParent, Time: store.clock(),
	})
	if err != nil {
		return prepared{}, nil, &DraftError{err}
	}
	body, err := store.machine.Codec().Encode(event)
	if err != nil {
		return prepared{}, nil, &DraftError{err}
	}
	if most := store.MaxBody(); len(body) > most {
		return prepared{}, nil, &ports.TooLargeError{What: "a " + string(event.Type()), Size: len(body), Limit: most}
	}
	return prepared{subject: subject, event: event, hash: events.Hash(body)}, body, nil
}

// resolve reads the tail after an append that did not clearly succeed, and reports whether
// it holds an event of this commit. One is enough: an attempt is stored entirely or not
// at all, and an earlier attempt may have had more or fewer events.
func (c *commit) resolve(ctx context.Context) (bool, error) {
	mine := false
	err := c.run.readUntil(ctx, func(e *events.Event) {
		if slices.Contains(c.ids, e.ID) {
			mine = true
			if !c.told {
				c.run.appended(e)
			}
		}
	})
	return mine, err
}
