// Package list pages through the runs of a namespace, newest first. It reads the log backwards,
// and only the last event of each run.
package list

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control/access"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// DefaultLimit and MaxLimit are the default and the largest number of runs in a page.
const (
	DefaultLimit = 50
	MaxLimit     = 1000
)

const (
	// maxExamined is how many runs one page examines to find those in a state.
	maxExamined = 2000
	// batchSize is how many runs are read together, headReaders how many of their heads at
	// once.
	batchSize   = 64
	headReaders = 8
	// taskLength is the length of a task in a list, in characters.
	taskLength = 200
)

// Run is a run in a list. Agent, Mode and Task are empty if the run's first event cannot be
// read.
type Run struct {
	RunID   string       `json:"run_id"`
	State   events.State `json:"state"`
	N       uint64       `json:"n"`
	Mode    events.Mode  `json:"mode,omitempty"`
	Agent   string       `json:"agent,omitempty"`
	Task    string       `json:"task,omitempty"`
	Started time.Time    `json:"started"`
	Updated time.Time    `json:"updated"`
	// ForkedFrom is the event that a fork continues from; nil for a run that was started.
	ForkedFrom *ForkPoint `json:"forked_from,omitempty"`
}

// ForkPoint is the event of a run that another one was forked from.
type ForkPoint struct {
	Run string `json:"run"`
	At  uint64 `json:"at"`
}

// addFirst fills in empty fields from a run's first event. A fork has the values of its patch,
// then those of its parent.
func (r *Run) addFirst(p events.Payload) {
	switch p := p.(type) {
	case *events.Start:
		r.Agent, r.Mode = cmp.Or(r.Agent, p.Agent.Name), cmp.Or(r.Mode, p.Mode)
		r.Task = cmp.Or(r.Task, cut(p.Task, taskLength))
	case *events.Forked:
		if p.Agent != nil {
			r.Agent = cmp.Or(r.Agent, p.Agent.Name)
		}
		r.Mode, r.Task = cmp.Or(r.Mode, p.Mode), cmp.Or(r.Task, cut(p.Task, taskLength))
		r.ForkedFrom = &ForkPoint{Run: p.Run, At: p.At}
	}
}

// cut shortens a text to a number of characters.
func cut(text string, limit int) string {
	count := 0
	for i := range text {
		if count == limit {
			return text[:i] + "…"
		}
		count++
	}
	return text
}

// Page is one page of runs. Next, if not empty, is the parameter after for the next page. A page
// may have fewer runs than its limit and still have a next one.
type Page struct {
	Runs []Run  `json:"runs"`
	Next string `json:"next,omitempty"`
}

// Lister lists runs. It is safe for concurrent use.
type Lister struct{ a *access.Access }

// New returns a Lister for the runs of a.
func New(a *access.Access) *Lister { return &Lister{a} }

// Runs lists the namespace's runs, newest first: by their start, or for a terminal state by their
// end. An empty state means every state, a limit of 0 means [DefaultLimit]. after is the id of
// the last run of the page before, or empty. Wrong parameters are a CodeBadParameter.
//
// A page reads the log backwards from after, and only the last event of each run. For a state
// that is not terminal it examines at most 2000 runs and then returns Next. With several shards
// a later page reads the newer starts of the other shards again.
func (l *Lister) Runs(ctx context.Context, ns string, state events.State, limit int, after string) (Page, error) {
	ns, err := l.a.CheckNamespace(ns)
	if err != nil {
		return Page{}, err
	}
	if limit == 0 {
		limit = DefaultLimit
	}
	if limit < 1 || limit > MaxLimit {
		return Page{}, badParameter("limit: must be 1 to %d", MaxLimit)
	}
	if state != "" && !slices.Contains(l.a.Table.States(), state) {
		return Page{}, badParameter("state: %q is not a state", state)
	}
	p := pager{l: l, ns: ns, state: state, limit: limit, page: Page{Runs: []Run{}}, seen: map[string]bool{}}
	p.filter = journal.Filter{Namespace: ns, From: l.a.Table.Initial()}
	if l.a.Table.Terminal(state) {
		p.filter = journal.Filter{Namespace: ns, To: state}
	}
	return p.fill(ctx, after)
}

func badParameter(format string, args ...any) error {
	return refusal.New(refusal.Invalid, refusal.CodeBadParameter, format, args...)
}

type pager struct {
	l      *Lister
	ns     string
	state  events.State
	limit  int
	filter journal.Filter
	page   Page
	seen   map[string]bool
}

func (p *pager) fill(ctx context.Context, after string) (Page, error) {
	from, err := p.findEntry(ctx, after)
	if err != nil {
		return Page{}, err
	}
	var batch []entry
	examined := 0
	for e, err := range p.l.newestFirst(ctx, p.filter, from) {
		if err != nil {
			return Page{}, err
		}
		if p.seen[e.run.ID] {
			continue
		}
		p.seen[e.run.ID] = true
		batch = append(batch, e)
		if len(batch) < min(p.limit-len(p.page.Runs), batchSize) {
			continue
		}
		examined += len(batch)
		if err := p.appendRuns(ctx, batch); err != nil {
			return Page{}, err
		}
		if len(p.page.Runs) >= p.limit || examined >= maxExamined {
			p.page.Next = e.run.ID
			return p.page, nil
		}
		batch = batch[:0]
	}
	return p.page, p.appendRuns(ctx, batch)
}

// findEntry returns the entry of a run in the list; nil if after is empty.
func (p *pager) findEntry(ctx context.Context, after string) (*entry, error) {
	if after == "" {
		return nil, nil
	}
	unknown := badParameter("after: %q is not a run of this list", after)
	if events.CheckID(after) != nil {
		return nil, unknown
	}
	run := p.l.a.Store.Place(p.ns, after)
	filter := p.filter
	filter.Run = after
	for rec, err := range p.l.a.Log.Scan(ctx, run.Shard, filter, 0) {
		if err != nil {
			return nil, err
		}
		e := p.l.entry(run.Shard, rec)
		return &e, nil
	}
	return nil, unknown
}

// appendRuns reads the runs, several at a time, and adds those in the state to the page.
func (p *pager) appendRuns(ctx context.Context, batch []entry) error {
	infos := make([]Run, len(batch))
	errs := make([]error, len(batch))
	slots := make(chan struct{}, headReaders)
	var all sync.WaitGroup
	for i := range batch {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			infos[i], errs[i] = p.l.describe(ctx, &batch[i])
		})
	}
	all.Wait()
	for i, info := range infos {
		if errs[i] != nil {
			return errs[i]
		}
		if p.state == "" || info.State == p.state {
			p.page.Runs = append(p.page.Runs, info)
		}
	}
	return nil
}

// describe completes an entry from the run's head and first event. It folds the run if the head
// cannot be legal, or if an end does not follow the event before it.
func (l *Lister) describe(ctx context.Context, of *entry) (Run, error) {
	if err := l.readFirst(ctx, of); err != nil {
		return Run{}, err
	}
	info, err := l.addAncestors(ctx, of)
	if err != nil {
		return Run{}, err
	}
	rec, err := l.a.Log.Head(ctx, of.run)
	if err != nil {
		return Run{}, err
	}
	e := l.a.Decode(rec)
	if e != nil && l.a.Table.Terminal(e.To) {
		follows, err := l.follows(ctx, of.run, rec.Seq, e)
		if err != nil {
			return Run{}, err
		}
		if !follows {
			e = nil
		}
	}
	if e != nil && info.Agent != "" {
		info.State, info.N, info.Updated = e.To, e.N, e.Time
		return info, nil
	}
	state, err := l.a.State(ctx, of.run.Namespace, of.run.ID, 0)
	if err == nil {
		info.State, info.N, info.Mode, info.Agent = state.State, state.N, state.Mode, state.Agent
		info.Started, info.Updated = state.Started, state.Updated
		return info, nil
	}
	return info, info.addUnknownTable(rec, err)
}

// addUnknownTable fills in what the run's last event says, if err is an unknown transition table.
// It returns any other error.
func (r *Run) addUnknownTable(last journal.Record, err error) error {
	if !isUnknownTable(err) {
		return err
	}
	var e struct {
		N    uint64       `json:"n"`
		To   events.State `json:"to"`
		Time time.Time    `json:"time"`
	}
	if json.Unmarshal(last.Body, &e) == nil {
		r.State, r.N, r.Updated = e.To, e.N, e.Time
	}
	return nil
}

// addAncestors fills in the fields that a fork's first event does not have from its ancestors, as
// far as they are in the log.
func (l *Lister) addAncestors(ctx context.Context, of *entry) (Run, error) {
	info := of.info
	for range reducer.MaxForks {
		if info.ForkedFrom == nil || info.Agent != "" && info.Mode != "" && info.Task != "" {
			break
		}
		parent := entry{run: l.a.Store.Place(of.run.Namespace, info.ForkedFrom.Run)}
		if err := l.readFirst(ctx, &parent); err != nil {
			return info, err
		}
		info.Agent, info.Mode = cmp.Or(info.Agent, parent.info.Agent), cmp.Or(info.Mode, parent.info.Mode)
		info.Task, info.ForkedFrom = cmp.Or(info.Task, parent.info.Task), parent.info.ForkedFrom
	}
	info.ForkedFrom = of.info.ForkedFrom
	return info, nil
}

// readFirst reads the run's first event if the entry is of another event.
func (l *Lister) readFirst(ctx context.Context, e *entry) error {
	if e.first {
		return nil
	}
	filter := journal.Filter{Namespace: e.run.Namespace, Run: e.run.ID, From: l.a.Table.Initial()}
	for rec, err := range l.a.Log.Scan(ctx, e.run.Shard, filter, 0) {
		if err != nil {
			return err
		}
		e.info = l.entry(e.run.Shard, rec).info
		return nil
	}
	return nil
}
