package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/fold"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// added sums what events of a run added.
type added struct {
	texts   []history.Text
	uses    map[history.Use]history.Sum
	periods map[time.Time]history.Period
}

func newAdded() *added {
	return &added{uses: map[history.Use]history.Sum{}, periods: map[time.Time]history.Period{}}
}

func (a *added) add(c fold.Change) {
	a.texts = append(a.texts, c.Texts...)
	p := a.periods[c.Period.Hour]
	p.Add(c.Period)
	a.periods[c.Period.Hour] = p
	for _, u := range c.Uses {
		sum := a.uses[history.Use{Hour: u.Hour, Kind: u.Kind, Name: u.Name}]
		sum.Add(u.Sum)
		a.uses[history.Use{Hour: u.Hour, Kind: u.Kind, Name: u.Name}] = sum
	}
}

// draw appends random legal events to a run.
func draw(t *rapid.T, r *reducertest.Run, most int) {
	for range rapid.IntRange(1, most).Draw(t, "events") {
		next := reducertest.Next(t, r)
		if next.Payload == nil {
			return
		}
		_, _, err := r.Append(next.Origin, next.Payload)
		require.NoError(t, err)
	}
}

// step folds the run's n-th record.
func step(t *rapid.T, f *fold.Fold, r *reducertest.Run, n int) fold.Change {
	rec := r.Records[n]
	s, err := events.ParseSubject(rec.Subject)
	require.NoError(t, err)
	e, err := r.Machine.Codec().Decode(rec.Body)
	require.NoError(t, err)
	c, follows := f.Add(s, e, events.Hash(rec.Body), e.Time)
	require.True(t, follows, "event %d", n+1)
	return c
}

// A fold that is resumed from its row after every event comes to what one that goes on comes to. What it
// adds is what the tally counts, and its row is what the run's memory says.
func TestFoldIsItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reducertest.NewRun(nil)
		draw(t, r, 40)
		var parent *reducer.Memory
		if at := uint64(rapid.IntRange(1, len(r.Records)).Draw(t, "at")); rapid.Bool().Draw(t, "fork") && r.Machine.Forkable(r.At(at), events.Hash(r.Records[at-1].Body)) == nil {
			parent = r.At(at)
			forked, err := r.Fork(at, events.Forked{})
			require.NoError(t, err)
			r = forked
			draw(t, r, 20)
		}
		table := r.Machine.Table()
		straight, resumed := fold.New(table, r.ID), fold.New(table, r.ID)
		straight.Inherit(parent)
		resumed.Inherit(parent)
		want, got := newAdded(), newAdded()
		var row history.Run
		for n := range r.Records {
			want.add(step(t, straight, r, n))
			got.add(step(t, resumed, r, n))
			var err error
			row, err = resumed.Row()
			require.NoError(t, err)
			resumed, err = fold.Resume(table, row)
			require.NoError(t, err)
		}
		last, err := straight.Row()
		require.NoError(t, err)
		require.Equal(t, last, row)
		require.Equal(t, want, got)
		sameAsMemory(t, r.Mem, row)
		sameAsTally(t, r, row, got)
	})
}

func sameAsMemory(t *rapid.T, mem *reducer.Memory, row history.Run) {
	require.Equal(t, mem.State, row.State)
	require.Equal(t, []any{mem.N, mem.Control.Head, mem.Task, mem.Mode}, []any{row.N, row.Head, row.Task, row.Mode})
	require.Equal(t, map[string]string(mem.Control.Labels), row.Labels)
	require.Equal(t, []any{mem.Control.Agent.Name, mem.Started, mem.Updated}, []any{row.Agent, row.Started, row.Updated})
	if row.Ended.IsZero() {
		require.Equal(t, mem.Control.Paused, row.Paused)
		require.Equal(t, mem.Queued(), row.Queued)
	}
	if mem.Error != nil {
		require.Equal(t, mem.Error.Code, row.Error)
	}
	if row.ForkOf == "" { // a fork's memory counts its parent's replies
		require.Equal(t, mem.Step, row.Steps)
	}
}

func sameAsTally(t *rapid.T, r *reducertest.Run, row history.Run, got *added) {
	counts, run := tally.New(), tally.Run{}
	for n, rec := range r.Records {
		e, err := r.Machine.Codec().Decode(rec.Body)
		require.NoError(t, err)
		counts.Add("ns", &run, tally.Event{
			Agent: row.Agent, First: n == 0, Ended: r.Machine.Table().Terminal(e.To), Failed: e.To == events.Errored,
			Time: e.Time, Stored: e.Time, Data: e.Data,
		})
	}
	for kind, by := range map[history.UseKind]tally.By{history.ByAgent: tally.ByAgent, history.ByModel: tally.ByModel, history.ByTool: tally.ByTool} {
		want, uses := map[string]tally.Use{}, map[string]tally.Use{}
		for _, cost := range counts.Costs("ns", by, time.Time{}, row.Updated).Rows {
			want[cost.Key] = cost.Use
		}
		for u, s := range got.uses {
			if u.Kind == kind {
				use := tally.Use{Runs: s.Runs, Calls: s.Calls, Input: s.Input, Output: s.Output, Cached: s.Cached, Unpriced: s.Unpriced}
				if s.Priced {
					use.CostUSD = &s.CostUSD
				}
				uses[u.Name] = use
			}
		}
		require.Equal(t, want, uses, kind)
	}
	for _, h := range counts.Hours("ns", row.Updated) {
		p := got.periods[h.Hour]
		require.Equal(t, []int64{h.Started, h.Ended, h.Failed, h.Events}, []int64{p.Started, p.Ended, p.Failed, p.Events})
	}
}

// A record that does not follow those before it changes nothing.
func TestRecordsThatDoNotFollow(t *testing.T) {
	r := reducertest.NewRun(nil)
	for _, p := range []events.Payload{reducertest.StartOf("Do it.", events.ModeTask)} {
		_, _, err := r.Append(events.Idle, p)
		require.NoError(t, err)
	}
	first := r.Records[0]
	s, err := events.ParseSubject(first.Subject)
	require.NoError(t, err)
	e, err := r.Machine.Codec().Decode(first.Body)
	require.NoError(t, err)
	f := fold.New(r.Machine.Table(), r.ID)
	_, follows := f.Add(s, e, events.Hash(first.Body), e.Time)
	require.True(t, follows)
	before, err := f.Row()
	require.NoError(t, err)
	_, answer, body, err := r.Draft(events.Planning, &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "4"}})
	require.NoError(t, err)
	for name, change := range map[string]func(e *events.Event){
		"number": func(e *events.Event) { e.N++ }, "hash": func(e *events.Event) { e.Prev = "" }, "state": func(e *events.Event) { e.From = events.Acting },
	} {
		wrong := *answer
		change(&wrong)
		c, follows := f.Add(s, &wrong, events.Hash(body), e.Time)
		require.False(t, follows, name)
		require.Empty(t, c, name)
	}
	_, follows = f.Add(s, nil, events.Hash(body), e.Time)
	require.False(t, follows)
	after, err := f.Row()
	require.NoError(t, err)
	require.Equal(t, before, after)

	f.Poison("hash of what cannot be read", e.Time)
	end := &events.Event{N: 3, Prev: "hash of what cannot be read", From: events.Planning, To: events.Errored, Time: e.Time, Data: &events.FatalError{Outcome: events.Outcome{Code: "poison", Message: "x"}}}
	c, follows := f.Add(s, end, "h", e.Time)
	require.True(t, follows)
	require.Equal(t, []history.Text{{N: 3, Kind: history.Error, Code: "poison", Text: "poison x", At: e.Time}}, c.Texts)
	row, err := f.Row()
	require.NoError(t, err)
	require.Equal(t, "poison", row.Error)
	require.Empty(t, row.Open)
}
