// Package groupcommit gathers the appends to one shard that wait at the same moment
// into one batch: group commit. Where the store flushes to the disk before it
// acknowledges, a batch costs one flush, as one append does.
//
// At most one round is in flight: an append alone, appends side by side, or one batch.
// An append that meets none goes alone and at once. The others wait and go together as
// the next round, in the order in which they came: as a batch if they are enough for that
// to be quicker, else side by side. Appends that come while the store prepares a batch join
// it. A round has one append of a run, since the conditions of a batch are all checked
// against the log before it. Another append of that run waits for the next round.
//
// If a batch is refused, for whatever reason, its members are appended side by side,
// each under its own condition. If nobody can say whether it is stored, each member's
// outcome is unknown ([journal.ErrUnknownOutcome]).
package groupcommit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Pending is an append of one run: what [journal.Log].Append is called with.
type Pending struct {
	Run     events.Run
	Last    uint64
	Entries []journal.Entry
}

// Appender is one shard of a store that a [Group] appends to. Its methods are
// called at the same time as each other.
type Appender interface {
	// One appends a run's entries, all or none, as [journal.Log].Append does.
	One(ctx context.Context, p Pending) (uint64, error)

	// Batch stores all the entries of all the appends in order, each append under
	// its own condition, or none of them. The records' sequence numbers follow on
	// each other, and that of the last one is returned. Before it sends the last
	// append it may call join, once, and has to continue with what that returns: the
	// same appends, and behind them those that have come to wait meanwhile. The
	// error is [journal.ErrUnknownOutcome] if they may be stored; with any other one they surely are
	// not. It has to return in its own time, and must not keep the slices.
	Batch(all []Pending, join func() []Pending) (uint64, error)
}

// The bounds of a batch: what a server takes, and well below what it holds in
// memory before it stores a batch.
const (
	maxBatchBytes = 8 << 20
	// entryOverhead is roughly what an entry needs in addition to its body.
	entryOverhead = 400
)

// Group gathers the appends to one shard. It holds nothing that needs closing: a batch
// has a goroutine while it is in flight, and the callers' goroutines do everything else.
type Group struct {
	shard Appender
	least int

	mu sync.Mutex
	// inFlight counts the appends of the round, a batch as one; 0: there is no round,
	// and nobody waits.
	inFlight int
	queue    []*member
	// runs are those of the round that is put together.
	runs map[events.Run]struct{}
	// batch and pending are the members of the batch that is in flight.
	batch   []*member
	pending []Pending
}

// New returns a group for a shard. Appends that wait go as a batch if they are at least so
// many, or one of them has several entries, which are a batch in any case.
func New(shard Appender, least int) *Group {
	return &Group{shard: shard, least: least, runs: make(map[events.Run]struct{})}
}

// member is an append that did not go at once.
type member struct {
	Pending
	place place
	// told has capacity for the member's one outcome.
	told chan outcome
}

// place is where a member is.
type place int

const (
	waiting  place = iota // in the queue
	sent                  // in the batch that is in flight
	released              // to append by itself
	left                  // its caller went away
)

// outcome is what a member gets: to append alone, or the outcome of its batch.
type outcome struct {
	alone bool
	seq   uint64
	err   error
}

// Append stores a run's entries as [journal.Log].Append does. If ctx ends while the append
// waits it is not sent, and the error is the context's; later it is [journal.ErrUnknownOutcome].
func (g *Group) Append(ctx context.Context, p Pending) (uint64, error) {
	g.mu.Lock()
	if g.inFlight == 0 {
		g.inFlight = 1
		g.mu.Unlock()
		return g.alone(ctx, p)
	}
	m := g.wait(p)
	g.mu.Unlock()
	select {
	case w := <-m.told:
		return g.finish(ctx, m, w)
	case <-ctx.Done():
		return g.leave(ctx, m)
	}
}

// alone appends as a part of a round, and ends the round if it is the last.
func (g *Group) alone(ctx context.Context, p Pending) (uint64, error) {
	defer func() {
		g.mu.Lock()
		if g.inFlight--; g.inFlight == 0 && g.next() {
			go g.commit()
		}
		g.mu.Unlock()
	}()
	return g.shard.One(ctx, p)
}

// wait puts an append into the queue. The lock is held.
func (g *Group) wait(p Pending) *member {
	m := &member{Pending: p, place: waiting, told: make(chan outcome, 1)}
	g.queue = append(g.queue, m)
	return m
}

// finish does what the outcome says.
func (g *Group) finish(ctx context.Context, m *member, w outcome) (uint64, error) {
	if w.alone {
		return g.alone(ctx, m.Pending)
	}
	if w.err != nil {
		return 0, fmt.Errorf("append to run %s after %d: %w", m.Run.ID, m.Last, w.err)
	}
	return w.seq, nil
}

// leave takes a member away whose context has ended.
func (g *Group) leave(ctx context.Context, m *member) (uint64, error) {
	g.mu.Lock()
	at, run := m.place, m.Run.ID
	m.place = left
	if at == waiting {
		g.queue = slices.DeleteFunc(g.queue, func(other *member) bool { return other == m })
	}
	g.mu.Unlock()
	switch at {
	case waiting:
		return 0, fmt.Errorf("append to run %s was not sent: %w", run, ctx.Err())
	case sent:
		select {
		case w := <-m.told: // at the same moment
			return g.finish(ctx, m, w)
		default:
			return 0, fmt.Errorf("append to run %s: %w: %w", run, journal.ErrUnknownOutcome, ctx.Err())
		}
	}
	return g.finish(ctx, m, <-m.told) // it counts for the round
}

// next begins the next round with those who wait; it reports whether that is a batch, which
// the caller has to commit. The lock is held.
func (g *Group) next() (batched bool) {
	g.gather()
	several := slices.ContainsFunc(g.pending, func(p Pending) bool { return len(p.Entries) > 1 })
	if n := len(g.batch); n > 1 && (n >= g.least || several) {
		g.inFlight = 1
		return true
	}
	g.inFlight = len(g.batch)
	g.release(g.batch)
	g.clear()
	return false
}

// join takes those who wait by now into the batch that is in flight, behind its
// members, and returns all of them.
func (g *Group) join() []Pending {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gather()
	return g.pending
}

// gather takes those who go next out of the queue, behind those who go already: one
// of each run, as many as a batch may have, in order. The lock is held.
func (g *Group) gather() {
	entries, bytes, kept := 0, 0, g.queue[:0]
	for _, p := range g.pending {
		g.runs[p.Run] = struct{}{}
		entries, bytes = entries+len(p.Entries), bytes+weight(p)
	}
	full := false
	for _, m := range g.queue {
		size := weight(m.Pending)
		_, again := g.runs[m.Run]
		full = full || len(g.batch) > 0 && !again && (entries+len(m.Entries) > journal.MaxBatch || bytes+size > maxBatchBytes)
		if again || full {
			kept = append(kept, m)
			// Nothing of this run may overtake it.
			g.runs[m.Run] = struct{}{}
			continue
		}
		g.runs[m.Run] = struct{}{}
		m.place = sent
		g.batch, g.pending = append(g.batch, m), append(g.pending, m.Pending)
		entries, bytes = entries+len(m.Entries), bytes+size
	}
	clear(g.queue[len(kept):])
	g.queue = kept
	clear(g.runs)
}

// weight is how many bytes an append takes of a batch.
func weight(p Pending) (bytes int) {
	for _, e := range p.Entries {
		bytes += len(e.Body) + entryOverhead
	}
	return bytes
}

// release lets members go alone. The lock is held.
func (g *Group) release(members []*member) {
	for _, m := range members {
		m.place = released
		m.told <- outcome{alone: true}
	}
}

// clear forgets the members of a batch. The lock is held.
func (g *Group) clear() {
	clear(g.batch)
	clear(g.pending)
	g.batch, g.pending = g.batch[:0], g.pending[:0]
}

// commit appends the batch that was begun, and those that follow on it.
func (g *Group) commit() {
	for {
		last, err := g.shard.Batch(g.pending, g.join)
		if !g.finishBatch(last, err) {
			return
		}
	}
}

// finishBatch gives the members of a batch its outcome, and reports whether there is a next
// batch to commit.
func (g *Group) finishBatch(last uint64, err error) (batched bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && !errors.Is(err, journal.ErrUnknownOutcome) {
		return g.apart()
	}
	seq := last
	for i, m := range slices.Backward(g.batch) {
		w := outcome{seq: seq, err: err}
		if err != nil {
			w.seq = 0
		}
		m.told <- w // a member that left reads nothing, and the channel has capacity
		seq -= uint64(len(g.pending[i].Entries))
	}
	g.clear()
	return g.next()
}

// apart lets the members of a refused batch go alone; the outcome of those who left is
// unknown, so they are not sent again. The lock is held.
func (g *Group) apart() (batched bool) {
	g.batch = slices.DeleteFunc(g.batch, func(m *member) bool { return m.place == left })
	g.inFlight = len(g.batch)
	g.release(g.batch)
	g.clear()
	if g.inFlight == 0 {
		return g.next()
	}
	return false
}
