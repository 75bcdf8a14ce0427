package quotas

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world plays runs that take their time, in a time of its own.
type world struct {
	t     *testing.T
	q     *queue
	all   set
	now   time.Time
	ends  map[*entry]time.Time
	takes func(*entry) time.Duration
	// admitted are the runs in the order of their admission.
	admitted []*entry
	spent    map[string]bool
}

func newWorld(t *testing.T, all set) *world {
	return &world{t: t, q: newQueue(), all: all, now: began, ends: map[*entry]time.Time{}, takes: func(*entry) time.Duration { return time.Second }}
}

// start starts runs of an agent.
func (w *world) start(ns, agent string, count int, p events.Priority) (runs []*entry) {
	for range count {
		e := &entry{name: name{ns, fmt.Sprintf("%s-%s-%06d", ns, agent, len(w.q.runs)+len(w.admitted))}, agent: agent, place: place(w.now, p)}
		w.q.add(e, w.now, w.all)
		runs = append(runs, e)
	}
	return runs
}

// admit admits what may be admitted now.
func (w *world) admit() {
	for e := w.q.next(w.now, w.all, w.spent); e != nil; e = w.q.next(w.now, w.all, w.spent) {
		w.q.move(e, works, w.now, w.all)
		w.ends[e] = w.now.Add(w.takes(e))
		w.admitted = append(w.admitted, e)
	}
}

// run plays that time, until all runs have ended at most.
func (w *world) run(d time.Duration) {
	until := w.now.Add(d)
	for {
		w.admit()
		var first *entry
		for e, at := range w.ends {
			if first == nil || at.Before(w.ends[first]) || at.Equal(w.ends[first]) && e.id < first.id {
				first = e
			}
		}
		if first == nil || w.ends[first].After(until) {
			w.now = until
			return
		}
		w.now = w.ends[first]
		delete(w.ends, first)
		w.q.remove(first, w.now, w.all)
	}
}

func (w *world) count(ns, agent string) (count int) {
	for _, e := range w.admitted {
		if e.ns == ns && (agent == "" || e.agent == agent) {
			count++
		}
	}
	return count
}

// TestNewcomer: ten runs of one tenant are admitted at once, whatever another tenant has queued.
func TestNewcomer(t *testing.T) {
	w := newWorld(t, set{Bus: {Active: 20}})
	w.start("a", "x", 10_000, "")
	w.run(30 * time.Second)
	require.Equal(t, 620, w.count("a", ""))
	w.start("b", "x", 10, "")
	w.run(time.Second)
	require.Equal(t, 10, w.count("b", ""), "as places become free, they are b's until both have as many")
	require.Equal(t, 0, w.q.spaces["b"].waiting)
}

// TestWeights: who has three times the weight has three times the places, however few there are, and
// however long runs take.
func TestWeights(t *testing.T) {
	t.Parallel()
	for _, places := range []int{1, 2, 7, 40} {
		w := newWorld(t, set{Bus: {Active: places}, "a": {Weight: 3}, "a.y": {Weight: 2}})
		w.takes = func(e *entry) time.Duration {
			if e.ns == "b" {
				return 2 * time.Second // places are shared, not runs
			}
			return time.Second
		}
		w.start("a", "x", 30_000, "")
		w.start("a", "y", 30_000, "")
		w.start("b", "x", 30_000, "")
		w.run(400 * time.Second)
		require.InEpsilon(t, 6, float64(w.count("a", ""))/float64(w.count("b", "")), 0.08, "%d places", places)
		require.InEpsilon(t, 2, float64(w.count("a", "y"))/float64(w.count("a", "x")), 0.08, "%d places", places)
	}
}

// TestIdleTimeIsNotSaved: who was away does not get what it did not use.
func TestIdleTimeIsNotSaved(t *testing.T) {
	w := newWorld(t, set{Bus: {Active: 4}})
	w.start("b", "x", 1, "")
	w.start("a", "x", 10_000, "")
	w.run(1000 * time.Second)
	before := w.count("a", "")
	w.start("b", "x", 10_000, "")
	w.run(100 * time.Second)
	require.InDelta(t, 200, w.count("a", "")-before, 8)
}

// TestPriority: high before normal before low, and a low one that is twenty minutes older than a high
// one goes first.
func TestPriority(t *testing.T) {
	w := newWorld(t, set{"a": {Active: 1}})
	old := w.start("a", "x", 1, events.PriorityLow)[0]
	w.now = w.now.Add(3 * headStart / 2)
	low := w.start("a", "x", 1, events.PriorityLow)[0]
	normal := w.start("a", "x", 1, events.PriorityNormal)[0]
	w.now = w.now.Add(headStart/2 + time.Second)
	high := w.start("a", "x", 1, events.PriorityHigh)[0]
	w.run(time.Minute)
	var order []string
	for _, e := range w.admitted {
		order = append(order, e.id)
	}
	require.Equal(t, []string{old.id, high.id, normal.id, low.id}, order)
}

// TestBounds: no scope has more at work than it may, what waits for a person needs no place, and
// neither a paused run nor one without a budget is admitted.
func TestBounds(t *testing.T) {
	w := newWorld(t, set{Bus: {Active: 6}, "a": {Active: 4}, "a.x": {Active: 1}})
	xs := w.start("a", "x", 5, "")
	ys := w.start("a", "y", 5, "")
	w.start("b", "x", 5, "")
	w.admit()
	require.Equal(t, []int{1, 2, 3}, []int{w.count("a", "x"), w.count("a", "y"), w.count("b", "")})
	w.q.move(xs[0], rests, w.now, w.all)
	w.admit()
	require.Equal(t, 2, w.count("a", "x"))
	w.q.move(xs[0], works, w.now, w.all) // a person has answered
	require.Equal(t, 7, w.q.active)
	delete(w.ends, ys[0])
	w.q.remove(ys[0], w.now, w.all)
	w.admit()
	require.Len(t, w.admitted, 7, "the place is taken already")
	w.spent = map[string]bool{"a": true}
	w.run(time.Hour)
	require.Equal(t, []int{2, 2, 5}, []int{w.count("a", "x"), w.count("a", "y"), w.count("b", "")})
	w.spent = nil
	held := xs[4]
	held.paused = true
	w.q.leave(held)
	w.run(time.Hour)
	require.Equal(t, []int{4, 5}, []int{w.count("a", "x"), w.count("a", "y")})
	held.paused = false
	w.q.join(held)
	w.run(time.Hour)
	require.Empty(t, w.q.runs)
	require.Empty(t, w.q.spaces)
	require.Zero(t, w.q.active+w.q.queued)
}
