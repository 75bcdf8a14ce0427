package groupcommit

import (
	"math/bits"
	"time"
)

// sizes is how many classes of rounds there are: by powers of two, up to the
// largest batch.
const sizes = 10

// costs are how long rounds take, by the number of appends that waited when the
// round was decided: moving means, in which one outlier counts little.
type costs struct {
	// each is what one append takes of those that go side by side; 0: not measured.
	each [sizes]time.Duration
	// batch is what a batch takes, less the share of the appends that joined it
	// after the decision; 0: not measured. Without that share a batch would be
	// charged for work that the other choice leaves to the next round.
	batch [sizes]time.Duration
	// passed counts the decisions since the dearer choice was last tried.
	passed [sizes]int
}

// The costs before anything is measured, of a server with a disk of today.
const (
	firstEach  = 200 * time.Microsecond
	firstBatch = 2 * time.Millisecond
)

// nearest returns the cost of a size, or what is known of the next smaller one, or
// of the next larger one, else first.
func nearest(costs *[sizes]time.Duration, at int, first time.Duration) time.Duration {
	for i := at; i >= 0; i-- {
		if costs[i] > 0 {
			return costs[i]
		}
	}
	for _, cost := range costs[at:] {
		if cost > 0 {
			return cost
		}
	}
	return first
}

// size returns the class of so many appends.
func size(n int) int { return min(bits.Len(uint(n)), sizes) - 1 }

// note takes what a round took. A refused batch is one that took longer: it
// counts as long as its members went on alone. What failed otherwise says nothing.
func (c *costs) note(r round, took time.Duration) {
	switch {
	case r.batched && !r.failed:
		mean(&c.batch, size(r.decided), took*time.Duration(r.decided)/time.Duration(r.members), firstBatch)
	case !r.batched && !r.failed && r.several == 0:
		mean(&c.each, size(r.members), took/time.Duration(r.members), firstEach)
	}
}

// mean moves the mean of a size towards a sample, by what is at most three times
// the mean. It begins with what is known of other sizes, else with first: a first
// sample is often an outlier, since files are made and caches are cold.
func mean(costs *[sizes]time.Duration, at int, sample, first time.Duration) {
	const weight, most = 8, 4
	m := nearest(costs, at, first)
	costs[at] = max(m+(min(sample, most*m)-m)/weight, time.Microsecond)
}

// choice is how a round was decided.
type choice struct {
	// batched is what is done, trial says that it is the dearer way: now and then
	// that is tried, so that no estimate stays wrong.
	batched, trial bool
	// together and apart are what the appends are expected to take.
	together, apart time.Duration
}

// choose decides whether n appends go as a batch or side by side, where each of
// several entries is a batch by itself. The dearer way is tried the more seldom the
// dearer it is, so that trials cost about 1 % of the time, but it is always tried
// again in the end.
func (c *costs) choose(n, several int) choice {
	const trials = 128
	apart := time.Duration(several) * nearest(&c.batch, 0, firstBatch)
	if single := n - several; single > 0 {
		apart += time.Duration(single) * nearest(&c.each, size(single), firstEach)
	}
	together := nearest(&c.batch, size(n), firstBatch)
	d := choice{batched: together < apart, together: together, apart: apart}
	c.passed[size(n)]++
	if time.Duration(c.passed[size(n)]) > trials*max(together, apart)/max(min(together, apart), 1) {
		c.passed[size(n)] = 0
		d.batched, d.trial = !d.batched, true
	}
	return d
}

// Decision says how the appends of a group go from now on.
type Decision struct {
	// Batched says that they go as one batch, else side by side.
	Batched bool
	// Appends is how many waited when that was decided for the last time.
	Appends int
	// Together is what a batch of them is expected to take, Apart what they take
	// side by side.
	Together, Apart time.Duration
}

// habit is what a group does mostly, so that a change of it can be told.
type habit struct {
	known, batched bool
	// against counts the decisions in a row that were against it.
	against int
}

// steady is how many decisions in a row make a habit.
const steady = 32

// changes notes a choice, and reports whether it has become another habit.
func (h *habit) changes(c choice) bool {
	switch {
	case c.trial:
		return false
	case h.known && c.batched == h.batched:
		h.against = 0
		return false
	case !h.known && c.batched != h.batched:
		h.batched, h.against = c.batched, 0
	}
	if h.against++; h.against < steady {
		return false
	}
	*h = habit{known: true, batched: c.batched}
	return true
}
