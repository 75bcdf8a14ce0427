// Package query reads the queries by which runs are found, such as
//
//	state:error agent:billing,refunds started>24h -label.env:test "card refused" charge*
//
// Terms are divided by blanks, and a run must match all of them. Package historytest says which
// runs match a term, slowly. A store has to say the same.
package query

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The most that a query may have.
const (
	MaxBytes = 4 << 10
	MaxTerms = 64
)

// Field is what of a run a term is about.
type Field string

// The fields of terms. Label and Score have a key, the others none. AnyText is any text of the run.
const (
	AnyText    Field = ""
	State      Field = "state"
	Agent      Field = "agent"
	Model      Field = "model"
	Tool       Field = "tool"
	Error      Field = "error"
	CallError  Field = "call_error"
	Task       Field = "task"
	Answer     Field = "answer"
	Label      Field = "label"
	Score      Field = "score"
	By         Field = "by"
	Parent     Field = "parent"
	ForkOf     Field = "fork_of"
	Experiment Field = "experiment"
	Waiting    Field = "waiting"
	ID         Field = "id"
	Started    Field = "started"
	Ended      Field = "ended"
	Duration   Field = "duration"
	Cost       Field = "cost"
	Tokens     Field = "tokens"
	Steps      Field = "steps"
	Events     Field = "events"
)

// Op is how a term compares.
type Op string

// Is holds if the run has one of the values, Any if it has any value. The others compare with one value.
const (
	Is      Op = ":"
	Any     Op = ":*"
	Above   Op = ">"
	Below   Op = "<"
	AtLeast Op = ">="
	AtMost  Op = "<="
	Equal   Op = "="
)

// kind is what the values of a field are.
type kind int

const (
	name     kind = iota // compared exactly
	text                 // compared by words
	number               // compared by size, like those that follow
	moment               // a time
	duration             // a length of time
	score                // a name or a number
)

// fields are the fields by their names in queries, in the order in which errors list them. A name that ends
// with a dot is followed by a key.
var fields = []struct {
	name  string
	field Field
	kind  kind
}{
	{"state", State, name}, {"agent", Agent, name}, {"model", Model, name}, {"tool", Tool, name}, {"error", Error, text}, {"call_error", CallError, text},
	{"task", Task, text}, {"answer", Answer, text}, {"text", AnyText, text}, {"label.", Label, name}, {"score.", Score, score}, {"by", By, name},
	{"parent", Parent, name}, {"fork_of", ForkOf, name}, {"experiment", Experiment, name}, {"waiting", Waiting, name}, {"id", ID, name},
	{"started", Started, moment}, {"ended", Ended, moment}, {"duration", Duration, duration}, {"cost", Cost, number}, {"tokens", Tokens, number},
	{"steps", Steps, number}, {"events", Events, number},
}

// Fields returns the names of all fields, with KEY and NAME for what the user chooses.
func Fields() []string {
	var all []string
	for _, f := range fields {
		all = append(all, strings.NewReplacer("label.", "label.KEY", "score.", "score.NAME").Replace(f.name))
	}
	return all
}

// Query is what is asked of runs: all Terms hold.
type Query struct{ Terms []Term }

// Asks reports whether a term is about a field.
func (q Query) Asks(f Field) bool {
	return slices.ContainsFunc(q.Terms, func(t Term) bool { return t.Field == f })
}

// Term is one condition. At is its first character in the query, from 0. With Not it must not hold. Key is
// that of a label or the name of a score. One of Values must hold; there is none if Op is Any.
type Term struct {
	At     int
	Not    bool
	Field  Field
	Key    string
	Op     Op
	Values []Value
}

// Value is what a term compares with: with Text, or, of fields that have texts, with Words, of which there is
// at least one. With Prefix the last word, or the text, may go on. Comparisons have Number, Time or
// Duration, as their field has.
type Value struct {
	Text     string
	Words    []string
	Prefix   bool
	Number   float64
	Time     time.Time
	Duration time.Duration
}

// BadError is the error of a text that is no query. At is the first character of the wrong term, from 0, in
// characters. Fields are the fields that there are.
type BadError struct {
	At      int
	Message string
	Fields  []string
}

func (e *BadError) Error() string { return fmt.Sprintf("character %d: %s", e.At, e.Message) }

// Sort is an order of runs: by a field, then by id. Runs without the value come last.
type Sort struct {
	By         Field
	Descending bool
}

// sorts are the fields that runs can be sorted by.
var sorts = []Field{Started, Ended, Duration, Cost, Tokens, Steps}

// ParseSort reads an order: a field, with "-" before it for descending. An empty text is -started.
func ParseSort(text string) (Sort, error) {
	if text == "" {
		return Sort{Started, true}, nil
	}
	by, descending := strings.CutPrefix(text, "-")
	if !slices.Contains(sorts, Field(by)) {
		return Sort{}, fmt.Errorf("%.100q is no order; use started, ended, duration, cost, tokens or steps, with - before it for descending", text)
	}
	return Sort{Field(by), descending}, nil
}

func (s Sort) String() string {
	if s.Descending {
		return "-" + string(s.By)
	}
	return string(s.By)
}
