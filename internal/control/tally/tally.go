// Package tally counts runs, tokens and money from the events of runs: by hour and by day, and
// within those by agent, model and tool. It is a projection of the log: every event once, in the
// order of each run, gives the same counts.
//
// Its memory is bounded whatever the events say. Names beyond [MaxNames] of a kind, and
// counts beyond [maxCells], are counted under [Other].
package tally

import (
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// The bounds of what is kept of a namespace: hours for charts, days for costs, and names of each
// kind. What is older than the days is kept as one sum.
const (
	Hours    = 48
	Days     = 400
	MaxNames = 1000
)

const (
	// maxCells bounds the sums of all namespaces, each about 100 bytes.
	maxCells = 200_000
	// maxName bounds a name, in bytes.
	maxName = 200
	// clockSkew is how far the clock of a worker may be ahead of the server's.
	clockSkew = time.Hour
)

// The names of collected counts: of names beyond the limit, of events without a name, and of days
// before those that are kept.
const (
	Other   = "(other)"
	Unknown = "(unknown)"
	Older   = "(older)"
)

// kind is what a name is the name of.
type kind uint8

const (
	agents kind = iota
	models
	tools
	kinds
)

// name is a name of a kind by its number in the namespace. Numbers below kinds are Other.
type name uint16

// Event is what is counted of an event.
type Event struct {
	// Agent is the run's agent.
	Agent string
	// First, Ended and Failed say that the run began, ended, and ended by an error.
	First, Ended, Failed bool
	// Time is the event's own, Stored when the log took it.
	Time, Stored time.Time
	// Data is the event's payload. Nil: the end of a run is known, and not by which event.
	Data events.Payload
}

// Run is what a Tally needs to remember of a run. The zero value is a run without events.
type Run struct {
	// seen are the names that the run was counted under.
	seen []name
	// model was asked last.
	model name
	// calls are the tools of the last reply's calls that have no result yet.
	calls map[string]name
}

// Tally has the counts of all namespaces. It is safe for concurrent use; a [Run] is not.
type Tally struct {
	mu     sync.Mutex
	spaces map[string]*space
	cells  int
}

// New returns a Tally of nothing.
func New() *Tally { return &Tally{spaces: map[string]*space{}} }

// label is a name in words.
type label struct {
	kind kind
	text string
}

// space has the counts of a namespace.
type space struct {
	numbers [kinds]map[string]name
	names   []label
	// hours and days have what happened in one of them, by its number since 1970; older has
	// what happened before the days. newestHour and newestDay are the last ones.
	hours, days           map[int64]*period
	older                 *period
	newestHour, newestDay int64
	recent                [ring]second
}

// ring is how many seconds are kept one by one: more than [Window].
const ring = 128

// second is what the log took in one second.
type second struct {
	at           int64
	events, runs int64
}

// period is what happened in an hour or a day.
type period struct {
	started, ended, failed, events int64
	// replies are of models.
	replies sum
	by      map[name]*sum
}

// sum is what runs used. Calls are those of a model, or of a tool.
type sum struct {
	runs, calls, failed, input, output, cached int64
	cost                                       float64
	priced                                     bool
	// unpriced are tokens whose price is not known.
	unpriced int64
}

func (s *sum) add(o sum) {
	s.runs, s.calls, s.failed = s.runs+o.runs, s.calls+o.calls, s.failed+o.failed
	s.input, s.output, s.cached = s.input+o.input, s.output+o.output, s.cached+o.cached
	s.cost, s.priced, s.unpriced = s.cost+o.cost, s.priced || o.priced, s.unpriced+o.unpriced
}

// use adds tokens and money; u may be nil.
func (s *sum) use(u *events.Usage) {
	if u == nil {
		return
	}
	s.input, s.output, s.cached = s.input+int64(max(0, u.Input)), s.output+int64(max(0, u.Output)), s.cached+int64(max(0, u.Cached))
	if u.CostUSD != nil {
		s.cost, s.priced = s.cost+max(0, *u.CostUSD), true
		return
	}
	s.unpriced += int64(max(0, u.Input)) + int64(max(0, u.Output))
}

func newSpace() *space {
	s := &space{hours: map[int64]*period{}, days: map[int64]*period{}, older: newPeriod(), names: make([]label, kinds)}
	for k := range kinds {
		s.names[k], s.numbers[k] = label{k, Other}, map[string]name{Other: name(k)}
	}
	return s
}

func newPeriod() *period { return &period{by: map[name]*sum{}} }

// number returns the number of a name.
func (s *space) number(k kind, text string) name {
	if text == "" {
		text = Unknown
	}
	if len(text) > maxName {
		text = strings.ToValidUTF8(text[:maxName], "") + "…"
	}
	n, known := s.numbers[k][text]
	if !known && len(s.numbers[k]) <= MaxNames {
		n, known = name(len(s.names)), true
		text = strings.Clone(text) // not the entire event
		s.names, s.numbers[k][text] = append(s.names, label{k, text}), n
	}
	if !known {
		return name(k)
	}
	return n
}

// Add counts an event of a run in a namespace.
func (t *Tally) Add(ns string, r *Run, e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.spaces[ns]
	if s == nil {
		s = newSpace()
		t.spaces[ns] = s
	}
	at := e.Time
	if at.After(e.Stored.Add(clockSkew)) {
		at = e.Stored
	}
	if e.Data != nil {
		s.takes(e)
	}
	what := s.counts(r, e)
	for _, p := range t.periods(s, at) {
		p.happened(e)
		p.replies.add(what.replies)
		for _, c := range what.by {
			t.addTo(s, p, c.name, c.sum)
		}
	}
	if e.Ended {
		*r = Run{}
	}
}

// takes counts what the log took in a second.
func (s *space) takes(e Event) {
	at := e.Stored.Unix()
	slot := &s.recent[uint64(at)%ring]
	if slot.at > at {
		return // shards are read side by side, and this one is behind
	}
	if slot.at < at {
		*slot = second{at: at}
	}
	slot.events++
	if e.First {
		slot.runs++
	}
}

func (p *period) happened(e Event) {
	if e.Data != nil {
		p.events++
	}
	if e.First {
		p.started++
	}
	if e.Ended {
		p.ended++
	}
	if e.Failed {
		p.failed++
	}
}

// counted is what an event adds to the sums of a period.
type counted struct {
	replies sum
	by      []named
}

type named struct {
	name name
	sum  sum
}

// counts returns what an event adds, and notes in the run what later events need.
func (s *space) counts(r *Run, e Event) (all counted) {
	agent := sum{}
	if e.Failed {
		agent.failed = 1
	}
	number := s.number(agents, e.Agent)
	if replied(e.Data) {
		all.replies.calls = 1
		all.replies.use(events.Billed(e.Data))
		if facts := events.FactsOf(e.Data); facts != nil && facts.Asked != nil {
			r.model = s.number(models, facts.Asked.Provider+"/"+facts.Asked.Model)
			if facts.Asked.Provider == events.ClientProvider {
				all.replies.unpriced = 0 // the client pays
			}
		} else if r.model == 0 {
			r.model = s.number(models, "")
		}
		model := all.replies
		model.runs = r.first(r.model)
		all.by = append(all.by, named{r.model, model})
		agent.add(all.replies)
		r.calls = nil
	}
	agent.runs = r.first(number)
	all.by = append(all.by, named{number, agent})
	s.called(r, e.Data)
	if o := outcome(e.Data); o != nil {
		tool, known := r.calls[o.CallID]
		if !known {
			tool = s.number(tools, "")
		}
		delete(r.calls, o.CallID)
		used := sum{runs: r.first(tool), calls: 1}
		if !o.Success {
			used.failed = 1
		}
		used.use(o.Usage)
		all.by = append(all.by, named{tool, used})
	}
	return all
}

// replied reports whether a model replied, used or not. Later passes of one reply say nothing of
// that.
func replied(p events.Payload) bool {
	used := events.Billed(p)
	if failed, is := p.(*events.LLMAttemptFailed); is {
		return !failed.NotAsked && (used != nil || failed.Asked != nil)
	}
	facts := events.FactsOf(p)
	return used != nil && *used != (events.Usage{}) || facts != nil && (facts.Asked != nil || facts.Finish != "")
}

// first returns 1 when the run is counted under a name for the first time, else 0.
func (r *Run) first(n name) int64 {
	for _, seen := range r.seen {
		if seen == n {
			return 0
		}
	}
	r.seen = append(r.seen, n)
	return 1
}

// called notes which tools a reply calls.
func (s *space) called(r *Run, p events.Payload) {
	var reply *events.ToolCallReply
	switch p := p.(type) {
	case *events.LLMToolCall:
		reply = &p.ToolCallReply
	case *events.LLMParallelToolCalls:
		reply = &p.ToolCallReply
	case *events.HumanApprovalRequired:
		reply = &p.ToolCallReply
	default:
		return
	}
	if r.calls == nil {
		r.calls = map[string]name{}
	}
	for _, calls := range [][]events.Call{reply.Calls, reply.Queued} {
		for _, c := range calls {
			r.calls[c.ID] = s.number(tools, c.Name)
		}
	}
}

// outcome returns how a call went, if the event says so of one.
func outcome(p events.Payload) *events.ToolOutcome {
	switch p := p.(type) {
	case *events.ToolCallResult:
		return &p.ToolOutcome
	case *events.ToolSuccess:
		return p.Outcome
	case *events.ToolFailure:
		if p.Outcome != nil && p.Outcome.CallID != "" {
			return p.Outcome
		}
	}
	return nil
}

const (
	hour = 3600
	day  = 24 * hour
)

// periods returns the periods that a time is in: a day or the time before all days, and an hour
// if it is one of the last. It forgets hours and days that are too old.
func (t *Tally) periods(s *space, at time.Time) []*period {
	h, d := at.Unix()/hour, at.Unix()/day
	s.newestHour, s.newestDay = max(s.newestHour, h), max(s.newestDay, d)
	var in []*period
	if d <= s.newestDay-Days {
		in = append(in, s.older)
	} else {
		if s.days[d] == nil {
			s.days[d] = newPeriod()
			t.forgetDays(s)
		}
		in = append(in, s.days[d])
	}
	// An hour more than are shown, since clocks differ.
	oldest := s.newestHour - Hours - int64(clockSkew/time.Hour)
	if h > oldest {
		if s.hours[h] == nil {
			s.hours[h] = newPeriod()
			for old, p := range s.hours {
				if old <= oldest {
					t.cells -= len(p.by)
					delete(s.hours, old)
				}
			}
		}
		in = append(in, s.hours[h])
	}
	return in
}

// forgetDays adds the days that are too old to the time before.
func (t *Tally) forgetDays(s *space) {
	for old, p := range s.days {
		if old > s.newestDay-Days {
			continue
		}
		delete(s.days, old)
		t.cells -= len(p.by)
		s.older.started, s.older.ended = s.older.started+p.started, s.older.ended+p.ended
		s.older.failed, s.older.events = s.older.failed+p.failed, s.older.events+p.events
		s.older.replies.add(p.replies)
		for n, used := range p.by {
			t.addTo(s, s.older, n, *used)
		}
	}
}

// addTo adds to a sum of a period, or to that of all other names at the limit.
func (t *Tally) addTo(s *space, p *period, n name, used sum) {
	at := p.by[n]
	if at == nil && t.cells >= maxCells && n >= name(kinds) {
		n = name(s.names[n].kind)
		at = p.by[n]
	}
	if at == nil {
		at = &sum{}
		p.by[n] = at
		t.cells++
	}
	at.add(used)
}
