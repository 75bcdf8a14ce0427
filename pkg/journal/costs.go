package journal

import (
	"math/bits"
	"time"
)

// sizes is how many classes of rounds there are: by powers of two, up to the
// largest batch.
const sizes = 10

// costs are how long rounds of a size take, as measured: a moving mean, in which
// one outlier counts little.
type costs struct {
	// each is what an append takes of those that go side by side, batch what one
	// batch takes; 0: not measured.
	each, batch [sizes]time.Duration
	// asked counts how often there was a choice.
	asked int
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
		mean(&c.batch, size(r.members), took)
	case !r.batched && !r.failed && r.several == 0:
		mean(&c.each, size(r.members), took/time.Duration(r.members))
	}
}

// mean moves the mean of a size towards a sample, by what is at most three times
// the mean. It begins with what is known of other sizes.
func mean(costs *[sizes]time.Duration, at int, sample time.Duration) {
	const weight, most = 8, 4
	m := nearest(costs, at, sample)
	costs[at] = max(m+(min(sample, most*m)-m)/weight, time.Microsecond)
}

// batchPays reports whether a batch of n appends is expected to be quicker than
// the appends side by side, where each of several entries is a batch by itself.
// Now and then what seems dearer is tried, if it is not much dearer, so that an
// estimate does not stay wrong.
func (c *costs) batchPays(n, several int) bool {
	const every, much = 256, 3
	apart := time.Duration(several) * nearest(&c.batch, 0, firstBatch)
	if single := n - several; single > 0 {
		apart += time.Duration(single) * nearest(&c.each, size(single), firstEach)
	}
	together := nearest(&c.batch, size(n), firstBatch)
	pays := together < apart
	if c.asked++; c.asked%every == 0 && max(together, apart) < much*min(together, apart) {
		return !pays
	}
	return pays
}
