package store

import (
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/query"
)

// Select chooses runs: those of a namespace for which a query holds. Unserved are the pools without actors: a
// run that is not paused and waits for nobody else waits for an actor if it has a call in one of them.
type Select struct {
	Namespace string
	Query     query.Query
	Unserved  []string
}

// where is a condition in SQL with its parameters. What comes from a query is always a parameter.
type where struct {
	all  []string
	args []any
}

func (w *where) add(condition string, args ...any) {
	w.all, w.args = append(w.all, condition), append(w.args, args...)
}

func (w *where) String() string { return " WHERE " + strings.Join(w.all, " AND ") }

// where returns the condition of runs r, but for the terms that are left out.
func (s Select) where(out ...int) *where {
	w := &where{}
	w.add("r.ns = ?", s.Namespace)
	if !s.Query.Asks(query.Experiment) {
		w.add("r.experiment = ''")
	}
	for i, t := range s.Query.Terms {
		if slices.Contains(out, i) {
			continue
		}
		condition, args := s.term(t)
		if t.Not {
			condition = "(" + condition + ") IS NOT TRUE"
		}
		w.add("("+condition+")", args...)
	}
	return w
}

// ops are the comparisons of queries in SQL.
var ops = map[query.Op]string{query.Above: ">", query.Below: "<", query.AtLeast: ">=", query.AtMost: "<=", query.Equal: "="}

// named are the columns of the fields that are compared exactly, sized those of the fields that are compared by
// size, marked the fields of marks.
var (
	named = map[query.Field]string{
		query.State: "r.state", query.Agent: "r.agent", query.By: "r.starter", query.Parent: "r.parent", query.ForkOf: "r.fork_of",
		query.Experiment: "r.experiment", query.Waiting: "r.waiting", query.ID: "r.id",
	}
	sized = map[query.Field]string{
		query.Started: "r.started", query.Ended: "r.ended", query.Duration: "r.duration", query.Cost: "r.cost", query.Tokens: "r.tokens",
		query.Steps: "r.steps", query.Events: "r.n",
	}
	marked = map[query.Field]string{query.Model: markModel, query.Tool: markTool, query.Label: markLabel, query.Score: markScore}
)

// term returns the condition of a term, its negation aside.
func (s Select) term(t query.Term) (string, []any) {
	if column, is := named[t.Field]; is {
		condition, args := match(column, t, false)
		if t.Field == query.Waiting && len(s.Unserved) > 0 && (t.Op == query.Any || slices.ContainsFunc(t.Values, isActor)) {
			pools, more := match("m.value", query.Term{Op: query.Is, Values: texts(s.Unserved)}, false)
			condition += " OR r.waiting = '' AND r.paused = 0 AND r.rid IN (SELECT m.rid FROM marks m WHERE m.ns = ? AND m.field = '" + markPool + "' AND " + pools + ")"
			args = append(append(args, s.Namespace), more...)
		}
		return condition, args
	}
	if field, is := marked[t.Field]; is {
		return s.marks(field+t.Key, t)
	}
	if column, is := sized[t.Field]; is {
		return column + " " + ops[t.Op] + " ?", []any{size(t)}
	}
	if t.Op == query.Any {
		condition, args := ofKind("t.id", t.Field)
		return "EXISTS (SELECT 1 FROM texts t WHERE t.id >= r.rid << " + bits + " AND t.id < (r.rid + 1) << " + bits + condition + ")", args
	}
	condition, args := ofKind("rowid", t.Field)
	return "r.rid IN (SELECT rowid >> " + bits + " FROM words WHERE words MATCH ?" + condition + ")", append([]any{expression(t)}, args...)
}

func isActor(v query.Value) bool {
	return v.Text == waitingActor || v.Prefix && strings.HasPrefix(waitingActor, v.Text)
}

// waitingActor is the value of waiting for runs that wait for an actor of a pool that has none.
const waitingActor = "actor"

func texts(all []string) []query.Value {
	v := make([]query.Value, len(all))
	for i, text := range all {
		v[i].Text = text
	}
	return v
}

// marks returns the condition of a term about marks.
func (s Select) marks(field string, t query.Term) (string, []any) {
	if t.Op == query.Is && len(t.Values) == 1 && !t.Values[0].Prefix { // the entire key is known
		return "EXISTS (SELECT 1 FROM marks m WHERE m.ns = r.ns AND m.field = ? AND m.value = ? AND m.started = r.started AND m.rid = r.rid)", []any{field, t.Values[0].Text}
	}
	condition, args := "m.number "+ops[t.Op]+" ?", []any(nil)
	if t.Op == query.Is || t.Op == query.Any {
		condition, args = match("m.value", t, true)
	} else {
		args = append(args, t.Values[0].Number)
	}
	return "r.rid IN (SELECT m.rid FROM marks m WHERE m.ns = ? AND m.field = ? AND (" + condition + "))", append([]any{s.Namespace, field}, args...)
}

// match returns the condition that a column has one of the values of a term. empty says that an empty text is
// a value, too.
func match(column string, t query.Term, empty bool) (string, []any) {
	some := column + " <> ''"
	if empty {
		some = "TRUE"
	}
	if t.Op == query.Any {
		return some, nil
	}
	var alternatives []string
	var args []any
	exact := 0
	for _, v := range t.Values {
		if !v.Prefix && (v.Text != "" || empty) {
			exact++
			args = append(args, v.Text)
		}
	}
	if exact > 0 {
		alternatives = append(alternatives, column+" IN (?"+strings.Repeat(", ?", exact-1)+")")
	}
	for _, v := range t.Values {
		switch {
		case v.Prefix && v.Text == "":
			alternatives = append(alternatives, some)
		case v.Prefix:
			alternatives, args = append(alternatives, column+" >= ? AND "+column+" < ?"), append(args, v.Text, after(v.Text))
		}
	}
	return either(alternatives), args
}

// either joins conditions by OR. They are nested, since SQLite limits the depth of an expression.
func either(all []string) string {
	switch half := len(all) / 2; len(all) {
	case 0:
		return "FALSE"
	case 1:
		return all[0]
	default:
		return "((" + either(all[:half]) + ") OR (" + either(all[half:]) + "))"
	}
}

// after returns the first text after all that begin with a prefix. No text in UTF-8 ends with the last byte.
func after(prefix string) string {
	return prefix[:len(prefix)-1] + string([]byte{prefix[len(prefix)-1] + 1})
}

// size returns what a term compares with.
func size(t query.Term) any {
	switch v := t.Values[0]; t.Field {
	case query.Started, query.Ended:
		return nano(v.Time)
	case query.Duration:
		return int64(v.Duration)
	default:
		return v.Number
	}
}

// bits is how far a text's id is from the rid of its run.
const bits = "19" // textBits

// ofKind returns the condition that a text's id is of the kind that a field is about.
func ofKind(id string, f query.Field) (string, []any) {
	if f == query.AnyText {
		return "", nil
	}
	return " AND " + id + " & 7 = ?", []any{slices.Index(kinds, history.Kind(f))}
}

// expression returns what FTS5 is asked for: the words of one of the values in one text, or its code.
func expression(terms ...query.Term) string {
	var all []string
	for _, t := range terms {
		var one []string
		for _, v := range t.Values {
			words := make([]string, len(v.Words))
			for i, word := range v.Words {
				words[i] = quoted(word)
			}
			if v.Prefix {
				words[len(words)-1] += "*"
			}
			one = append(one, strings.Join(words, " AND "))
			if (t.Field == query.Error || t.Field == query.CallError) && !v.Prefix && v.Text != "" {
				one = append(one, quoted(codeWord(v.Text)))
			}
		}
		all = append(all, "("+strings.Join(one, ") OR (")+")")
	}
	return "(" + strings.Join(all, ") AND (") + ")"
}

// quoted returns a word as FTS5 has it in a query.
func quoted(word string) string { return `"` + strings.ReplaceAll(word, `"`, `""`) + `"` }

// isText reports whether a term asks for words of texts.
func isText(t query.Term) bool {
	return t.Op == query.Is && slices.Contains([]query.Field{query.AnyText, query.Task, query.Answer, query.Error, query.CallError}, t.Field)
}
