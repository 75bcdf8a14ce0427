package list

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	feature "github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/pkg/events"
)

// filter is a filter of the core. matches returns which runs match a value, which was checked by the filter's kind.
type filter struct {
	feature.Filter
	matches func(value string, l *look) func(*row) bool
}

// filters is the table of the core's filters, in the order of the parameters. From a row follow the parameter, the
// flag and the console's field.
var filters = []filter{
	{feature.Filter{
		Name: "state", Doc: "Only runs in this state. With a terminal state the order is that of their ends, else of their starts.",
		Usage: "only runs in this 'state'", Label: "State", Kind: feature.State,
	}, each(func(r *row, state string) bool { return string(r.info.State) == state })},
	{feature.Filter{
		Name: "agent", Doc: "Only runs of this agent.", Usage: "only runs of this 'agent'", Label: "Agent", Kind: feature.Agent,
	}, each(func(r *row, agent string) bool { return r.info.Agent == agent })},
	{feature.Filter{
		Name: "q", Doc: "Only runs with this text in their id, agent, task, or answer or error. Case does not matter.",
		Usage: "only runs with this 'text' in their id, agent, task, answer or error", Flag: "text", Short: "q", Label: "Text", Kind: feature.Search,
	}, func(text string, _ *look) func(*row) bool {
		text = strings.ToLower(text)
		return func(r *row) bool {
			return strings.Contains(r.task, text) || strings.Contains(r.answer, text) || strings.Contains(r.info.Agent, text) || strings.Contains(r.info.RunID, text)
		}
	}},
	{feature.Filter{
		Name: "id_prefix", Doc: "Only runs whose id begins with this.",
	}, each(func(r *row, prefix string) bool { return strings.HasPrefix(r.info.RunID, prefix) })},
	{feature.Filter{
		Name: "since", Doc: "Only runs started at or after this time (RFC 3339).",
		Usage: "only runs started since this 'time', such as 2026-01-02T15:04:05Z or 24h (ago)", Label: "Started from", Kind: feature.Time,
	}, func(text string, _ *look) func(*row) bool {
		since := moment(text)
		return func(r *row) bool { return !r.info.Started.Before(since) }
	}},
	{feature.Filter{
		Name: "until", Doc: "Only runs started before this time (RFC 3339).", Usage: "only runs started before this 'time'", Label: "Started before", Kind: feature.Time,
	}, func(text string, _ *look) func(*row) bool {
		until := moment(text)
		return func(r *row) bool { return r.info.Started.Before(until) }
	}},
	{feature.Filter{
		Name: "parent", Doc: "Only runs that answer calls of this run.", Usage: "only runs that answer calls of this 'run'", Kind: feature.Run,
	}, each(func(r *row, parent string) bool { return r.info.Parent == parent })},
	{feature.Filter{
		Name: "waiting", Doc: "Only runs that wait for human, user, client, actor (of a pool without actors) or any of them.",
		Usage: "only runs that wait for 'whom': human, user, client, actor or any", Label: "Waits for", Kind: feature.Chosen,
		Choices: [][2]string{{"human", "a decision or answer"}, {"user", "a message"}, {"client", "its client"}, {"actor", "an actor"}, {"any", "anyone"}},
	}, func(whom string, l *look) func(*row) bool {
		return func(r *row) bool {
			waiting := r.shown(l.unserved).Waiting
			return string(waiting) == whom || waiting != "" && whom == "any"
		}
	}},
	{feature.Filter{
		Name: "paused", Doc: "Only runs that are paused: any, or restored for those that a restore paused.",
		Usage: "only 'paused' runs: any, or restored for those that a restore paused", Kind: feature.Chosen, Choices: [][2]string{{"any"}, {"restored"}},
	}, each(func(r *row, which string) bool { return r.info.Paused && (which == "any" || r.restored) })},
	{feature.Filter{
		Name: "cost_above", Doc: "Only runs whose own events cost more than this number of US dollars.",
		Usage: "only runs that cost more than this number of US 'dollars'", Label: "Cost above, $", Kind: feature.Dollars,
	}, func(text string, _ *look) func(*row) bool {
		dollars, _ := strconv.ParseFloat(text, 64) // it was checked
		return func(r *row) bool { return r.info.CostUSD > dollars }
	}},
}

// each is of filters that compare their value with that of each run.
func each(matches func(r *row, value string) bool) func(string, *look) func(*row) bool {
	return func(value string, _ *look) func(*row) bool { return func(r *row) bool { return matches(r, value) } }
}

// AllFilters returns the filters that there are: those of the core, then those of features.
func AllFilters() []feature.Filter {
	all := make([]feature.Filter, len(filters))
	for i, f := range filters {
		all[i] = f.Filter
	}
	return append(all, rows.Filters()...)
}

// Filters are values of filters by the filters' names. A listed run matches all of them. An empty value is none.
type Filters map[string]string

// Parameters yields the names and descriptions of all filters.
func (Filters) Parameters() iter.Seq2[string, string] {
	return func(yield func(name, doc string) bool) {
		for _, f := range AllFilters() {
			if !yield(f.Name, f.Doc) {
				return
			}
		}
	}
}

// Test returns which runs of a namespace match a value of a feature's filter.
type Test func(ctx context.Context, ns, value string) (func(run string) bool, error)

// Filter says what a filter of a feature's row matches. It is called before the first list.
func (l *Lister) Filter(name string, test Test) { l.tests[name] = test }

// look is one look at the list: what is asked of runs, and what is known of pools then.
type look struct {
	state    events.State
	ended    bool // the order is that of their ends
	since    time.Time
	unserved func() map[string]time.Time
	all      []func(*row) bool
}

// take adds what the values ask for.
func (k *look) take(ctx context.Context, l *Lister, ns string, values Filters) error {
	for name := range values {
		if !slices.ContainsFunc(l.known, func(f feature.Filter) bool { return f.Name == name }) {
			return badParameter("%.100q is no filter", name)
		}
	}
	for i, f := range l.known {
		value := values[f.Name]
		if value == "" {
			continue
		}
		if err := l.check(f, value); err != nil {
			return err
		}
		if i < len(filters) {
			k.all = append(k.all, filters[i].matches(value, k))
			continue
		}
		test := l.tests[f.Name]
		if test == nil {
			return badParameter("%s: nothing here knows it", f.Name)
		}
		matches, err := test(ctx, ns, value)
		if err != nil {
			return err
		}
		k.all = append(k.all, func(r *row) bool { return matches(r.info.RunID) })
	}
	k.state, k.since = events.State(values["state"]), moment(values["since"])
	k.ended = l.a.Table.Terminal(k.state)
	return nil
}

// check checks a value by the filter's kind.
func (l *Lister) check(f feature.Filter, value string) error {
	switch f.Kind {
	case feature.State:
		if !slices.Contains(l.a.Table.States(), events.State(value)) {
			return badParameter("%s: %q is not a state", f.Name, value)
		}
	case feature.Run:
		if events.CheckID(value) != nil {
			return badParameter("%s: %q is not the id of a run", f.Name, value)
		}
	case feature.Time:
		if _, err := time.Parse(time.RFC3339Nano, value); err != nil {
			return badParameter("%s: %.100q is not a time such as 2026-01-02T15:04:05Z", f.Name, value)
		}
	case feature.Dollars:
		if n, err := strconv.ParseFloat(value, 64); err != nil {
			return badParameter("%s: %.100q is not a number of US dollars", f.Name, value)
		} else if !(n >= 0) { // also not for NaN
			return badParameter("%s: must be a number of US dollars from 0", f.Name)
		}
	case feature.Chosen:
		if values := f.Values(); !slices.Contains(values, value) {
			use := strings.Join(values, ", ")
			if last := strings.LastIndex(use, ", "); last >= 0 {
				use = use[:last] + " or" + use[last+1:]
			}
			return badParameter("%s: %q is not known; use %s", f.Name, value, use)
		}
	}
	return nil
}

// moment is a time (RFC 3339); zero for another text.
func moment(text string) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, text)
	return at
}

// matches reports whether a run is one of those that are asked for.
func (k *look) matches(r *row) bool {
	return !slices.ContainsFunc(k.all, func(match func(*row) bool) bool { return !match(r) })
}

// plain reports whether nothing but a state is asked for.
func (k *look) plain() bool { return len(k.all) == 0 || len(k.all) == 1 && k.state != "" }
