package store_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/historytest"
	"github.com/moorebus/moorebus/internal/history/query"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/internal/history/words"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

// A store answers random queries over random runs as the rules do that package historytest has, page by page.
func TestStoresAnswerByTheRules(t *testing.T) {
	worlds, asked := 12, 150
	if testing.Short() {
		worlds = 2
	}
	for seed := range worlds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, uint64(seed))
			for range asked {
				q, sort := w.query(), w.sort()
				want := w.matching(q)
				which := store.Select{Namespace: "a", Query: q}
				said := fmt.Sprintf("%+v %v", q, sort)
				slices.SortFunc(want, func(a, b historytest.Run) int { return historytest.Compare(sort, a, b) })
				require.Equal(t, ids(want), w.list(which, sort), said)
				w.checkFacets(which, want)
				if len(q.Terms) > 0 {
					w.checkHits(which, want)
				}
			}
		})
	}
}

// world is a store, and what it must have.
type world struct {
	*rand.Rand
	t    *testing.T
	s    *store.Store
	runs []historytest.Run
	at   time.Time
}

var (
	names = []string{"a", "ab", "b", "%", "a%", `"`, "", "A", "a\x00", "日本", strings.Repeat("n", 300)}
	bases = []string{"alpha", "alp", "beta", "Gamma", "日本", "é", "e\u0301", "x1", "NEAR", "OR", "NOT", `"quoted"`, "a*", "%", "\x00", "word:s", "-", "ETIMEDOUT", strings.Repeat("long", 40)}
)

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

func (w *world) some(all []string) (some []string) {
	for range w.IntN(3) {
		some = append(some, pick(w.Rand, all))
	}
	slices.Sort(some)
	return slices.Compact(some)
}

func (w *world) text() string {
	var b strings.Builder
	for range 1 + w.IntN(6) {
		b.WriteString(pick(w.Rand, bases) + pick(w.Rand, []string{" ", ", ", "\n", "/"}))
	}
	return b.String()
}

// now is a later time than all before.
func (w *world) now() time.Time {
	w.at = w.at.Add(time.Duration(1+w.IntN(int(40*time.Minute/time.Microsecond))) * time.Microsecond)
	return w.at
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), t: t, at: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	w.s, _ = open(t, filepath.Join(t.TempDir(), "views.db"))
	var at uint64
	apply := func(b history.Batch) {
		b.Stream, b.From, b.To = "s", at, at+1
		at++
		require.NoError(t, w.s.Apply(t.Context(), b))
	}
	for range 40 {
		var b history.Batch
		for range 1 + w.IntN(4) {
			r := w.run()
			kept := len(r.Texts) / 2
			early := r.Run
			early.State, early.Ended, early.Models, early.CallErrors = events.Planning, time.Time{}, w.some(names), w.some(names)
			if w.IntN(3) == 0 { // it comes in two batches, of which the second may replace the first
				first := history.Change{Run: early, Texts: r.Texts[:kept]}
				apply(history.Batch{Runs: []history.Change{first}})
				second := history.Change{Run: r.Run, Texts: r.Texts[kept:]}
				if w.IntN(2) == 0 {
					second = history.Change{Run: r.Run, Texts: r.Texts, Anew: true}
				}
				b.Runs = append(b.Runs, second)
			} else {
				b.Runs = append(b.Runs, history.Change{Run: r.Run, Texts: r.Texts})
			}
			if w.IntN(3) == 0 {
				note := history.Note{Namespace: r.Namespace, ID: r.ID, Scores: w.scores()}
				r.Scores = note.Scores
				if w.IntN(2) == 0 {
					note.Labels = w.labels()
					r.Labels = note.Labels
				}
				if w.IntN(2) == 0 {
					apply(history.Batch{Notes: []history.Note{note}})
				} else {
					b.Notes = append(b.Notes, note)
				}
			}
			if w.IntN(10) == 0 {
				b.Runs = append(b.Runs, history.Change{Run: history.Run{Namespace: r.Namespace, ID: r.ID}, Gone: true})
				continue
			}
			w.runs = append(w.runs, r)
		}
		apply(b)
	}
	return w
}

func (w *world) labels() map[string]string {
	all := map[string]string{}
	for _, key := range w.some([]string{"k", "team", "k.x"}) {
		all[key] = pick(w.Rand, names)
	}
	return all
}

func (w *world) scores() (all []history.Score) {
	for _, name := range w.some([]string{"good", "s"}) {
		s := history.Score{Name: name, Text: pick(w.Rand, names)}
		if w.IntN(2) == 0 {
			n := float64(w.IntN(5))
			s.Text, s.Number = fmt.Sprint(n), &n
		}
		all = append(all, s)
	}
	return all
}

func (w *world) run() historytest.Run {
	began := w.now().Add(-time.Duration(w.IntN(3*3600)) * time.Second)
	r := history.Run{
		Namespace: pick(w.Rand, []string{"a", "a", "a", "b"}), ID: fmt.Sprintf("%04d", w.IntN(10000)), State: pick(w.Rand, []events.State{events.Done, events.Errored, events.Planning}),
		N: uint64(w.IntN(9)), Agent: pick(w.Rand, names), By: pick(w.Rand, names), Parent: pick(w.Rand, names), ForkOf: pick(w.Rand, names), Waiting: pick(w.Rand, names), Error: pick(w.Rand, names),
		Models: w.some(names), Tools: w.some(names), Started: began, Tokens: w.IntN(4), Steps: w.IntN(4), Labels: w.labels(),
	}
	if slices.ContainsFunc(w.runs, func(o historytest.Run) bool { return o.ID == r.ID }) {
		return w.run()
	}
	if w.IntN(5) == 0 {
		r.Experiment = pick(w.Rand, names)
	}
	if w.IntN(3) > 0 {
		r.Priced, r.CostUSD = true, float64(w.IntN(4))/4
	}
	if r.State != events.Planning {
		r.Ended = began.Add(time.Duration(w.IntN(200000)) * time.Millisecond)
	}
	if w.IntN(2) == 0 {
		r.Started = began.Truncate(time.Hour) // some start at the same time
		if !r.Ended.IsZero() {
			r.Ended = r.Started.Add(time.Duration(w.IntN(3)) * time.Second)
		}
	}
	all := historytest.Run{Run: r, Labels: r.Labels}
	for n := range w.IntN(5) {
		text := history.Text{
			N: uint64(n + 1), Kind: pick(w.Rand, []history.Kind{history.Message, history.Call, history.Result, history.Answer, history.Error, history.CallError, history.Reasoning}), Text: w.text(), At: w.now(),
		}
		if text.Kind == history.Error || text.Kind == history.CallError {
			text.Code = pick(w.Rand, names)
		}
		all.Texts = append(all.Texts, text)
	}
	if w.IntN(4) > 0 {
		all.Task = w.text()
		all.Texts = append(all.Texts, history.Text{N: 1, Kind: history.Task, Text: all.Task, At: w.now()})
	}
	return all
}

// query returns a query of up to three terms.
func (w *world) query() (q query.Query) {
	for range w.IntN(4) {
		q.Terms = append(q.Terms, w.term())
	}
	return q
}

func (w *world) term() query.Term {
	t := query.Term{Not: w.IntN(4) == 0, Op: query.Is}
	switch w.IntN(3) {
	case 0:
		t.Field = pick(w.Rand, []query.Field{query.AnyText, query.AnyText, query.Task, query.Answer, query.Error, query.CallError})
		for len(t.Values) == 0 || w.IntN(3) == 0 {
			v := query.Value{Text: w.text(), Prefix: w.IntN(3) == 0}
			if w.IntN(2) == 0 {
				v.Text = pick(w.Rand, append(names, bases...))
			}
			for word := range words.Of(v.Text) {
				v.Words = append(v.Words, word)
			}
			if len(v.Words) > 0 {
				v.Words = v.Words[:1+w.IntN(min(2, len(v.Words)))]
				last := []rune(v.Words[len(v.Words)-1])
				if v.Prefix {
					v.Words[len(v.Words)-1] = string(last[:1+w.IntN(len(last))])
				}
				t.Values = append(t.Values, v)
			}
		}
	case 1:
		t.Field = pick(w.Rand, []query.Field{
			query.State, query.Agent, query.Model, query.Tool, query.Label, query.Label, query.Score, query.By, query.Parent, query.ForkOf, query.Experiment, query.Waiting, query.ID,
		})
		for len(t.Values) == 0 || w.IntN(3) == 0 {
			t.Values = append(t.Values, query.Value{Text: pick(w.Rand, append(names, "done", "error", "0", "1")), Prefix: w.IntN(3) == 0})
		}
	default:
		t.Field = pick(w.Rand, []query.Field{query.Started, query.Ended, query.Duration, query.Cost, query.Tokens, query.Steps, query.Events, query.Score})
		t.Op = pick(w.Rand, []query.Op{query.Above, query.Below, query.AtLeast, query.AtMost, query.Equal})
		v := query.Value{Number: float64(w.IntN(5))}
		switch t.Field {
		case query.Started, query.Ended:
			v = query.Value{Time: pick(w.Rand, w.runs).Started}
		case query.Duration:
			v = query.Value{Duration: time.Duration(w.IntN(4)) * time.Second}
		case query.Cost:
			v.Number /= 4
		}
		t.Values = []query.Value{v}
	}
	if t.Op == query.Is && w.IntN(6) == 0 && t.Field != query.AnyText {
		t.Op, t.Values = query.Any, nil
	}
	switch t.Field {
	case query.Label:
		t.Key = pick(w.Rand, []string{"k", "team", "k.x"})
	case query.Score:
		t.Key = pick(w.Rand, []string{"good", "s"})
	}
	return t
}

func (w *world) sort() query.Sort {
	if w.IntN(2) == 0 {
		return query.Sort{By: query.Started, Descending: true}
	}
	return query.Sort{By: pick(w.Rand, []query.Field{query.Started, query.Ended, query.Duration, query.Cost, query.Tokens, query.Steps}), Descending: w.IntN(2) == 0}
}

func (w *world) matching(q query.Query) (found []historytest.Run) {
	for _, r := range w.runs {
		if r.Namespace == "a" && historytest.Matches(q, r) {
			found = append(found, r)
		}
	}
	return found
}

func ids(runs []historytest.Run) []string {
	all := []string{}
	for _, r := range runs {
		all = append(all, r.ID)
	}
	return all
}

// list reads all pages.
func (w *world) list(which store.Select, sort query.Sort) []string {
	all := []string{}
	var after *store.Cursor
	for {
		limit := 1 + w.IntN(40)
		rows, next, err := w.s.List(w.t.Context(), which, sort, after, limit, w.at)
		require.NoError(w.t, err, "%+v", which)
		for _, r := range rows {
			all = append(all, r.ID)
			i := slices.IndexFunc(w.runs, func(o historytest.Run) bool { return o.ID == r.ID })
			require.Len(w.t, r.Labels, len(w.runs[i].Labels))
			require.Equal(w.t, w.runs[i].Scores, r.Scores)
		}
		if next == nil {
			return all
		}
		require.Len(w.t, rows, limit)
		text, err := json.Marshal(next)
		require.NoError(w.t, err)
		after = &store.Cursor{}
		require.NoError(w.t, json.Unmarshal(text, after))
		require.True(w.t, w.at.Equal(after.Time))
	}
}

// checkFacets compares facets with sums over the runs that match.
func (w *world) checkFacets(which store.Select, runs []historytest.Run) {
	by := pick(w.Rand, []string{"state", "agent", "model", "tool", "error", "experiment", "label.k", "hour", "day"})
	one := func(key string) []string {
		if key == "" {
			return nil
		}
		return []string{key}
	}
	keys := map[string]func(r historytest.Run) []string{
		"state": func(r historytest.Run) []string { return one(string(r.State)) }, "agent": func(r historytest.Run) []string { return one(r.Agent) },
		"model": func(r historytest.Run) []string { return r.Models }, "tool": func(r historytest.Run) []string { return r.Tools },
		"error": func(r historytest.Run) []string { return one(r.Error) }, "experiment": func(r historytest.Run) []string { return one(r.Experiment) },
		"label.k": func(r historytest.Run) []string {
			if v, is := r.Labels["k"]; is {
				return []string{v}
			}
			return nil
		},
		"hour": func(r historytest.Run) []string { return []string{r.Started.Truncate(time.Hour).Format(time.RFC3339)} },
		"day":  func(r historytest.Run) []string { return []string{r.Started.Format(time.DateOnly)} },
	}[by]
	want := map[string][]historytest.Run{}
	for _, r := range runs {
		for _, key := range keys(r) {
			if key != "" || by == "label.k" {
				want[key] = append(want[key], r)
			}
		}
	}
	got, err := w.s.Facets(w.t.Context(), which, by, 1000)
	require.NoError(w.t, err)
	require.Nil(w.t, got.Other)
	checkFacet(w.t, runs, got.Total)
	require.Len(w.t, got.Rows, len(want), "%s %+v", by, which)
	for _, row := range got.Rows {
		checkFacet(w.t, want[row.Key], row)
	}
	limited, err := w.s.Facets(w.t.Context(), which, by, 1)
	require.NoError(w.t, err)
	require.Equal(w.t, got.Rows[:min(1, len(got.Rows))], limited.Rows)
	if len(got.Rows) > 1 {
		var rest int64
		for _, row := range got.Rows[1:] {
			rest += row.Runs
		}
		require.Equal(w.t, rest, limited.Other.Runs)
	}
}

func checkFacet(t *testing.T, runs []historytest.Run, got store.Facet) {
	t.Helper()
	var took []time.Duration
	var cost float64
	tokens := 0
	for _, r := range runs {
		tokens, cost = tokens+r.Tokens, cost+r.CostUSD
		if !r.Ended.IsZero() {
			took = append(took, r.Ended.Sub(r.Started))
		}
	}
	slices.Sort(took)
	require.EqualValues(t, len(runs), got.Runs)
	require.EqualValues(t, tokens, got.Tokens)
	require.InDelta(t, cost, got.CostUSD, 1e-9)
	for p, d := range map[int]*time.Duration{50: got.P50, 95: got.P95} {
		require.Equal(t, len(took) > 0, d != nil)
		if d != nil {
			rank := took[int(math.Ceil(float64(p)*float64(len(took))/100))-1]
			require.InDelta(t, float64(rank), float64(*d), 0.05*float64(rank)+float64(time.Millisecond)/2)
		}
	}
}

// checkHits compares the hits with the texts of the runs that match, by each text that has all words.
func (w *world) checkHits(which store.Select, runs []historytest.Run) {
	texts := slices.DeleteFunc(slices.Clone(which.Query.Terms), func(t query.Term) bool {
		return t.Not || t.Op != query.Is || !slices.Contains([]query.Field{query.AnyText, query.Task, query.Answer, query.Error, query.CallError}, t.Field)
	})
	type hit struct {
		run  string
		kind history.Kind
		at   time.Time
	}
	want := []hit{}
	for _, r := range runs {
		for _, text := range r.Texts {
			alone := historytest.Run{Texts: []history.Text{text}}
			if len(texts) > 0 && historytest.Matches(query.Query{Terms: texts}, alone) {
				want = append(want, hit{r.ID, text.Kind, text.At})
			}
		}
	}
	slices.SortFunc(want, func(a, b hit) int { return b.at.Compare(a.at) })
	got := []hit{}
	var after *store.Hit
	for {
		limit := 1 + w.IntN(20)
		hits, err := w.s.Search(w.t.Context(), which, after, limit)
		require.NoError(w.t, err)
		for _, h := range hits {
			got = append(got, hit{h.Run, h.Kind, h.At})
		}
		if len(hits) < limit {
			break
		}
		after = &hits[limit-1]
	}
	require.Equal(w.t, want, got, "%+v", which)
}
