package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// crowd is everybody around all runs. Forks join it while it is at work.
type crowd struct {
	ctx   context.Context
	feed  *feed
	found func(string)
	// carrying are those at work.
	carrying sync.WaitGroup

	mu    sync.Mutex
	byRun map[string]*carrier
	order []*carrier
	over  int
	// closed says that nobody joins any more.
	closed bool
}

// newCrowd makes a crowd that works until ctx ends.
func newCrowd(ctx context.Context, f *feed, found func(string)) *crowd {
	return &crowd{ctx: ctx, feed: f, found: found, byRun: map[string]*carrier{}}
}

func (c *crowd) add(carriers ...*carrier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range carriers {
		c.byRun[one.scenario.run] = one
		c.order = append(c.order, one)
	}
}

// all returns everybody, those of forks behind the others.
func (c *crowd) all() []*carrier {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.order)
}

// count returns how many runs are over, and how many there are.
func (c *crowd) count() (over, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over, len(c.order)
}

// carry has somebody who was added go to work, and calls then when that is over.
// It does nothing once the crowd is closed.
func (c *crowd) carry(one *carrier, then func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.carrying.Go(func() {
		one.carry(c.ctx)
		c.mu.Lock()
		c.over++
		c.mu.Unlock()
		then()
	})
}

// adopt takes a run in whose first event has come and that no driver started: a
// fork, a run that answers a call of an agent, or that of a schedule. It is nil for any other.
func (c *crowd) adopt(e *event) *follower {
	if by := e.parent(); by != nil {
		return c.adoptScenario(subrunScenario(e.Subject, by))
	}
	if e.scheduled() {
		return c.adoptScenario(scheduledScenario(e.Subject))
	}
	var from origin
	if err := decode(e, &from); err != nil || e.Type != "Forked" {
		return nil
	}
	c.mu.Lock()
	parent, closed := c.byRun[from.Run], c.closed
	c.mu.Unlock()
	if parent == nil || closed {
		return nil
	}
	fork := parent.forked(parent.scenario.fork(e.Subject), from.At, c.feed, c.found)
	c.add(fork)
	c.carry(fork, func() {})
	return fork.events
}

// adoptScenario takes in a run that nobody steers. The parent of one that answers a call may be in
// another shard, and not have been seen yet.
func (c *crowd) adoptScenario(p *scenario) *follower {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil
	}
	adopted := newCarrier(p, nil, c.feed, c.found)
	adopted.started.Store(true)
	c.add(adopted)
	c.carry(adopted, func() {})
	return adopted.events
}

// finish waits until all runs are over and the feed has shown all that the log
// has, which may be forks that nobody was told of. It reports whether that is so
// before ctx ends; after it nobody joins.
func (c *crowd) finish(ctx context.Context, b *bus) bool {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.closed = true
	}()
	for pause(ctx, 50*time.Millisecond) {
		if over, all := c.count(); over < all {
			continue
		}
		stored, err := b.events(ctx)
		over, all := c.count()
		if err == nil && over == all && c.feed.delivered.Load() >= stored {
			return true
		}
	}
	return false
}
