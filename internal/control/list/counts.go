package list

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/pkg/events"
)

// Counts are the runs of a namespace by their states, and what happened in the last hours and
// seconds.
type Counts struct {
	// At is when they were counted.
	At    time.Time    `json:"at"`
	Runs  RunCounts    `json:"runs"`
	Hours []tally.Hour `json:"hours" jsonschema:"At most 48, from the first in which something happened, the newest last."`
	Rates tally.Rates  `json:"rates"`
}

// RunCounts are numbers of runs that are in the log.
type RunCounts struct {
	Total   int                  `json:"total"`
	ByState map[events.State]int `json:"by_state" jsonschema:"States without runs are omitted."`
	Waiting WaitingCounts        `json:"waiting"`
}

// WaitingCounts are numbers of runs by whom they wait for.
type WaitingCounts struct {
	Human  int `json:"human"`
	User   int `json:"user"`
	Client int `json:"client"`
}

// Counts returns the counts of the namespace. Its errors are those of [Lister.Runs].
func (l *Lister) Counts(ctx context.Context, ns string) (Counts, error) {
	ns, err := l.upToDate(ctx, ns)
	if err != nil {
		return Counts{}, err
	}
	now := l.a.Store.Now()
	return Counts{
		At: now.UTC(), Runs: l.index.runCounts(ns),
		Hours: l.index.counts.Hours(ns, now), Rates: l.index.counts.Rates(ns, now),
	}, nil
}

// Costs returns what the runs of the namespace used since a time; zero: all in the
// log. The time is rounded, see [tally.Tally.Costs]. Its errors are those of [Lister.Runs].
func (l *Lister) Costs(ctx context.Context, ns string, by tally.By, since time.Time) (tally.Costs, error) {
	switch by {
	case tally.ByAgent, tally.ByModel, tally.ByTool, tally.ByHour, tally.ByDay:
	case "":
		by = tally.ByAgent
	default:
		return tally.Costs{}, badParameter("by: %.100q is not known; use %s, %s, %s, %s or %s", string(by), tally.ByAgent, tally.ByModel, tally.ByTool, tally.ByHour, tally.ByDay)
	}
	ns, err := l.upToDate(ctx, ns)
	if err != nil {
		return tally.Costs{}, err
	}
	return l.index.counts.Costs(ns, by, since, l.a.Store.Now()), nil
}

// upToDate reads what the log has beyond the index, and returns the namespace.
func (l *Lister) upToDate(ctx context.Context, ns string) (string, error) {
	ns, err := l.a.CheckNamespace(ns)
	if err != nil {
		return "", err
	}
	missing, ends, err := l.index.missing(ctx)
	if err != nil || missing == 0 {
		return ns, err
	}
	return ns, l.index.catchUp(ctx, ends)
}

func (x *index) runCounts(ns string) RunCounts {
	all := RunCounts{ByState: map[events.State]int{}}
	x.mu.RLock()
	defer x.mu.RUnlock()
	space := x.namespaces[ns]
	if space == nil {
		return all
	}
	all.Total = len(space.started)
	for _, r := range space.started {
		all.ByState[r.info.State]++
		switch r.waits() {
		case WaitingHuman:
			all.Waiting.Human++
		case WaitingUser:
			all.Waiting.User++
		case WaitingClient:
			all.Waiting.Client++
		}
	}
	return all
}

// maxUncounted bounds what is kept of forks whose parents are not there, in bytes of records.
const maxUncounted = 16 << 20

// count counts what a run's next event says, or keeps it until the run's agent is known. size is
// that of its record.
func (x *index) count(r *row, e tally.Event, size int) {
	if r.info.Agent == "" && x.forks[r] {
		x.uncounted[r] = append(x.uncounted[r], e)
		if x.uncountedSize += size; x.uncountedSize > maxUncounted {
			x.inherit()
		}
		return
	}
	e.Agent = r.info.Agent
	x.counts.Add(r.run.Namespace, &r.counted, e)
}

// countForks counts what was kept of forks. One whose parent is not in the log has no agent.
func (x *index) countForks() {
	for r, all := range x.uncounted {
		for _, e := range all {
			e.Agent = r.info.Agent
			x.counts.Add(r.run.Namespace, &r.counted, e)
		}
	}
	clear(x.uncounted)
	x.uncountedSize = 0
}
