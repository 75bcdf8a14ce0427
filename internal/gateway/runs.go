package gateway

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The bounds of one page of runs.
const (
	defaultRunLimit = 50
	maxRunLimit     = 1000
	// maxExamined is how many runs one page looks at for those in a state.
	maxExamined = 2000
	// headReaders is how many runs' heads are read at once.
	headReaders = 8
	// taskLength is how much of a task a list shows, in characters.
	taskLength = 200
)

// RunInfo is a run in a list. Agent, Mode and Task are empty where the run's
// first event cannot be read.
type RunInfo struct {
	RunID   string       `json:"run_id"`
	State   events.State `json:"state"`
	N       uint64       `json:"n"`
	Mode    events.Mode  `json:"mode,omitempty"`
	Agent   string       `json:"agent,omitempty"`
	Task    string       `json:"task,omitempty"`
	Started time.Time    `json:"started"`
	Updated time.Time    `json:"updated"`
	// ForkedFrom is what a fork goes on from; nil for a run that was started.
	ForkedFrom *ForkPoint `json:"forked_from,omitempty"`
}

// ForkPoint is the event of a run that another one was forked from.
type ForkPoint struct {
	Run string `json:"run"`
	At  uint64 `json:"at"`
}

// open adds what a run's first event says, where nothing is said yet: a fork is
// as it was patched, and else as its parent began.
func (i *RunInfo) open(p events.Payload) {
	switch p := p.(type) {
	case *events.Start:
		i.Agent, i.Mode = cmp.Or(i.Agent, p.Agent.Name), cmp.Or(i.Mode, p.Mode)
		i.Task = cmp.Or(i.Task, cut(p.Task, taskLength))
	case *events.Forked:
		if p.Agent != nil {
			i.Agent = cmp.Or(i.Agent, p.Agent.Name)
		}
		i.Mode, i.Task = cmp.Or(i.Mode, p.Mode), cmp.Or(i.Task, cut(p.Task, taskLength))
		i.ForkedFrom = &ForkPoint{Run: p.Run, At: p.At}
	}
}

// RunPage is one page of runs. Next, if not empty, is what to give as after for
// the next one; a page may have fewer runs than asked for and still a next one.
type RunPage struct {
	Runs []RunInfo `json:"runs"`
	Next string    `json:"next,omitempty"`
}

// Runs lists the namespace's runs, the newest first: by their start, or, where a
// terminal state is asked for, by their end. An empty state means every state,
// a limit of 0 means 50. after is the id of the last run of the page before, or
// empty.
//
// A page reads the log's index backwards, not the whole log, and for each run its
// last event only. Of runs in a state that is not terminal it looks at no more
// than 2000, then says where to go on. With several shards a later page passes
// over the newer starts of the other shards again.
func (g *Gateway) Runs(ctx context.Context, ns string, state events.State, limit int, after string) (RunPage, error) {
	ns, err := g.checkNamespace(ns)
	if err != nil {
		return RunPage{}, err
	}
	if limit == 0 {
		limit = defaultRunLimit
	}
	if limit < 1 || limit > maxRunLimit {
		return RunPage{}, badRequest(CodeBadParameter, "limit: must be 1 to %d", maxRunLimit)
	}
	if state != "" && !g.knownState(state) {
		return RunPage{}, badRequest(CodeBadParameter, "state: %q is not a state", state)
	}
	l := listing{g: g, ns: ns, state: state, limit: limit, page: RunPage{Runs: []RunInfo{}}, seen: map[string]bool{}}
	l.filter = journal.Filter{Namespace: ns, From: g.table.Initial()}
	if g.table.Terminal(state) {
		l.filter = journal.Filter{Namespace: ns, To: state}
	}
	return l.run(ctx, after)
}

func (g *Gateway) knownState(s events.State) bool {
	for _, known := range g.table.States() {
		if s == known {
			return true
		}
	}
	return false
}

// listing makes one page.
type listing struct {
	g      *Gateway
	ns     string
	state  events.State
	limit  int
	filter journal.Filter
	page   RunPage
	seen   map[string]bool
}

func (l *listing) run(ctx context.Context, after string) (RunPage, error) {
	from, err := l.cursor(ctx, after)
	if err != nil {
		return RunPage{}, err
	}
	var batch []mark
	examined := 0
	for m, err := range l.g.newest(ctx, l.filter, from) {
		if err != nil {
			return RunPage{}, err
		}
		if l.seen[m.run.ID] {
			continue
		}
		l.seen[m.run.ID] = true
		batch = append(batch, m)
		if len(batch) < min(l.limit-len(l.page.Runs), 64) {
			continue
		}
		examined += len(batch)
		if err := l.take(ctx, batch); err != nil {
			return RunPage{}, err
		}
		if len(l.page.Runs) >= l.limit || examined >= maxExamined {
			l.page.Next = m.run.ID
			return l.page, nil
		}
		batch = batch[:0]
	}
	return l.page, l.take(ctx, batch)
}

// cursor returns where the run with this id stands in the list.
func (l *listing) cursor(ctx context.Context, after string) (*mark, error) {
	if after == "" {
		return nil, nil
	}
	unknown := badRequest(CodeBadParameter, "after: %q is not a run of this list", after)
	if events.CheckID(after) != nil {
		return nil, unknown
	}
	run := l.g.store.Place(l.ns, after)
	filter := l.filter
	filter.Run = after
	for rec, err := range l.g.log.Scan(ctx, run.Shard, filter, 0) {
		if err != nil {
			return nil, err
		}
		m := l.g.mark(run.Shard, rec)
		return &m, nil
	}
	return nil, unknown
}

// take looks the runs up, several at a time, and keeps those in the state.
func (l *listing) take(ctx context.Context, batch []mark) error {
	infos := make([]*RunInfo, len(batch))
	errs := make([]error, len(batch))
	slots := make(chan struct{}, headReaders)
	var all sync.WaitGroup
	for i := range batch {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			infos[i], errs[i] = l.g.runInfo(ctx, &batch[i])
		})
	}
	all.Wait()
	for i, info := range infos {
		if errs[i] != nil {
			return errs[i]
		}
		if info != nil && (l.state == "" || info.State == l.state) {
			l.page.Runs = append(l.page.Runs, *info)
		}
	}
	return nil
}

// runInfo completes what a mark knows with the run's head and beginning. A head
// that cannot be legal, and an end that does not follow what is before it, need a
// fold of the whole run.
func (g *Gateway) runInfo(ctx context.Context, m *mark) (*RunInfo, error) {
	if err := g.beginning(ctx, m); err != nil {
		return nil, err
	}
	info, err := g.ancestry(ctx, m)
	if err != nil {
		return nil, err
	}
	rec, err := g.log.Head(ctx, m.run)
	if err != nil {
		return nil, err
	}
	e := g.plausible(rec)
	if e != nil && g.table.Terminal(e.To) {
		follows, err := g.follows(ctx, m.run, rec.Seq, e)
		if err != nil {
			return nil, err
		}
		if !follows {
			e = nil
		}
	}
	if e != nil && info.Agent != "" {
		info.State, info.N, info.Updated = e.To, e.N, e.Time
		return &info, nil
	}
	state, err := g.State(ctx, m.run.Namespace, m.run.ID, 0)
	if isForeign(err) {
		info.read(rec)
		return &info, nil
	}
	if err != nil {
		return nil, err
	}
	info.State, info.N, info.Mode, info.Agent = state.State, state.N, state.Mode, state.Agent
	info.Started, info.Updated = state.Started, state.Updated
	return &info, nil
}

// ancestry completes what a fork's first event does not say by those of the runs
// that it stands on, as far as they are there.
func (g *Gateway) ancestry(ctx context.Context, m *mark) (RunInfo, error) {
	info := m.info
	for range reducer.MaxForks {
		if info.ForkedFrom == nil || info.Agent != "" && info.Mode != "" && info.Task != "" {
			break
		}
		parent := mark{run: g.store.Place(m.run.Namespace, info.ForkedFrom.Run)}
		info.ForkedFrom = nil
		if err := g.beginning(ctx, &parent); err != nil {
			return info, err
		}
		info.Agent, info.Mode = cmp.Or(info.Agent, parent.info.Agent), cmp.Or(info.Mode, parent.info.Mode)
		info.Task, info.ForkedFrom = cmp.Or(info.Task, parent.info.Task), parent.info.ForkedFrom
	}
	info.ForkedFrom = m.info.ForkedFrom
	return info, nil
}

// beginning reads the run's first event where the mark was made of another one.
func (g *Gateway) beginning(ctx context.Context, m *mark) error {
	if m.first {
		return nil
	}
	filter := journal.Filter{Namespace: m.run.Namespace, Run: m.run.ID, From: g.table.Initial()}
	for rec, err := range g.log.Scan(ctx, m.run.Shard, filter, 0) {
		if err != nil {
			return err
		}
		m.info = g.mark(m.run.Shard, rec).info
		return nil
	}
	return nil
}
