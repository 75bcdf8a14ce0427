// Package list pages through the runs of a namespace, newest first, by an index that it makes
// from the log. While most of the log is not in the index, a page without filters is read from
// the log itself, backwards, and of each run only the last event.
package list

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	feature "github.com/moorebus/moorebus/internal/feature/row"
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
	// Parent is the run whose call the run answers; empty: none.
	Parent string `json:"parent,omitempty"`

	// The fields below are empty in a page that is read from the log itself.

	// CostUSD and Tokens are what the run's own events cost and used; 0: nothing, or unknown.
	CostUSD float64 `json:"cost_usd,omitempty"`
	Tokens  int     `json:"tokens,omitempty"`
	// Waiting says for whom the run waits; empty: for nobody. WaitsFor is the pool whose actors
	// are missing; nil: none is, as far as is known.
	Waiting  Waiting        `json:"waiting,omitempty"`
	WaitsFor *runs.WaitsFor `json:"waits_for,omitempty" jsonschema:"A call of the run waits until an actor of this pool comes."`
	// Queued says that the run waits until its quotas admit it.
	Queued bool `json:"queued,omitempty" jsonschema:"The run waits until its quotas admit it."`
	// Paused says that no new work of the run starts, PauseReason why.
	Paused      bool   `json:"paused,omitempty" jsonschema:"No new work of the run starts until it is resumed."`
	PauseReason string `json:"pause_reason,omitempty" jsonschema:"Why the run is paused. restored: a restore paused it."`
	// Priority is the run's place in the queue; empty: normal.
	Priority events.Priority `json:"priority,omitempty" jsonschema:"high or low: the place in the queue of a run that was queued."`
	// Labels are those that the run began with; a fork has its parent's.
	Labels events.Labels `json:"labels,omitempty"`
	// Error is the code of the error that the run ended with.
	Error string `json:"error,omitempty"`
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
		r.Task, r.Queued, r.Priority = cmp.Or(r.Task, cut(p.Task, taskLength)), p.Queued, p.Priority
		r.Labels = p.Labels
		if p.Parent != nil {
			r.Parent = p.Parent.Run
		}
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

// Page is one page of runs. Next, if not empty, is the cursor of the next page. A page
// may have fewer runs than its limit and still have a next one.
type Page struct {
	Runs []Run  `json:"runs"`
	Next string `json:"next,omitempty"`
}

// Query says which runs are listed, newest first: by their start, or with a terminal state by
// their end. The tags make the parameters of GET /v1/runs and the flags of the command runs.
type Query struct {
	Filters `query:"*"`
	// Limit is the number of runs in the page; 0: [DefaultLimit].
	Limit int `query:"limit" doc:"The most runs of the answer, 1 to 1000. Default: 50." default:"50" flag:"number of runs to list, 1 to 1000"`
	// Cursor is Next of the page before; empty for the first page.
	Cursor string `query:"cursor" doc:"The next of the previous answer." flag:"continue after this 'run'"`
}

// Lister lists runs. It is safe for concurrent use.
type Lister struct {
	a        *runs.Editor
	index    *index
	unserved Unserved
	known    []feature.Filter
	tests    map[string]Test // of features' filters
}

// New returns a Lister for the runs of a. unserved says which pools have no actors; nil: that is
// not known.
func New(a *runs.Editor, unserved Unserved) *Lister {
	if unserved == nil {
		unserved = func(context.Context) map[string]time.Time { return nil }
	}
	return &Lister{a, newIndex(a), unserved, AllFilters(), map[string]Test{}}
}

// unindexed is how many records may be missing in the index before a page without filters is
// read from the log itself.
const unindexed = 20_000

// plainWait is how long such a page waits for the index. What is read meanwhile stays, so later
// pages come from the index.
const plainWait = time.Second

// Runs returns a page of the namespace's runs. Wrong parameters are a CodeBadParameter. The first
// call reads the entire log; if ctx ends meanwhile, the error is a CodeUnavailable, and the next
// call continues.
func (l *Lister) Runs(ctx context.Context, ns string, q Query) (Page, error) {
	ns, err := l.a.CheckNamespace(ns)
	if err != nil {
		return Page{}, err
	}
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	if q.Limit < 1 || q.Limit > MaxLimit {
		return Page{}, badParameter("limit: must be 1 to %d", MaxLimit)
	}
	k := &look{unserved: sync.OnceValue(func() map[string]time.Time { return l.unserved(ctx) })}
	if err := k.take(ctx, l, ns, q.Filters); err != nil {
		return Page{}, err
	}
	missing, ends, err := l.index.missing(ctx)
	if err != nil {
		return Page{}, err
	}
	if missing == 0 {
		return l.page(ctx, ns, q, k)
	}
	building := ctx
	soon := missing > unindexed && k.plain()
	if soon {
		var stop context.CancelFunc
		building, stop = context.WithTimeout(ctx, plainWait)
		defer stop()
	}
	err = l.index.catchUp(building, ends)
	switch {
	case err == nil:
		return l.page(ctx, ns, q, k)
	case soon && building.Err() != nil && ctx.Err() == nil:
		return l.backwardsPage(ctx, ns, q, k)
	}
	return Page{}, err
}

// page reads a page from the index.
func (l *Lister) page(ctx context.Context, ns string, q Query, k *look) (Page, error) {
	page := Page{Runs: []Run{}}
	after, err := l.index.at(ns, q.Cursor, k.ended)
	if err != nil {
		return Page{}, err
	}
	for len(page.Runs) < q.Limit {
		found := l.index.find(ns, k, after, q.Limit-len(page.Runs))
		if len(found) == 0 {
			return page, nil
		}
		there, err := l.there(ctx, found)
		if err != nil {
			return Page{}, err
		}
		after = found[len(found)-1].row
		page.Runs = append(page.Runs, there...)
	}
	page.Next = after.run.ID
	return page, nil
}

// there returns the runs that the log still has: a run may have been purged.
func (l *Lister) there(ctx context.Context, found []match) ([]Run, error) {
	errs := make([]error, len(found))
	slots := make(chan struct{}, headReaders)
	var all sync.WaitGroup
	for i, m := range found {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			_, errs[i] = l.a.Log.Head(ctx, m.row.run)
		})
	}
	all.Wait()
	var runs []Run
	for i, m := range found {
		switch {
		case errors.Is(errs[i], journal.ErrNotFound):
			l.index.drop(m.row)
		case errs[i] != nil:
			return nil, errs[i]
		default:
			runs = append(runs, m.info)
		}
	}
	return runs, nil
}

// match is a run that was found, as it stands.
type match struct {
	row  *row
	info Run
}

// at returns the run of a cursor; nil for none.
func (x *index) at(ns, cursor string, ended bool) (*row, error) {
	if cursor == "" {
		return nil, nil
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if space := x.namespaces[ns]; space != nil {
		if r := space.runs[cursor]; r != nil && (!ended || !r.to.IsZero()) {
			return r, nil
		}
	}
	return nil, badParameter("cursor: %q is not a run of this list", cursor)
}

// find returns at most limit runs after one (nil: from the beginning), newest first.
func (x *index) find(ns string, k *look, after *row, limit int) []match {
	x.mu.RLock()
	defer x.mu.RUnlock()
	space := x.namespaces[ns]
	if space == nil {
		return nil
	}
	rows, order := space.started, byStart
	if k.ended {
		rows, order = space.ended, byEnd
	}
	at := len(rows)
	if after != nil {
		at, _ = slices.BinarySearchFunc(rows, after, order)
	}
	var found []match
	for at--; at >= 0 && len(found) < limit; at-- {
		r := rows[at]
		if !k.ended && r.from.Before(k.since.Add(-clockSkew)) {
			break // all others are older
		}
		if k.matches(r) {
			found = append(found, match{r, r.shown(k.unserved)})
		}
	}
	return found
}

// clockSkew is how much the clocks of those who start runs and of the server may differ.
const clockSkew = time.Hour

// backwardsPage reads a page from the log itself: backwards from the cursor, and only the last
// event of each run. For a state that is not terminal it examines at most 2000 runs and then
// returns Next. With several shards a later page reads the newer starts of the other shards
// again.
func (l *Lister) backwardsPage(ctx context.Context, ns string, q Query, k *look) (Page, error) {
	p := pager{l: l, ns: ns, state: k.state, limit: q.Limit, page: Page{Runs: []Run{}}, seen: map[string]bool{}}
	p.filter = journal.Filter{Namespace: ns, From: l.a.Table.Initial()}
	if k.ended {
		p.filter = journal.Filter{Namespace: ns, To: k.state}
	}
	return p.fill(ctx, q.Cursor)
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
	unknown := badParameter("cursor: %q is not a run of this list", after)
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
	if info.Queued && e != nil && e.N > 1 {
		info.Queued = false
		if e.To == events.Planning {
			e = nil // only the run's events say whether it is still queued
		}
	}
	if e != nil && info.Agent != "" {
		info.State, info.N, info.Updated = e.To, e.N, e.Time
		return info, nil
	}
	state, err := l.a.State(ctx, of.run.Namespace, of.run.ID, 0)
	if err == nil {
		info.State, info.N, info.Mode, info.Agent = state.State, state.N, state.Mode, state.Agent
		info.Started, info.Updated, info.Queued = state.Started, state.Updated, state.Queued
		info.Paused, info.PauseReason = state.Paused, state.PauseReason
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
