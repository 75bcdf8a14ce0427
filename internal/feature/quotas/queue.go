package quotas

import (
	"container/heap"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// headStart is by how much a run of one priority goes before an equally old one of the next. So
// an old run of low priority goes before a young one of high priority, and none starves.
const headStart = 10 * time.Minute

// phase is where a run is that began in the queue.
type phase uint8

const (
	waits phase = iota
	admitting
	works
	// rests is a run that waits for a person or its user. It needs no place.
	rests
)

// name is a run in its namespace.
type name struct{ ns, id string }

// entry is a run that has not ended.
type entry struct {
	name
	agent string
	// place orders the queue: when the run was started, less the head start of its priority.
	place  time.Time
	phase  phase
	paused bool
	// since is when it was admitted.
	since time.Time
	// at is its place in the heap; -1: it is not in it.
	at int
}

// line is the queue of an agent.
type line []*entry

func (l line) Len() int           { return len(l) }
func (l line) Less(i, j int) bool { return l[i].before(l[j]) }
func (l line) Swap(i, j int)      { l[i], l[j] = l[j], l[i]; l[i].at, l[j].at = i, j }

func (l *line) Push(x any) {
	e := x.(*entry)
	e.at = len(*l)
	*l = append(*l, e)
}

func (l *line) Pop() any {
	old := *l
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*l, e.at = old[:len(old)-1], -1
	return e
}

func (e *entry) before(other *entry) bool {
	if e.place.Equal(other.place) {
		return e.id < other.id
	}
	return e.place.Before(other.place)
}

// share is what a namespace or an agent has of the places.
type share struct {
	// active counts its runs at work, waiting those that may be admitted.
	active, waiting int
	// used is the time of its places since its queue began, in seconds by weight, up to since.
	used  float64
	since time.Time
}

// advance counts the places that it has had.
func (s *share) advance(now time.Time, weight float64) {
	if !s.since.IsZero() && now.After(s.since) {
		s.used += float64(s.active) * now.Sub(s.since).Seconds() / weight
	}
	s.since = now
}

// due is how much it has had, and will have by what works now if that takes its mean. Who has
// the least goes first.
func (s *share) due(weight, mean float64) float64 { return s.used + float64(s.active)*mean/weight }

type space struct {
	share
	agents map[string]*lane
}

type lane struct {
	share
	line line
}

// queue has the runs that began in the queue and have not ended. It is not safe for concurrent
// use.
type queue struct {
	runs   map[name]*entry
	spaces map[string]*space
	active int
	queued int
	// mean is how long a run has its place, in seconds.
	mean float64
}

func newQueue() *queue {
	return &queue{runs: map[name]*entry{}, spaces: map[string]*space{}, mean: 1}
}

// counts returns how many runs of a scope work and wait.
func (q *queue) counts(scope string) (active, waiting int) {
	if scope == Bus {
		return q.active, q.queued
	}
	ns, agent, ofAgent := strings.Cut(scope, ".")
	s := q.spaces[ns]
	switch {
	case s == nil:
		return 0, 0
	case !ofAgent:
		return s.active, s.waiting
	case s.agents[agent] == nil:
		return 0, 0
	}
	return s.agents[agent].active, s.agents[agent].waiting
}

func (q *queue) of(e *entry) (*space, *lane) {
	s := q.spaces[e.ns]
	if s == nil {
		s = &space{agents: map[string]*lane{}}
		q.spaces[e.ns] = s
	}
	l := s.agents[e.agent]
	if l == nil {
		l = &lane{}
		s.agents[e.agent] = l
	}
	return s, l
}

// place returns the place of a run in its line.
func place(started time.Time, p events.Priority) time.Time {
	switch p {
	case events.PriorityHigh:
		return started.Add(-headStart)
	case events.PriorityLow:
		return started.Add(headStart)
	}
	return started
}

// add adds a run. One that waits joins its line.
func (q *queue) add(e *entry, now time.Time, all set) {
	if q.runs[e.name] != nil {
		return
	}
	e.at = -1
	q.runs[e.name] = e
	switch e.phase {
	case waits:
		q.join(e)
	case works:
		q.count(e, 1, now, all)
	}
}

// join puts a run into its line. A share whose queue begins has had as much as the one that has had the
// least of those that wait: what it had or lacked before does not count.
func (q *queue) join(e *entry) {
	if e.paused || e.at >= 0 {
		return
	}
	s, l := q.of(e)
	if s.waiting == 0 {
		s.used = least(q.spaces, func(o *space) *share { return &o.share })
	}
	if l.waiting == 0 {
		l.used = least(s.agents, func(o *lane) *share { return &o.share })
	}
	heap.Push(&l.line, e)
	s.waiting, l.waiting, q.queued = s.waiting+1, l.waiting+1, q.queued+1
}

func least[T any](all map[string]T, of func(T) *share) float64 {
	found, used := false, 0.0
	for _, o := range all {
		if s := of(o); s.waiting > 0 && (!found || s.used < used) {
			found, used = true, s.used
		}
	}
	return used
}

// leave takes a run out of its line.
func (q *queue) leave(e *entry) {
	if e.at < 0 {
		return
	}
	s, l := q.of(e)
	heap.Remove(&l.line, e.at)
	s.waiting, l.waiting, q.queued = s.waiting-1, l.waiting-1, q.queued-1
}

// count takes or frees places.
func (q *queue) count(e *entry, places int, now time.Time, all set) {
	s, l := q.of(e)
	s.advance(now, all[e.ns].weight())
	l.advance(now, all.agent(e.ns, e.agent).weight())
	s.active, l.active, q.active = s.active+places, l.active+places, q.active+places
}

// move moves a run to another phase.
func (q *queue) move(e *entry, to phase, now time.Time, all set) {
	had, has := e.phase == admitting || e.phase == works, to == admitting || to == works
	e.phase = to
	switch {
	case has && !had:
		q.leave(e)
		e.since = now
		q.count(e, 1, now, all)
	case had && !has:
		q.count(e, -1, now, all)
		if to == rests {
			q.learn(now.Sub(e.since))
		}
	}
	if to == waits {
		q.join(e)
	}
}

// learn takes how long a run had its place into the mean.
func (q *queue) learn(had time.Duration) {
	const part = 0.05
	q.mean += part * (max(had.Seconds(), 0.001) - q.mean)
}

// remove forgets a run that has ended.
func (q *queue) remove(e *entry, now time.Time, all set) {
	q.leave(e)
	if e.phase == admitting || e.phase == works {
		q.count(e, -1, now, all)
		q.learn(now.Sub(e.since))
	}
	delete(q.runs, e.name)
	s, l := q.of(e)
	if l.waiting == 0 && l.active == 0 && len(l.line) == 0 {
		delete(s.agents, e.agent)
	}
	if s.waiting == 0 && s.active == 0 && len(s.agents) == 0 {
		delete(q.spaces, e.ns)
	}
}

// next returns the run that is admitted next, nil if none may be now. spent are the namespaces
// whose budget is used up.
func (q *queue) next(now time.Time, all set, spent map[string]bool) *entry {
	if full(all[Bus], q.active) {
		return nil
	}
	var next *entry
	var fewest float64
	for ns, s := range q.spaces {
		if s.waiting == 0 || spent[ns] || full(all[ns], s.active) {
			continue
		}
		s.advance(now, all[ns].weight())
		due := s.due(all[ns].weight(), q.mean)
		if next != nil && (due > fewest || due == fewest && ns > next.ns) {
			continue
		}
		if e := s.next(now, ns, all, q.mean); e != nil {
			next, fewest = e, due
		}
	}
	return next
}

func (s *space) next(now time.Time, ns string, all set, mean float64) *entry {
	var next *entry
	var fewest float64
	for agent, l := range s.agents {
		of := all.agent(ns, agent)
		if l.waiting == 0 || full(of, l.active) {
			continue
		}
		l.advance(now, of.weight())
		due := l.due(of.weight(), mean)
		if next == nil || due < fewest || due == fewest && agent < next.agent {
			next, fewest = l.line[0], due
		}
	}
	return next
}

func full(q Quota, active int) bool { return q.Active > 0 && active >= q.Active }
