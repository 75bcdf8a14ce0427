// Package groupflush lets all waiting events share one flush to the disk.
package groupflush

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// ErrMissing says that a flush was made and that the log ends before the record.
var ErrMissing = errors.New("the log ends before the record")

// Group shares flushes of one log. It is safe for concurrent use.
type Group struct {
	flush func(wanted uint64) (upTo uint64, err error)
	upTo  atomic.Uint64

	mu sync.Mutex
	// running is the flush that is being made, next the one that begins after it.
	running, next *round
}

// round is one flush.
type round struct {
	wanted, upTo uint64
	err          error
	done         chan struct{}
}

// New returns a group. flush is called by one goroutine at a time. It begins a flush after
// everything that is stored at the call, wanted at least, and returns up to which record
// the log is on the disk.
func New(flush func(wanted uint64) (upTo uint64, err error)) *Group { return &Group{flush: flush} }

// Flushed returns up to which record the log is known to be on the disk.
func (g *Group) Flushed() uint64 { return g.upTo.Load() }

// Wait returns nil when the record with that sequence number is on the disk, and all before
// it. Sequence number 0 stands for all that is stored at the call. All that come while a
// flush is made share the next one. The error is the flush's, the context's, or
// [ErrMissing].
func (g *Group) Wait(ctx context.Context, seq uint64) error {
	if seq > 0 && seq <= g.upTo.Load() {
		return nil
	}
	for range 2 {
		r := g.join(seq)
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if r.err != nil || r.upTo >= seq {
			return r.err
		}
		// The flush may have begun before the record was stored, for a number that the log
		// does not have. The next one has not.
	}
	return ErrMissing
}

// join returns the flush that includes the record: the running one if that was begun for a
// later record, else the next.
func (g *Group) join(seq uint64) *round {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running != nil && seq > 0 && seq <= g.running.wanted {
		return g.running
	}
	if g.next == nil {
		g.next = &round{done: make(chan struct{})}
	}
	r := g.next
	r.wanted = max(r.wanted, seq)
	if g.running == nil {
		g.running, g.next = r, nil
		go g.run(r)
	}
	return r
}

// run makes flushes until nobody waits.
func (g *Group) run(r *round) {
	for r != nil {
		r.upTo, r.err = g.flush(r.wanted)
		r = g.finish(r)
	}
}

// finish tells those who wait, and returns the flush that is to be made next.
func (g *Group) finish(r *round) *round {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.err == nil && r.upTo > g.upTo.Load() {
		g.upTo.Store(r.upTo)
	}
	g.running, g.next = g.next, nil
	close(r.done)
	return g.running
}
