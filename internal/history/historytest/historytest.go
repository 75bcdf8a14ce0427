// Package historytest says which runs a query finds, by the rules for queries and in their order, simply and
// slowly. Stores are compared with it.
package historytest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/query"
	"github.com/moorebus/moorebus/internal/history/words"
)

// Run is a run with all that queries ask for. Labels are those that are shown.
type Run struct {
	history.Run
	Texts  []history.Text
	Labels map[string]string
	Scores []history.Score
}

// Matches reports whether all terms of a query hold for a run. Forks of experiments match only if the query
// asks for experiments.
func Matches(q query.Query, r Run) bool {
	if r.Experiment != "" && !q.Asks(query.Experiment) {
		return false
	}
	return !slices.ContainsFunc(q.Terms, func(t query.Term) bool { return holds(t, r) == t.Not })
}

// Compare compares two runs in an order: by the value, then by id in the same direction. Runs without the value
// come last.
func Compare(s query.Sort, a, b Run) int {
	x, y := a.size(s.By), b.size(s.By)
	if len(x) != len(y) {
		return len(y) - len(x)
	}
	c := cmp.Or(slices.CompareFunc(x, y, compare), cmp.Compare(a.ID, b.ID))
	if s.Descending {
		c = -c
	}
	return c
}

// compare compares two times, or two numbers.
func compare(a, b query.Value) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Duration, b.Duration), cmp.Compare(a.Number, b.Number))
}

// holds reports whether a term holds, its negation aside.
func holds(t query.Term, r Run) bool {
	switch t.Op {
	case query.Any:
		if texts, ok := r.texts(t.Field); ok {
			return len(texts) > 0
		}
		return len(r.names(t)) > 0
	case query.Is:
		return slices.ContainsFunc(t.Values, func(v query.Value) bool { return is(t, v, r) })
	}
	return slices.ContainsFunc(r.order(t), func(c int) bool {
		switch t.Op {
		case query.Above:
			return c > 0
		case query.Below:
			return c < 0
		case query.AtLeast:
			return c >= 0
		case query.AtMost:
			return c <= 0
		}
		return c == 0
	})
}

// is reports whether a run has a value.
func is(t query.Term, v query.Value, r Run) bool {
	texts, ok := r.texts(t.Field)
	if !ok {
		return slices.ContainsFunc(r.names(t), func(name string) bool {
			return name == v.Text || v.Prefix && strings.HasPrefix(name, v.Text)
		})
	}
	return slices.ContainsFunc(texts, func(text history.Text) bool {
		code := t.Field == query.Error || t.Field == query.CallError
		return code && !v.Prefix && text.Code == v.Text || hasWords(text.Text, v)
	})
}

// hasWords reports whether one text has all words of a value.
func hasWords(text string, v query.Value) bool {
	all := slices.Collect(words.Of(text))
	for i, want := range v.Words {
		prefix := v.Prefix && i == len(v.Words)-1
		if !slices.ContainsFunc(all, func(w string) bool { return w == want || prefix && strings.HasPrefix(w, want) }) {
			return false
		}
	}
	return true
}

// texts returns the texts that a field is about, and whether it is about texts.
func (r Run) texts(f query.Field) (texts []history.Text, ok bool) {
	var kind history.Kind
	switch f {
	case query.AnyText:
	case query.Task, query.Answer, query.Error, query.CallError:
		kind = history.Kind(f)
	default:
		return nil, false
	}
	texts = r.Texts
	if r.Task != "" { // a fork has its parent's task, which none of its own events has
		texts = append(slices.Clip(texts), history.Text{Kind: history.Task, Text: r.Task})
	}
	return slices.DeleteFunc(slices.Clone(texts), func(t history.Text) bool { return kind != "" && t.Kind != kind }), true
}

// names returns what a run has of a field that is compared exactly.
func (r Run) names(t query.Term) []string {
	var all []string
	switch t.Field {
	case query.Model:
		all = r.Models
	case query.Tool:
		all = r.Tools
	case query.Label:
		if value, ok := r.Labels[t.Key]; ok {
			return []string{value} // also an empty one
		}
	case query.Score:
		for _, s := range r.Scores {
			if s.Name == t.Key {
				all = append(all, s.Text)
			}
		}
		return all
	default:
		all = []string{map[query.Field]string{
			query.State: string(r.State), query.Agent: r.Agent, query.By: r.By, query.Parent: r.Parent, query.ForkOf: r.ForkOf,
			query.Experiment: r.Experiment, query.Waiting: r.Waiting, query.ID: r.ID,
		}[t.Field]}
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "" })
}

// order returns how what the run has compares with the value of a term: nothing if it has none, and of
// scores one for each.
func (r Run) order(t query.Term) (all []int) {
	sizes := r.size(t.Field)
	if t.Field == query.Score {
		for _, s := range r.Scores {
			if s.Name == t.Key && s.Number != nil {
				sizes = append(sizes, query.Value{Number: *s.Number})
			}
		}
	}
	for _, size := range sizes {
		all = append(all, compare(size, t.Values[0]))
	}
	return all
}

// size returns the value by which runs are compared and sorted, if the run has it.
func (r Run) size(f query.Field) (one []query.Value) {
	ended := !r.Ended.IsZero()
	switch {
	case f == query.Started:
		return []query.Value{{Time: r.Started}}
	case f == query.Ended && ended:
		return []query.Value{{Time: r.Ended}}
	case f == query.Duration && ended:
		return []query.Value{{Duration: r.Ended.Sub(r.Started)}}
	case f == query.Cost && r.Priced:
		return []query.Value{{Number: r.CostUSD}}
	case f == query.Tokens:
		return []query.Value{{Number: float64(r.Tokens)}}
	case f == query.Steps:
		return []query.Value{{Number: float64(r.Steps)}}
	case f == query.Events:
		return []query.Value{{Number: float64(r.N)}}
	}
	return nil
}
