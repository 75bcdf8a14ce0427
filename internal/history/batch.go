package history

import "time"

// Batch is what a part of a stream of the log adds to a store: its records after From, up to To.
type Batch struct {
	// Stream is the stream's name, with the time at which it was made.
	Stream   string
	From, To uint64
	Runs     []Change
	Uses     []Use
	Periods  []Period
	Notes    []Note
}

// Note is what was noted about a run. Its labels replace those of the run's first event unless they are nil,
// its scores those that were noted before. The run may be unknown yet.
type Note struct {
	Namespace, ID string
	Labels        map[string]string
	Scores        []Score
}

// Change is what a batch changes of a run.
type Change struct {
	// Run is the row as it is now. The store replaces the one that it has.
	Run Run
	// Texts are added.
	Texts []Text
	// Anew says that all texts that the store has of the run go first.
	Anew bool
	// Gone says that the log lost the run: its row and its texts go. Run has only Namespace, ID and Shard.
	Gone bool
}

// UseKind is what a [Use] is by.
type UseKind string

// The kinds of uses.
const (
	ByAgent UseKind = "agent"
	ByModel UseKind = "model"
	ByTool  UseKind = "tool"
)

// Unknown is the name of a [Use] of an event that has no name of the kind.
const Unknown = "(unknown)"

// Use is what the runs of a namespace used in an hour under a name. A store adds it to what it has under
// Namespace, Hour, Kind and Name. The sum over all agents is what all replies used.
type Use struct {
	Namespace string
	Hour      time.Time
	Kind      UseKind
	Name      string
	Sum
}

// Sum is what runs used. Runs counts each run once, when it first used the name. Calls are requests to
// models, or of a tool its calls.
type Sum struct {
	Runs, Calls, Failed, Input, Output, Cached int64
	CostUSD                                    float64
	// Priced says that a price is known. Unpriced are tokens whose price is not known.
	Priced   bool
	Unpriced int64
}

// Add adds another sum.
func (s *Sum) Add(o Sum) {
	s.Runs, s.Calls, s.Failed = s.Runs+o.Runs, s.Calls+o.Calls, s.Failed+o.Failed
	s.Input, s.Output, s.Cached = s.Input+o.Input, s.Output+o.Output, s.Cached+o.Cached
	s.CostUSD, s.Priced, s.Unpriced = s.CostUSD+o.CostUSD, s.Priced || o.Priced, s.Unpriced+o.Unpriced
}

// Period is what happened in an hour, by the events' own times. A store adds it to what it has under
// Namespace and Hour.
type Period struct {
	Namespace                      string
	Hour                           time.Time
	Started, Ended, Failed, Events int64
}

// Add adds what happened in the same hour.
func (p *Period) Add(o Period) {
	p.Started, p.Ended, p.Failed, p.Events = p.Started+o.Started, p.Ended+o.Ended, p.Failed+o.Failed, p.Events+o.Events
}
