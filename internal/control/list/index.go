package list

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// index knows of every run in the log what a list needs. It is made from the log alone: each
// request first reads what the log holds beyond it. It keeps about 1 KB for each run.
type index struct {
	a *runs.Editor
	// reading has a place for the request that reads the log.
	reading chan struct{}

	mu sync.RWMutex
	// read is up to where each shard was read.
	read       []uint64
	namespaces map[string]*namespace
	// suspects are the runs to be folded before the next list, forks those that have yet to
	// get from their parents what their own first event does not say.
	suspects, forks map[*row]bool
	// counts are made of what the index reads. uncounted are events of forks whose agents are
	// not known before their parents are read, uncountedSize the size of their records.
	counts        *tally.Tally
	uncounted     map[*row][]tally.Event
	uncountedSize int
}

// namespace has the runs of a namespace: by their start, and the ended ones by their end.
type namespace struct {
	runs           map[string]*row
	started, ended []*row
	// below are the runs that answer calls of a run, and its forks, by the run's id.
	below map[string][]*row
	// checked is the place in started up to which purged runs were dropped.
	checked int
}

// row is a run in the index.
type row struct {
	run  events.Run
	info Run
	// from and to are when the first event was stored, and the one that ended the run.
	from, to time.Time
	// prev is the hash of the last event.
	prev string
	// call is the call of the parent that the run answers.
	call     string
	handOffs []HandOff
	// task and answer are searched; they are in lower case.
	task, answer string
	// outside says that a model of the run is its client. clientTools are the names of its
	// client's tools, open the calls of them that have no result yet.
	outside     bool
	clientTools []string
	open        []string
	// sent are the calls that wait in pools.
	sent []sent
	// suspect is true when the log has a record of the run that is not its next event.
	// Only a fold says then how the run stands.
	suspect bool
	counted tally.Run
	// entered is when the run came to its state, deadline until when it waits for decisions.
	entered, deadline time.Time
	// restored says that a restore paused the run, and nobody else has since.
	restored bool
}

// How much of the texts of a run is searched, in bytes.
const (
	taskSearched   = 2048
	answerSearched = 512
)

// addBatch is how many records are added at a time.
const addBatch = 256

func newIndex(a *runs.Editor) *index {
	return &index{
		a: a, reading: make(chan struct{}, 1), read: make([]uint64, a.Log.Shards()),
		namespaces: map[string]*namespace{}, suspects: map[*row]bool{}, forks: map[*row]bool{},
		counts: tally.New(), uncounted: map[*row][]tally.Event{},
	}
}

// missing returns how many records at most the index has not read, and the end of each shard.
func (x *index) missing(ctx context.Context) (uint64, []uint64, error) {
	ends := make([]uint64, len(x.read))
	for shard := range ends {
		newest, err := x.a.Log.Newest(ctx, shard, journal.Filter{})
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			return 0, nil, err
		}
		ends[shard] = newest.Seq
	}
	return x.behind(ends), ends, nil
}

func (x *index) behind(ends []uint64) (missing uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for shard, end := range ends {
		missing += end - min(end, x.read[shard])
	}
	return missing
}

// catchUp reads the log up to these ends. If ctx ends before, what was read stays, and the next
// request continues from there.
func (x *index) catchUp(ctx context.Context, ends []uint64) error {
	select {
	case x.reading <- struct{}{}:
		defer func() { <-x.reading }()
	case <-ctx.Done():
		return x.unfinished(ctx, ends, ctx.Err())
	}
	errs := make([]error, len(ends))
	var all sync.WaitGroup
	for shard, end := range ends {
		if x.read[shard] < end {
			all.Go(func() { errs[shard] = x.scan(ctx, shard) })
		}
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return x.unfinished(ctx, ends, err)
	}
	x.mu.Lock()
	x.inherit()
	x.mu.Unlock()
	if err := x.prune(ctx); err != nil {
		return err
	}
	return x.resolve(ctx)
}

// pruned is how many runs of a namespace are checked whenever the index reads the log.
const pruned = 4

// prune drops runs that were purged, some at a time and by turns.
func (x *index) prune(ctx context.Context) error {
	var some []*row
	x.mu.Lock()
	for _, space := range x.namespaces {
		for range min(pruned, len(space.started)) {
			space.checked = (space.checked + 1) % len(space.started)
			some = append(some, space.started[space.checked])
		}
	}
	x.mu.Unlock()
	for _, r := range some {
		_, err := x.a.Log.Head(ctx, r.run)
		if errors.Is(err, journal.ErrNotFound) {
			x.drop(r)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// unfinished is the error of a request that ended before the index was there.
func (x *index) unfinished(ctx context.Context, ends []uint64, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable,
		"the index of runs is being built from the log, and %d records are left; ask again", x.behind(ends))
}

func (x *index) scan(ctx context.Context, shard int) error {
	var batch []journal.Record
	flush := func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, rec := range batch {
			x.add(shard, rec)
		}
		batch = batch[:0]
	}
	defer flush()
	for rec, err := range x.a.Log.Scan(ctx, shard, journal.Filter{}, x.read[shard]) {
		if err != nil {
			return err
		}
		if batch = append(batch, rec); len(batch) == addBatch {
			flush()
		}
	}
	return nil
}

func (x *index) add(shard int, rec journal.Record) {
	x.read[shard] = rec.Seq
	s, err := events.ParseSubject(rec.Subject)
	if err != nil || s.CheckShard(x.a.Log.Shards()) != nil || s.Run.Shard != shard {
		return // it belongs to no run
	}
	space := x.namespaces[s.Run.Namespace]
	if space == nil {
		space = &namespace{runs: map[string]*row{}, below: map[string][]*row{}}
		x.namespaces[s.Run.Namespace] = space
	}
	e := x.a.Decode(rec)
	r := space.runs[s.Run.ID]
	switch {
	case r == nil && s.From != x.a.Table.Initial():
		return // what is there of a run without a beginning
	case r == nil:
		run := events.Run{Namespace: kept(s.Run.Namespace), ID: strings.Clone(s.Run.ID), Shard: shard}
		r = &row{run: run, from: rec.Stored, info: Run{RunID: run.ID}}
		space.runs[run.ID] = r
		space.started = insert(space.started, r, byStart)
	}
	if e == nil || e.N != r.info.N+1 || e.Prev != r.prev || r.info.N > 0 && e.From != r.info.State {
		r.suspect = true
		x.suspects[r] = true
		return
	}
	if r.suspect {
		x.suspects[r] = true
	}
	r.prev = events.Hash(rec.Body)
	r.apply(e)
	r.sends(s, e)
	if e.N == 1 && r.info.ForkedFrom != nil && !x.inheritTo(r) {
		x.forks[r] = true
	}
	count := tally.Event{First: e.N == 1, Time: e.Time, Stored: rec.Stored, Data: e.Data}
	if above := r.above(); e.N == 1 && above != "" {
		space.below[above] = append(space.below[above], r)
	}
	if r.to.IsZero() && x.a.Table.Terminal(r.info.State) {
		r.to, r.info.Paused, r.info.PauseReason = rec.Stored, false, ""
		space.ended = insert(space.ended, r, byEnd)
		count.Ended, count.Failed = true, r.info.State == events.Errored
	}
	x.count(r, count, len(rec.Body))
}

// apply takes what the list shows from the run's next event.
func (r *row) apply(e *events.Event) {
	if e.N == 1 || e.To != r.info.State {
		r.entered, r.deadline = e.Time, time.Time{}
	}
	r.info.State, r.info.N, r.info.Updated = kept(e.To), e.N, e.Time
	if e.N == 1 {
		r.info.Started = e.Time
		r.info.addFirst(e.Data)
		r.info.Agent, r.info.Mode = kept(r.info.Agent), kept(r.info.Mode)
		r.info.Task, r.info.Parent = strings.Clone(r.info.Task), strings.Clone(r.info.Parent)
		if from := r.info.ForkedFrom; from != nil {
			from.Run = strings.Clone(from.Run)
		}
	}
	if e.To != events.Planning {
		r.info.Queued = false
	}
	switch p := e.Data.(type) {
	case *events.Paused:
		r.info.Paused, r.info.PauseReason, r.restored = true, kept(p.Reason), p.Restored
	case *events.Resumed:
		r.info.Paused, r.info.PauseReason, r.restored = false, "", false
	case *events.Admitted:
		r.info.Queued = false
	case *events.Start:
		r.pinned(&p.Agent, p.Tools)
		r.task = searched(p.Task, taskSearched)
		if p.Parent != nil {
			r.call = strings.Clone(p.Parent.CallID)
		}
	case *events.Forked:
		r.task = searched(p.Task, taskSearched)
		if p.Agent != nil {
			r.pinned(p.Agent, p.Tools)
		}
	case *events.HandedOff:
		r.info.Agent = kept(p.Agent.Name)
		r.handOffs = append(r.handOffs, HandOff{N: e.N, To: r.info.Agent})
		r.pinned(&p.Agent, p.Tools)
	case *events.LLMFinalAnswer:
		r.answer = searched(p.Content, answerSearched)
	case *events.HumanApprovalRequired:
		r.deadline, _ = time.Parse(time.RFC3339, p.Deadline) // a wrong one counts as none
	case *events.FatalError:
		r.failed(&p.Outcome)
	case *events.MaxSteps:
		r.failed(&p.Outcome)
	case *events.BudgetExceeded:
		r.failed(&p.Outcome)
	}
	r.callsOf(e)
	if used := events.Billed(e.Data); used != nil {
		r.info.Tokens += max(0, used.Total)
		if used.CostUSD != nil {
			r.info.CostUSD += max(0, *used.CostUSD)
		}
	}
}

// failed takes why the run ended.
func (r *row) failed(o *events.Outcome) {
	r.info.Error = kept(o.Code)
	r.answer = searched(o.Code+" "+o.Message, answerSearched)
}

// pinned takes who the run's models and tools are.
func (r *row) pinned(a *events.Agent, tools []events.ToolSpec) {
	r.outside, r.clientTools = clientmodel.Asks(a), nil
	for _, t := range tools {
		if t.Client {
			r.clientTools = append(r.clientTools, kept(t.Name))
		}
	}
}

// callsOf takes which calls of the client's tools wait for their results.
func (r *row) callsOf(e *events.Event) {
	var calls []events.Call
	var answered string
	switch p := e.Data.(type) {
	case *events.LLMToolCall:
		calls = p.Calls
	case *events.LLMParallelToolCalls:
		calls = p.Calls
	case *events.HumanApprovalRequired:
		calls = p.Calls
	case *events.ToolCallResult:
		answered = p.CallID
	}
	for _, call := range calls {
		if slices.Contains(r.clientTools, call.Name) {
			r.open = append(r.open, strings.Clone(call.ID))
		}
	}
	r.open = slices.DeleteFunc(r.open, func(id string) bool { return id == answered })
	if e.To == events.Planning || e.To == events.Observing {
		r.open = nil
	}
}

// above returns the run whose call the run answers, or that it was forked from; empty: neither.
func (r *row) above() string {
	if r.info.ForkedFrom != nil {
		return r.info.ForkedFrom.Run
	}
	return r.info.Parent
}

// kept returns a copy of a name, which equal names share. A decoded text may be a part of a larger
// one, which it would keep in memory.
func kept[T ~string](name T) T { return T(unique.Make(string(name)).Value()) }

// searched returns at most limit bytes of a text, in lower case. It may cut a character.
func searched(text string, limit int) string {
	return strings.ToLower(strings.Clone(text[:min(len(text), limit)])) // not the entire text
}

// inherit fills in what forks have from their parents, as far as those are there. x.mu is locked.
func (x *index) inherit() {
	defer x.countForks()
	for range reducer.MaxForks {
		before := len(x.forks)
		for r := range x.forks {
			if x.inheritTo(r) {
				delete(x.forks, r)
			}
		}
		if len(x.forks) == before {
			return
		}
	}
}

// inheritTo fills in what a fork has from its parent, and reports whether the parent is there.
func (x *index) inheritTo(r *row) bool {
	of := x.namespaces[r.run.Namespace].runs[r.info.ForkedFrom.Run]
	if of == nil || x.forks[of] {
		return false
	}
	if r.info.Agent == "" {
		r.info.Agent, r.outside, r.clientTools = of.info.Agent, of.outside, of.clientTools
		if r.info.N == 1 && (r.info.State == events.Acting || r.info.State == events.ParallelActing) {
			r.open = slices.Clone(of.clientTools) // which of them are called only the parent's log says
		}
	}
	r.info.Mode, r.info.Task = cmp.Or(r.info.Mode, of.info.Mode), cmp.Or(r.info.Task, of.info.Task)
	r.task, r.info.Labels = cmp.Or(r.task, of.task), of.info.Labels
	return true
}

// resolve folds the runs whose records do not follow from each other.
func (x *index) resolve(ctx context.Context) error {
	x.mu.RLock()
	var suspects []*row
	for r := range x.suspects {
		suspects = append(suspects, r)
	}
	x.mu.RUnlock()
	for _, r := range suspects {
		info, err := x.fold(ctx, r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			continue // it stays as its last event said, and is folded again with the next list
		}
		x.mu.Lock()
		r.info = info
		delete(x.suspects, r)
		if r.to.IsZero() && x.a.Table.Terminal(info.State) {
			r.to = info.Updated
			space := x.namespaces[r.run.Namespace]
			space.ended = insert(space.ended, r, byEnd)
			x.count(r, tally.Event{Ended: true, Failed: info.State == events.Errored, Time: r.to, Stored: r.to}, 0)
		}
		x.mu.Unlock()
	}
	return nil
}

// fold returns how a run stands. Where its transition table is unknown, its last event says so.
func (x *index) fold(ctx context.Context, r *row) (Run, error) {
	x.mu.RLock()
	info := r.info
	x.mu.RUnlock()
	state, err := x.a.State(ctx, r.run.Namespace, r.run.ID, 0)
	switch {
	case err == nil:
		info.State, info.N, info.Mode, info.Agent = state.State, state.N, state.Mode, state.Agent
		info.Started, info.Updated, info.Queued = state.Started, state.Updated, state.Queued
		info.Paused, info.PauseReason = state.Paused, state.PauseReason
		return info, nil
	case refusal.Is(err, refusal.CodeRunNotFound, refusal.CodeRunPurged):
		return info, nil // the list drops it
	}
	var unknown *reducer.TableError
	if !errors.As(err, &unknown) {
		return info, err
	}
	rec, headErr := x.a.Log.Head(ctx, r.run)
	if headErr != nil {
		return info, headErr
	}
	return info, info.addUnknownTable(rec, err)
}

// drop forgets a run, which was purged.
func (x *index) drop(r *row) {
	x.mu.Lock()
	defer x.mu.Unlock()
	space := x.namespaces[r.run.Namespace]
	if space.runs[r.run.ID] != r {
		return // another request dropped it
	}
	delete(space.runs, r.run.ID)
	if above := r.above(); above != "" {
		space.below[above] = slices.DeleteFunc(space.below[above], func(other *row) bool { return other == r })
	}
	delete(x.suspects, r)
	delete(x.forks, r)
	space.started = remove(space.started, r, byStart)
	space.ended = remove(space.ended, r, byEnd)
}

func byStart(a, b *row) int {
	return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.run.ID, b.run.ID))
}
func byEnd(a, b *row) int { return cmp.Or(a.to.Compare(b.to), cmp.Compare(a.run.ID, b.run.ID)) }

// insert adds a row to a sorted list, mostly at its end.
func insert(rows []*row, r *row, order func(a, b *row) int) []*row {
	at := len(rows)
	if at > 0 && order(rows[at-1], r) > 0 {
		at, _ = slices.BinarySearchFunc(rows, r, order)
	}
	return slices.Insert(rows, at, r)
}

func remove(rows []*row, r *row, order func(a, b *row) int) []*row {
	if at, found := slices.BinarySearchFunc(rows, r, order); found && rows[at] == r {
		return slices.Delete(rows, at, at+1)
	}
	return rows
}
