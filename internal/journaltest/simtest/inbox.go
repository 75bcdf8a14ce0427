package simtest

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// inbox is what one group of workers shares: every record that matches, until it
// is acknowledged. The journal's lock guards it.
type inbox struct {
	key    string
	states []events.State
	// pool narrows it to one pool; empty: every pool.
	pool    string
	items   items
	order   int
	changed *changed
}

// changed tells every consumer of the journal that an item of some inbox may be due
// earlier than it was. The journal's lock guards it.
type changed struct {
	// channel is closed and replaced with each change.
	channel chan struct{}
}

func (c *changed) wake() {
	close(c.channel)
	c.channel = make(chan struct{})
}

// item is a record to be delivered, or delivered and not finished yet.
type item struct {
	rec journal.Record
	// timer is set for what is no record but a timer.
	timer *journal.Timer
	// nth is the record's place in its run: with the run it names the record the
	// same way in every simulation.
	nth     int
	run     string
	attempt int
	// due is when it is delivered, for the first time or again.
	due   time.Time
	order int
	// place is where it is in the heap, -1 if it is finished.
	place int
	// copied says that there is a duplicate, or that this is one.
	copied bool
	// left counts the copies that are not finished; they share it.
	left *int
}

// items is a heap by due time and then by order.
type items []*item

func (h items) Len() int { return len(h) }
func (h items) Less(a, b int) bool {
	if !h[a].due.Equal(h[b].due) {
		return h[a].due.Before(h[b].due)
	}
	return h[a].order < h[b].order
}
func (h items) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].place, h[b].place = a, b
}
func (h *items) Push(x any) {
	it := x.(*item)
	it.place = len(*h)
	*h = append(*h, it)
}
func (h *items) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	it.place = -1
	return it
}

func checkInbox(in journal.Inbox) error {
	if len(in.States) == 0 {
		return fmt.Errorf("the inbox names no state")
	}
	if in.Pool != "" && !events.ValidToken(in.Pool) {
		return fmt.Errorf("pool %q is not a token", in.Pool)
	}
	for _, state := range in.States {
		if !events.ValidToken(string(state)) {
			return fmt.Errorf("state %q is not a token", state)
		}
	}
	return nil
}

// poolStates are the states whose events are consumed pool by pool, in one inbox
// together.
var poolStates = []events.State{events.Acting, events.ParallelActing}

// split returns the inboxes that a consumer draws from, as the bus has them: one
// for each state, but acting and parallel_acting in one for each pool. Other
// states are delivered whatever the pool of their events, unless one is named.
func split(in journal.Inbox) []*inbox {
	pool := in.Pool
	if pool == "" {
		pool = events.DefaultPool
	}
	var found []*inbox
	for _, state := range in.States {
		one := &inbox{states: []events.State{state}}
		if slices.Contains(poolStates, state) {
			one.states, one.pool = poolStates, pool
		} else if pool != events.DefaultPool {
			one.pool = pool
		}
		one.key = fmt.Sprint(one.states, one.pool)
		if !slices.ContainsFunc(found, func(o *inbox) bool { return o.key == one.key }) {
			found = append(found, one)
		}
	}
	return found
}

// open returns the journal's inboxes for a consumer, and makes those that are
// new, with everything that was stored before.
func (j *Journal) open(in journal.Inbox) []*inbox {
	j.mu.Lock()
	defer j.mu.Unlock()
	found := split(in)
	for i, one := range found {
		if known := j.inboxes[one.key]; known != nil {
			found[i] = known
			continue
		}
		one.changed = &j.changed
		j.inboxes[one.key] = one
		for _, s := range j.shards {
			nths := make(map[string]int)
			for _, rec := range s.records {
				run, ok := runOf(rec.Subject)
				one.offer(j.opts, rec, nths[run])
				if ok {
					nths[run]++
				}
			}
		}
	}
	return found
}

// runOf returns the key of the run that a subject belongs to, if it has the form
// of an event's.
func runOf(subject string) (key string, ok bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 7 {
		return subject, false
	}
	return runKey(tokens[2], tokens[6]), true
}

// offer queues a record if it is for this inbox.
func (in *inbox) offer(o Options, rec journal.Record, nth int) {
	matches := func(state events.State) bool {
		return journal.Filter{To: state, Pool: in.pool}.Match(rec.Subject)
	}
	if !slices.ContainsFunc(in.states, matches) {
		return
	}
	run, _ := runOf(rec.Subject)
	it := &item{rec: rec, nth: nth, run: run, due: time.Now(), order: in.order, left: new(int)}
	*it.left = 1
	in.order++
	f := o.Faults
	if o.Jitter > 0 {
		it.due = it.due.Add(o.part(o.Jitter, "jitter", in.key, it.run, nth))
	}
	if o.happens(f.Delay, "delay", in.key, it.run, nth) {
		it.due = it.due.Add(o.part(f.MaxDelay, "delay for", in.key, it.run, nth))
	}
	if o.happens(f.Reorder, "reorder", in.key, it.run, nth) {
		it.order += 1 + int(4*o.chance("reorder by", in.key, it.run, nth))
		it.due = it.due.Add(o.part(f.MaxDelay/100, "reorder for", in.key, it.run, nth))
	}
	heap.Push(&in.items, it)
	in.changed.wake()
}

// take returns the item that is due, now delivered once more, or when to look
// again (zero: when something changes).
func (in *inbox) next(o Options) (it *item, next time.Time) {
	if len(in.items) == 0 {
		return nil, time.Time{}
	}
	first, now := in.items[0], time.Now()
	if first.due.After(now) {
		return nil, first.due
	}
	first.attempt++
	first.due = now.Add(o.AckWait)
	heap.Fix(&in.items, first.place)
	if !first.copied && o.happens(o.Faults.Duplicate, "duplicate", in.key, first.run, first.nth) {
		in.duplicate(o, first, now)
	}
	return first, time.Time{}
}

// undelivered reports whether a record waits to be taken for the first time.
func (in *inbox) undelivered(shard int, seq uint64) bool {
	return slices.ContainsFunc(in.items, func(it *item) bool {
		s, err := events.ParseSubject(it.rec.Subject)
		return err == nil && it.attempt == 0 && s.Run.Shard == shard && it.rec.Seq == seq
	})
}

// duplicate queues a second delivery that comes whatever becomes of the first.
func (in *inbox) duplicate(o Options, it *item, now time.Time) {
	it.copied = true
	twin := *it
	*it.left++
	twin.due = now.Add(o.part(o.Faults.MaxDelay, "duplicate after", in.key, it.run, it.nth))
	heap.Push(&in.items, &twin)
	in.changed.wake()
}

// finish removes the item for good, and reports whether that was the last one
// of its record. Whoever has it now does not hear of it: a late acknowledgement
// of a stale worker does the same on the bus.
func (in *inbox) finish(it *item) (last bool) {
	if it.place < 0 {
		return false
	}
	heap.Remove(&in.items, it.place)
	*it.left--
	return *it.left == 0
}

// deliverAgain changes when the item is delivered again.
func (in *inbox) deliverAgain(it *item, due time.Time) {
	if it.place < 0 {
		return
	}
	it.due = due
	heap.Fix(&in.items, it.place)
	in.changed.wake()
}
