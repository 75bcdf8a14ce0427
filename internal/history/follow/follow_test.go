package follow_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/follow/followtest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// T is what tests and random tests have in common.
type T interface {
	require.TestingT
	Helper()
	Context() context.Context
}

func follower(log journal.Log, store follow.Store, tweak func(*follow.Options)) *follow.Follower {
	o := follow.Options{Log: log, Machine: reducer.NewMachine(reducer.MachineOptions{}), Store: store}
	for shard := range log.Shards() {
		o.Streams = append(o.Streams, fmt.Sprintf("MOORE_%d of this test", shard))
	}
	if tweak != nil {
		tweak(&o)
	}
	return follow.New(o)
}

// built returns what a new store has of a log.
func built(t T, log journal.Log) followtest.Content {
	t.Helper()
	store := followtest.New()
	require.NoError(t, follower(log, store, nil).CatchUp(t.Context()))
	return store.Content()
}

// lister returns the index of runs that the history replaces. now is its time.
func lister(t T, log journal.Log, now time.Time) *list.Lister {
	t.Helper()
	store := runlog.New(runlog.Options{Log: log, Clock: func() time.Time { return now }})
	other := simtest.New(simtest.Options{})
	launcher, err := runstart.New(runstart.Config{Store: store, Source: "test", KV: other, Timers: other, FirstCheck: time.Hour})
	require.NoError(t, err)
	return list.New(&runs.Editor{Store: store, Log: log, Table: store.Machine().Table(), Launcher: launcher, Source: "test", Namespace: events.DefaultNamespace}, nil)
}

// shown returns a row as a list shows it.
func shown(r history.Run) list.Run {
	task := r.Task
	if utf8.RuneCountInString(task) > 200 {
		task = string([]rune(task)[:200]) + "…"
	}
	run := list.Run{
		RunID: r.ID, State: r.State, N: r.N, Mode: r.Mode, Agent: r.Agent, Task: task, Started: r.Started, Updated: r.Updated, Parent: r.Parent,
		CostUSD: r.CostUSD, Tokens: r.Tokens, Waiting: list.Waiting(r.Waiting), Queued: r.Queued, Paused: r.Paused, PauseReason: r.PauseReason,
		Priority: r.Priority, Error: r.Error, Labels: r.Labels,
	}
	if r.ForkOf != "" {
		run.ForkedFrom = &list.ForkPoint{Run: r.ForkOf, At: r.ForkAt}
	}
	return run
}

// sameLists expects that a store shows the runs that the index shows.
func sameLists(t T, l *list.Lister, c followtest.Content, ignore func(*list.Run)) {
	t.Helper()
	page, err := l.Runs(t.Context(), "", list.Query{Limit: list.MaxLimit})
	require.NoError(t, err)
	require.Len(t, c.Runs, len(page.Runs))
	for _, want := range page.Runs {
		got := shown(c.Runs[want.RunID])
		ignore(&want)
		ignore(&got)
		require.Equal(t, want, got)
	}
}

// sameCosts expects that a store has the sums that the tally has.
func sameCosts(t T, l *list.Lister, c followtest.Content) {
	t.Helper()
	for kind, by := range map[history.UseKind]tally.By{history.ByAgent: tally.ByAgent, history.ByModel: tally.ByModel, history.ByTool: tally.ByTool} {
		costs, err := l.Costs(t.Context(), "", by, time.Time{})
		require.NoError(t, err)
		want, sums := map[string]tally.Use{}, map[string]history.Sum{}
		for _, row := range costs.Rows {
			want[row.Key] = row.Use
		}
		for _, u := range c.Uses {
			if u.Kind == kind {
				s := sums[u.Name]
				s.Add(u.Sum)
				sums[u.Name] = s
			}
		}
		got := map[string]tally.Use{}
		for name, s := range sums {
			got[name] = useOf(s)
		}
		require.Equal(t, want, got, by)
	}
	counts, err := l.Counts(t.Context(), "")
	require.NoError(t, err)
	for _, h := range counts.Hours {
		at := slices.IndexFunc(c.Periods, func(p history.Period) bool { return p.Hour.Equal(h.Hour) })
		if at < 0 {
			require.Zero(t, h.Events)
			continue
		}
		p := c.Periods[at]
		require.Equal(t, []int64{h.Started, h.Ended, h.Failed, h.Events}, []int64{p.Started, p.Ended, p.Failed, p.Events})
		want, got := map[string]tally.Agent{}, map[string]tally.Agent{}
		for _, a := range h.Agents {
			want[a.Agent] = a
		}
		for _, u := range c.Uses {
			if u.Kind == history.ByAgent && u.Hour.Equal(h.Hour) {
				got[u.Name] = tally.Agent{Agent: u.Name, Runs: u.Runs, Input: u.Input, Output: u.Output, CostUSD: useOf(u.Sum).CostUSD, Failed: u.Failed}
			}
		}
		require.Equal(t, want, got)
	}
}

func useOf(s history.Sum) tally.Use {
	u := tally.Use{Runs: s.Runs, Calls: s.Calls, Input: s.Input, Output: s.Output, Cached: s.Cached, Unpriced: s.Unpriced}
	if s.Priced {
		u.CostUSD = &s.CostUSD
	}
	return u
}

// world is a log of random runs.
type world struct {
	log  *simtest.Journal
	runs []*reducertest.Run
	// stored is how many records of each run the log has, last their last sequence number.
	stored map[events.Run]int
	last   map[events.Run]uint64
}

func newWorld() *world {
	return &world{log: simtest.New(simtest.Options{}), stored: map[events.Run]int{}, last: map[events.Run]uint64{}}
}

// grow appends random events to random runs, old and new ones and forks.
func (w *world) grow(t *rapid.T, most int) {
	for range rapid.IntRange(1, most).Draw(t, "steps") {
		r := w.pick(t)
		next := reducertest.Next(t, r)
		if next.Payload == nil {
			continue
		}
		_, _, err := r.Append(next.Origin, next.Payload)
		require.NoError(t, err)
		w.store(t, r)
	}
}

// pick returns a run, which may be new.
func (w *world) pick(t *rapid.T) *reducertest.Run {
	n := rapid.IntRange(0, len(w.runs)+1).Draw(t, "run")
	if n < len(w.runs) {
		return w.runs[n]
	}
	r := reducertest.NewRun(nil)
	r.ID = events.NewRun(events.DefaultNamespace, fmt.Sprintf("01932c08-0000-7000-8000-%012x", len(w.runs)), 1)
	r.Mem = r.Machine.Initial(r.ID.ID)
	for range 1000 * len(w.runs) {
		r.NewID() // no two runs have forks of one name
	}
	if n == len(w.runs)+1 && len(w.runs) > 0 {
		of := rapid.SampledFrom(w.runs).Draw(t, "parent")
		if at := len(of.Records); at > 0 {
			at = rapid.IntRange(1, at).Draw(t, "at")
			if f, err := of.Fork(uint64(at), events.Forked{}); err == nil && w.stored[f.ID] == 0 {
				r = f
				w.store(t, r)
			}
		}
	}
	w.runs = append(w.runs, r)
	return r
}

// store appends what the log has not of a run.
func (w *world) store(t T, r *reducertest.Run) {
	for _, rec := range r.Records[w.stored[r.ID]:] {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		w.last[r.ID], err = w.log.Append(t.Context(), r.ID, w.last[r.ID], journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
		w.stored[r.ID]++
	}
}

// forge appends a record to a run that is not an event.
func (w *world) forge(t *rapid.T) {
	if len(w.runs) == 0 {
		return
	}
	r := rapid.SampledFrom(w.runs).Draw(t, "forged")
	if len(r.Records) == 0 {
		return
	}
	rec := rapid.SampledFrom(r.Records).Draw(t, "again")
	if rapid.Bool().Draw(t, "broken") {
		rec.Body = []byte("{}")
	}
	require.Error(t, r.Store(rec.Subject, rec.Body))
	w.store(t, r)
}

// What a store has of random logs, in batches of any size, is what a new store has, what the index of runs
// shows and what the tally counts.
func TestStoreIsTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, store := newWorld(), followtest.New()
		f := follower(w.log, store, func(o *follow.Options) { o.Records = rapid.IntRange(1, 9).Draw(t, "batch") })
		l := lister(t, w.log, time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC))
		forged := false
		for range rapid.IntRange(1, 4).Draw(t, "parts") {
			w.grow(t, 40)
			if rapid.IntRange(0, 3).Draw(t, "forge") == 0 {
				w.forge(t)
				forged = true
			}
			require.NoError(t, f.CatchUp(t.Context()))
			got := store.Content()
			require.Equal(t, built(t, w.log), got)
			for _, r := range w.runs {
				if row := got.Runs[r.ID.ID]; len(r.Records) > 0 {
					require.Equal(t, []any{r.Mem.State, r.Mem.N, r.Mem.Control.Head}, []any{row.State, row.N, row.Head})
				}
			}
			if !forged {
				sameLists(t, l, got, func(*list.Run) {})
				sameCosts(t, l, got)
			}
		}
	})
}

// A store that dies before or after any batch has in the end what one has that does not.
func TestKilledStores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.grow(t, 25)
		want := built(t, w.log)
		size := rapid.IntRange(1, 9).Draw(t, "batch")
		for at := 0; ; at++ {
			store, asked, killed := followtest.New(), 0, false
			store.Kill = func(bool) bool {
				asked++
				killed = killed || asked == at+1
				return asked == at+1
			}
			for {
				err := follower(w.log, store, func(o *follow.Options) { o.Records = size }).CatchUp(t.Context())
				if err == nil {
					break
				}
				require.ErrorIs(t, err, followtest.ErrKilled)
			}
			require.Equal(t, want, store.Content())
			if !killed {
				return
			}
		}
	})
}

// Recorded runs, broken ones among them, are shown as the index shows them.
func TestRecordedRuns(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/runs/*.jsonl")
	require.NoError(t, err)
	require.Greater(t, len(files), 30)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			log, err := filelog.Open(file)
			require.NoError(t, err)
			defer log.Close()
			got := built(t, log)
			one := followtest.New()
			require.NoError(t, follower(log, one, func(o *follow.Options) { o.Records = 1 }).CatchUp(t.Context()))
			require.Equal(t, got, one.Content())
			var last time.Time
			for _, row := range got.Runs {
				if last.Before(row.Updated) {
					last = row.Updated
				}
			}
			l := lister(t, log, last)
			if !strings.HasPrefix(t.Name(), "TestRecordedRuns/broken_") && !strings.HasPrefix(t.Name(), "TestRecordedRuns/poison_") {
				sameLists(t, l, got, func(*list.Run) {})
				sameCosts(t, l, got)
				return
			}
			// Of what is no event the index believes some, and it misses the end of a poisoned run.
			sameLists(t, l, got, func(r *list.Run) {
				r.Error, r.Tokens, r.CostUSD, r.Task, r.ForkedFrom = "", 0, 0, "", nil
			})
		})
	}
}
