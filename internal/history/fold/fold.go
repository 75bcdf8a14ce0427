// Package fold makes of a run's events what the history keeps of the run: its row, its texts and what it
// used. It is pure. Between any two events the fold is the row alone, so nobody has to keep it in memory.
package fold

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Fold is the fold of one run. It is not safe for concurrent use.
type Fold struct {
	table  *reducer.Table
	run    history.Run
	open   open
	parent *reducer.Memory
}

// open is what later events of a run that has not ended need. Its JSON is history.Run.Open; a build that
// cannot read that of another one has to raise the version of the store.
type open struct {
	// Agents and Tools are the names that the run was counted under, Unknown says that one of its models
	// was. Calls are the tools of the last reply's calls that have no result yet, by the calls' ids.
	Agents, Tools []string          `json:",omitempty"`
	Unknown       bool              `json:",omitempty"`
	Calls         map[string]string `json:",omitempty"`
	// Outside says that a model of the run is its client. ClientTools are the names of its client's
	// tools, Client the calls of them that have no result yet.
	Outside             bool     `json:",omitempty"`
	ClientTools, Client []string `json:",omitempty"`
	// Sent are the calls that wait in pools.
	Sent []sent `json:",omitempty"`
	// Step is the step that the run began with.
	Step int `json:",omitempty"`
	// Poisoned says that the log has a record of the run that is no event.
	Poisoned bool `json:",omitempty"`
	// Counted is the event up to which the run's events were counted, before it was purged.
	Counted uint64 `json:",omitempty"`
}

// sent is a call that waits in a pool. Without an id it is every call of a single or of a batch that one
// pool has.
type sent struct {
	Call string `json:",omitempty"`
	Pool string
}

// Change is what an event adds.
type Change struct {
	Texts  []history.Text
	Uses   []history.Use
	Period history.Period
}

// New returns the fold of a run without events.
func New(table *reducer.Table, run events.Run) *Fold {
	return &Fold{table: table, run: history.Run{Namespace: run.Namespace, ID: run.ID, Shard: run.Shard, State: table.Initial()}}
}

// Resume returns the fold of a run that has a row.
func Resume(table *reducer.Table, row history.Run) (*Fold, error) {
	f := &Fold{table: table, run: row}
	if len(row.Open) > 0 {
		if err := json.Unmarshal(row.Open, &f.open); err != nil {
			return nil, fmt.Errorf("the open state of run %s: %w", row.ID, err)
		}
	}
	// Appending must not change the row that was handed in.
	f.run.Models, f.run.Tools = slices.Clip(row.Models), slices.Clip(row.Tools)
	f.run.CallErrors, f.run.HandOffs = slices.Clip(row.CallErrors), slices.Clip(row.HandOffs)
	return f, nil
}

// Inherit gives a fork the memory that it begins with: its parent's after the event that it was forked from, or
// its own after its first event, before which it comes. Without it the fork has no agent and task but its own.
func (f *Fold) Inherit(begin *reducer.Memory) { f.parent = begin }

// Counted says that the run's events up to number n were counted before it was purged and came back. They add
// only texts.
func (f *Fold) Counted(n uint64) { f.open.Counted = n }

// Add folds the run's next event: hash is that of its body, stored when the log took it. It reports whether
// the record follows those before it. If not, or if it is none (e is nil), nothing was folded, and only a fold
// of the entire run by the reducer says whether it is an event.
func (f *Fold) Add(s events.Subject, e *events.Event, hash string, stored time.Time) (Change, bool) {
	r := &f.run
	if e == nil || e.N != r.N+1 || e.Prev != r.Head || e.From != r.State {
		return Change{}, false
	}
	at := e.Time
	if at.After(stored.Add(clockSkew)) {
		at = stored
	}
	c := Change{Texts: Texts(e), Period: history.Period{Namespace: r.Namespace, Hour: at.UTC().Truncate(time.Hour), Events: 1}}
	if e.N == 1 {
		r.Started, f.open.Step, c.Period.Started = e.Time, e.Step, 1
	}
	if e.N == 1 || e.To != r.State {
		r.Entered, r.Deadline = e.Time, time.Time{}
	}
	r.State, r.N, r.Head, r.Updated, r.Steps = e.To, e.N, hash, e.Time, e.Step-f.open.Step
	r.Queued = r.Queued && e.To == events.Planning
	f.payload(e, &c)
	f.found(c.Texts)
	f.clients(e)
	f.sends(s, e)
	f.end(&c)
	if f.uses(e.Data, &c); e.N <= f.open.Counted {
		c.Uses, c.Period = nil, history.Period{Namespace: r.Namespace, Hour: c.Period.Hour}
	}
	return c, true
}

// end takes it if the run has ended.
func (f *Fold) end(c *Change) {
	r := &f.run
	if !r.Ended.IsZero() || !f.table.Terminal(r.State) {
		return
	}
	r.Ended, r.Paused, r.PauseReason, r.Restored, c.Period.Ended = r.Updated, false, "", false, 1
	if r.State == events.Errored {
		c.Period.Failed = 1
	}
}

// clockSkew is how far the clock of a worker may be ahead of the server's.
const clockSkew = time.Hour

// Poison counts a record that is no event of the run: the reducer says so. The next event may follow it.
func (f *Fold) Poison(hash string, stored time.Time) {
	f.run.N, f.run.Head, f.open.Poisoned = f.run.N+1, hash, true
	if f.run.Started.IsZero() { // the list needs a place for it
		f.run.Started, f.run.Updated, f.run.Entered = stored, stored, stored
	}
}

// Unread takes what a record says itself, of a run that only another build can fold.
func (f *Fold) Unread(body []byte, hash string, stored time.Time) Change {
	var e struct {
		N    uint64       `json:"n"`
		To   events.State `json:"to"`
		Time time.Time    `json:"time"`
	}
	_ = json.Unmarshal(body, &e) // what cannot be read says nothing
	f.Poison(hash, stored)
	if e.N > 0 && e.To != "" && !e.Time.IsZero() {
		f.run.State, f.run.N, f.run.Updated = e.To, e.N, e.Time
	}
	c := Change{Period: history.Period{Namespace: f.run.Namespace, Hour: f.run.Updated.UTC().Truncate(time.Hour)}}
	f.end(&c)
	return c
}

// Row returns the run's row as it is now.
func (f *Fold) Row() (history.Run, error) {
	r := f.run
	r.Waiting, r.Outside, r.Pools, r.Open = f.waits(), f.outside(), nil, nil
	if !r.Ended.IsZero() {
		return r, nil
	}
	for _, c := range f.open.Sent {
		if !slices.Contains(r.Pools, c.Pool) && !f.open.Poisoned {
			r.Pools = append(r.Pools, c.Pool)
		}
	}
	var err error
	r.Open, err = json.Marshal(f.open)
	return r, err
}

// payload takes what the row shows from the payload of an event.
func (f *Fold) payload(e *events.Event, c *Change) {
	r := &f.run
	switch p := e.Data.(type) {
	case *events.Start:
		r.Agent, r.Mode, r.Task, r.Queued, r.Priority, r.Labels = p.Agent.Name, p.Mode, p.Task, p.Queued, p.Priority, p.Labels
		if p.Parent != nil {
			r.Parent, r.Call = p.Parent.Run, p.Parent.CallID
		}
		f.pinned(&p.Agent, p.Tools)
	case *events.Forked:
		f.forked(e, p, c)
	case *events.HandedOff:
		r.Agent, r.HandOffs = p.Agent.Name, append(r.HandOffs, history.HandOff{N: e.N, To: p.Agent.Name})
		f.pinned(&p.Agent, p.Tools)
	case *events.Admitted:
		r.Queued = false
	case *events.Paused:
		r.Paused, r.PauseReason, r.Restored = true, p.Reason, p.Restored
	case *events.Resumed:
		r.Paused, r.PauseReason, r.Restored = false, "", false
	case *events.HumanApprovalRequired:
		r.Deadline, _ = time.Parse(time.RFC3339, p.Deadline) // a wrong one counts as none
	case *events.FatalError:
		r.Error = p.Code
	case *events.MaxSteps:
		r.Error = p.Code
	case *events.BudgetExceeded:
		r.Error = p.Code
	}
	if used := events.Billed(e.Data); used != nil {
		r.Input, r.Output, r.Cached = r.Input+max(0, used.Input), r.Output+max(0, used.Output), r.Cached+max(0, used.Cached)
		r.Tokens += max(0, used.Total)
		if used.CostUSD != nil {
			r.CostUSD, r.Priced = r.CostUSD+max(0, *used.CostUSD), true
		}
	}
}

// forked takes a fork's first event, and what the fork has of its parent.
func (f *Fold) forked(e *events.Event, p *events.Forked, c *Change) {
	r := &f.run
	r.ForkOf, r.ForkAt = p.Run, p.At
	if m := f.parent; m != nil {
		r.Agent, r.Mode, r.Task, r.Labels = m.Control.Agent.Name, m.Mode, m.Task, m.Control.Labels
		f.pinned(&m.Control.Agent, nil)
		for name, t := range m.Tools {
			if t.Client {
				f.open.ClientTools = append(f.open.ClientTools, name)
			}
		}
		slices.Sort(f.open.ClientTools)
		for i := range m.Control.Calls {
			if call := &m.Control.Calls[i]; call.Client && !call.Answered {
				f.open.Client = append(f.open.Client, call.ID)
			}
		}
		if p.Task == "" {
			c.Texts = append(c.Texts, history.Text{N: e.N, Kind: history.Task, Text: m.Task, At: e.Time})
		}
	}
	r.Mode, r.Task = cmp.Or(p.Mode, r.Mode), cmp.Or(p.Task, r.Task)
	if p.Agent != nil {
		r.Agent = p.Agent.Name
		f.pinned(p.Agent, p.Tools)
	}
}

// pinned takes who the run's models and tools are.
func (f *Fold) pinned(a *events.Agent, tools []events.ToolSpec) {
	f.open.Outside, f.open.ClientTools = slices.Contains(a.Providers(), events.ClientProvider), nil
	for _, t := range tools {
		if t.Client {
			f.open.ClientTools = append(f.open.ClientTools, t.Name)
		}
	}
}

// found takes from the texts which calls failed.
func (f *Fold) found(texts []history.Text) {
	for _, t := range texts {
		if t.Kind == history.CallError && t.Code != "" {
			_, f.run.CallErrors = first(f.run.CallErrors, t.Code)
		}
	}
}

// callsOf returns the calls of a reply, and those that go out later.
func callsOf(p events.Payload) (calls, queued []events.Call, is bool) {
	switch p := p.(type) {
	case *events.LLMToolCall:
		return p.Calls, p.Queued, true
	case *events.LLMParallelToolCalls:
		return p.Calls, p.Queued, true
	case *events.HumanApprovalRequired:
		return p.Calls, p.Queued, true
	}
	return nil, nil, false
}

// outcomeOf returns how a call went, if the event says so of one.
func outcomeOf(p events.Payload) *events.ToolOutcome {
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
