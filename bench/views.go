package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/query"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/spf13/pflag"
)

type viewsSettings struct {
	runs, batch, times int
}

// viewsBench is what the store beside the log costs, and how soon it answers.
func viewsBench() *benchmark {
	var s viewsSettings
	return &benchmark{
		name: "views", short: "The store of runs beside the log: size, memory, start, lists, search and facets with 20,000 runs (--runs)",
		flags: func(f *pflag.FlagSet) {
			f.IntVar(&s.runs, "runs", 20_000, "ended runs of 3 texts over 90 days")
			f.IntVar(&s.batch, "batch", 256, "runs in a transaction")
			f.IntVar(&s.times, "times", 20, "how often each query is asked, with other values each time")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if min(s.runs, s.batch, s.times) < 1 {
				return nil, cli.Usage("--runs, --batch and --times are at least 1")
			}
			return views(ctx, s)
		},
	}
}

// storedRuns is the store that is measured.
type storedRuns struct {
	viewsSettings
	*rand.Rand
	s       *store.Store
	zipf    *rand.Zipf
	began   time.Time
	figures []figure
}

func (v *storedRuns) add(what, unit string, value float64) {
	v.figures = append(v.figures, figure{Bench: "views", Case: fmt.Sprintf("%d runs", v.runs), What: what, Unit: unit, Value: value})
}

func views(ctx context.Context, s viewsSettings) ([]figure, error) {
	dir, err := os.MkdirTemp("", "moorebus-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := rand.New(rand.NewPCG(1, 1))
	v := &storedRuns{viewsSettings: s, Rand: r, zipf: rand.NewZipf(r, 1.1, 10, 50_000), began: time.Now().Add(-90 * 24 * time.Hour).Truncate(time.Microsecond)}
	file := filepath.Join(dir, "views.db")
	if v.s, err = store.Open(ctx, file, slog.Default()); err != nil {
		return nil, err
	}
	if err := v.fill(ctx); err != nil {
		return nil, err
	}
	if err := v.s.Close(); err != nil {
		return nil, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	v.add("file", "MB", float64(info.Size())/1e6)
	began := time.Now()
	if v.s, err = store.Open(ctx, file, slog.Default()); err != nil {
		return nil, err
	}
	defer func() { _ = v.s.Close() }()
	if _, _, err := v.s.List(ctx, store.Select{Namespace: "default"}, query.Sort{By: query.Started, Descending: true}, nil, 50, began); err != nil {
		return nil, err
	}
	v.add("open to first list", "ms", ms(time.Since(began)))
	for _, q := range viewQueries {
		if err := v.ask(ctx, q); err != nil {
			return nil, err
		}
	}
	return v.figures, v.memory("after the queries")
}

func (v *storedRuns) memory(when string) error {
	now, _, err := residentSet(os.Getpid())
	v.add("memory "+when, "MB", now/1e6)
	return err
}

// fill stores the runs.
func (v *storedRuns) fill(ctx context.Context) error {
	var took, cpu time.Duration
	for at := 0; at < v.runs; at += v.batch {
		b := history.Batch{Stream: "s", From: uint64(at), To: uint64(at + v.batch)}
		for i := at; i < min(at+v.batch, v.runs); i++ {
			b.Runs = append(b.Runs, v.run(i))
		}
		before, err := cpuTime(os.Getpid())
		if err != nil {
			return err
		}
		began := time.Now()
		if err := v.s.Apply(ctx, b); err != nil {
			return err
		}
		took += time.Since(began)
		after, err := cpuTime(os.Getpid())
		if err != nil {
			return err
		}
		cpu += after - before
	}
	v.add("stored", "runs/s", float64(v.runs)/took.Seconds())
	v.add("processor for a run", "µs", float64(cpu.Microseconds())/float64(v.runs))
	return v.memory("after the last run")
}

func (v *storedRuns) run(i int) history.Change {
	at := v.began.Add(time.Duration(float64(i) / float64(v.runs) * float64(90*24*time.Hour))).Truncate(time.Microsecond)
	took := time.Duration(v.ExpFloat64() * float64(20*time.Second))
	r := history.Run{
		Namespace: "default", ID: fmt.Sprintf("0199a7c2-%04x-7%03x-8000-%012x", i%65536, i%4096, i), Shard: i % 4, State: events.Done, N: 32, Head: fmt.Sprintf("%016x%016x%016x%016x", v.Uint64(), v.Uint64(), v.Uint64(), v.Uint64()), Agent: "agent-" + strconv.Itoa(int(v.zipf.Uint64())%40),
		Started: at, Updated: at.Add(took), Ended: at.Add(took), Model: "openai/gpt-5", Models: []string{"openai/gpt-5"}, Tools: []string{"search", "charge_card"}[:1+i%2],
		Steps: 3, CostUSD: v.Float64(), Priced: true, Input: 1000, Output: 200, Tokens: v.IntN(5000), Labels: map[string]string{"team": "team-" + strconv.Itoa(v.IntN(20))}, By: "user-" + strconv.Itoa(v.IntN(100)),
	}
	c := history.Change{}
	for n, kind := range []history.Kind{history.Task, history.Call, history.Answer} {
		c.Texts = append(c.Texts, history.Text{N: uint64(n + 1), Kind: kind, Text: v.text(300), At: at.Add(took * time.Duration(n) / 2)})
	}
	r.Task = c.Texts[0].Text
	if i%20 == 0 {
		r.State, r.Error = events.Errored, "stalled"
	}
	c.Run = r
	return c
}

// text is of words as frequent as those of a language.
func (v *storedRuns) text(length int) string {
	var b strings.Builder
	for b.Len() < length {
		b.WriteString(v.word() + " ")
	}
	return b.String()
}

func (v *storedRuns) word() string { return "w" + strconv.FormatUint(v.zipf.Uint64(), 36) + "ord" }

// viewQuery is a query that is measured. It asks for facets if by is not empty, for hits if search.
type viewQuery struct {
	what   string
	text   func(v *storedRuns) string
	by     string
	search bool
	pages  int
	goal   float64 // milliseconds
}

func (v *storedRuns) agent() string { return "agent-" + strconv.Itoa(v.IntN(40)) }

var viewQueries = []viewQuery{
	{what: "newest 50", text: func(*storedRuns) string { return "" }, goal: 20},
	{what: "by state", text: func(*storedRuns) string { return "state:error" }, goal: 20},
	{what: "by label", text: func(v *storedRuns) string { return "label.team:team-" + strconv.Itoa(v.IntN(20)) }, goal: 20},
	{what: "by agent and day", text: func(v *storedRuns) string {
		day := v.began.AddDate(0, 0, 1+v.IntN(88))
		return "agent:" + v.agent() + " started>=" + day.Format(time.DateOnly) + " started<" + day.AddDate(0, 0, 1).Format(time.DateOnly)
	}, goal: 20},
	{what: "tenth page", text: func(*storedRuns) string { return "" }, pages: 10, goal: 20},
	{what: "one word", text: (*storedRuns).word, goal: 50},
	{what: "two words, agent, 30 days", text: func(v *storedRuns) string {
		return `"` + v.word() + " " + v.word() + `" agent:` + v.agent() + " started>720h"
	}, goal: 100},
	{what: "two words in any texts", text: func(v *storedRuns) string { return v.word() + " " + v.word() }, goal: 600},
	{what: "without a word", text: func(v *storedRuns) string { return "-" + v.word() }},
	{what: "hits of a word", text: (*storedRuns).word, search: true},
	{what: "facets by agent, 30 days", text: func(*storedRuns) string { return "started>720h" }, by: "agent", goal: 500},
	{what: "facets by agent, all", text: func(*storedRuns) string { return "" }, by: "agent", goal: 1500},
	{what: "facets by model, all", text: func(*storedRuns) string { return "" }, by: "model"},
}

// ask measures a query: its 95th percentile.
func (v *storedRuns) ask(ctx context.Context, q viewQuery) error {
	var all []time.Duration
	for range v.times {
		parsed, err := query.Parse(q.text(v), time.Now())
		if err != nil {
			return err
		}
		which := store.Select{Namespace: "default", Query: parsed}
		began := time.Now()
		var after *store.Cursor
		switch {
		case q.by != "":
			_, err = v.s.Facets(ctx, which, q.by, 100)
		case q.search:
			_, err = v.s.Search(ctx, which, nil, 50)
		default:
			for range max(1, q.pages) {
				began = time.Now()
				if _, after, err = v.s.List(ctx, which, query.Sort{By: query.Started, Descending: true}, after, 50, began); err != nil || after == nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	f := figure{Bench: "views", Case: fmt.Sprintf("%d runs", v.runs), What: q.what + ", p95", Unit: "ms", Value: ms(all[len(all)*95/100])}
	if q.goal > 0 {
		f.Target, f.Met = fmt.Sprintf("at most %.0f ms with 1,000,000 runs", q.goal), f.Value <= q.goal
	}
	v.figures = append(v.figures, f)
	return nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
