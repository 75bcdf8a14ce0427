package observer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// storage counts what is stored, and answers with an error if there is one.
type storage struct {
	kv.Store
	saves atomic.Int64
	fails func() error
}

func (s *storage) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	if !strings.Contains(it.Key, ".") { // it is the entry, and not what leads to it
		s.saves.Add(1)
	}
	if s.fails != nil {
		if err := s.fails(); err != nil {
			return 0, err
		}
	}
	return s.Store.Put(ctx, of, it)
}

// pagingBubble is bubble with storage and settings of the test's own.
func pagingBubble(t *testing.T, o simtest.Options, change func(*observer.Config, *storage), test func(t *testing.T, b *workertest.Bench, s *storage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, o, nil)
		p := b.Journal.NewProcess()
		s := &storage{Store: b.Journal}
		cfg := observer.Config{Base: worker.Base{Instance: "1", Store: b.NewStore(p), Queue: p, Feed: p}, KV: s}
		if change != nil {
			change(&cfg, s)
		}
		made, err := observer.New(cfg)
		require.NoError(t, err)
		b.Go(made.Run)
		test(t, b, s)
	})
}

func limits(soft, hard int) func(*events.Config) {
	return func(c *events.Config) { c.ReflectEveryNSteps, c.PagingLimit, c.HardLimit = 0, soft, hard }
}

// stepWith has the actor put entries into working memory, in one step, and returns
// where the run is when nothing more is to be done.
func stepWith(b *workertest.Bench, run events.Run, id string, puts ...events.Payload) *reducer.Memory {
	b.T.Helper()
	if b.Memory(run).State == events.Paging {
		b.AwaitState(run, events.Planning)
	}
	n := b.Memory(run).N + uint64(len(puts)) + 2
	b.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: reply(id)})
	for _, p := range puts {
		b.Append(run, events.Acting, p)
	}
	b.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: id, Success: true, Observation: "SUCCESS: ", Code: "ok"}})
	return b.Await(run, func(mem *reducer.Memory) bool {
		return mem.N > n && mem.State != events.Observing && mem.State != events.Paging
	})
}

func loaded(tag string, size int) *events.StorageLoaded {
	return &events.StorageLoaded{Tags: []string{tag}, Entries: []events.Entry{entry(tag, size).Entry}}
}

func lastPageDone(t *testing.T, b *workertest.Bench, run events.Run) *events.PageDone {
	t.Helper()
	var done *events.PageDone
	for _, e := range b.Events(run) {
		if p, ok := e.Data.(*events.PageDone); ok {
			done = p
		}
	}
	require.NotNil(t, done, "%v", b.Types(run))
	return done
}

func tagsOf(entries []events.Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, strings.Join(e.Tags, "+"))
	}
	return strings.Join(all, " ")
}

func left(mem *reducer.Memory) string {
	var all []string
	for _, e := range mem.WorkingMemory {
		all = append(all, e.Tags...)
	}
	return strings.Join(all, " ")
}

func own(b *workertest.Bench, run events.Run) entrystore.Owner {
	return entrystore.Owner{Namespace: run.Namespace, Agent: b.Memory(run).Control.Agent.Name}
}

func TestPagingPriorities(t *testing.T) {
	for name, c := range map[string]struct {
		soft, hard     int
		steps          [][]events.Payload
		paged, dropped string
		left           string
	}{
		"what was loaded goes before what was added": {100, 0, [][]events.Payload{
			{entry("added", 120)}, {loaded("loaded", 120)}, {entry("fresh", 200)},
		}, "loaded added", "", "fresh"},
		"what was added just now stays longest": {100, 0, [][]events.Payload{
			{entry("old", 80)}, {loaded("new", 200), entry("newer", 120)},
		}, "old new", "", "newer"},
		"no more goes than has to": {100, 0, [][]events.Payload{
			{entry("a", 80)}, {entry("b", 80)}, {entry("c", 80)}, {entry("d", 80)}, {entry("e", 80)},
		}, "a b", "", "c d e"},
		"one that is larger than the limit goes": {100, 200, [][]events.Payload{{entry("huge", 900)}}, "huge", "", ""},
		"above the hard limit the oldest go, whatever they are": {1000, 100, [][]events.Payload{
			{entry("old", 200)}, {loaded("loaded", 160), entry("new", 160)},
		}, "", "old", "loaded new"},
		"both limits": {200, 100, [][]events.Payload{
			{entry("old", 200)}, {loaded("loaded", 140)}, {entry("new", 200), entry("newest", 240)},
		}, "loaded old", "new", "newest"},
	} {
		t.Run(name, func(t *testing.T) {
			pagingBubble(t, simtest.Options{}, nil, func(t *testing.T, b *workertest.Bench, _ *storage) {
				run := begin(b, limits(c.soft, c.hard))
				var mem *reducer.Memory
				for i, puts := range c.steps {
					require.Zero(t, b.Count(run, events.TypePageDone), "not before the last step")
					mem = stepWith(b, run, fmt.Sprint("c", i), puts...)
				}
				done := lastPageDone(t, b, run)
				require.Equal(t, c.paged, tagsOf(done.Paged))
				require.Equal(t, c.dropped, tagsOf(done.Dropped))
				require.Equal(t, c.left, left(mem))
				for _, e := range append(done.Paged, done.Dropped...) {
					got, err := entrystore.New(b.Journal).Get(t.Context(), own(b, run), e.Tags)
					require.NoError(t, err, "nothing is lost")
					require.Equal(t, e, got)
				}
				notes := 0
				for _, m := range reducer.View(nil, mem) {
					if strings.HasPrefix(m.Content, "[moorebus: working memory was full") {
						notes++
					}
				}
				require.Equal(t, 1, notes, "the model is told")
			})
		})
	}
}

func TestLimitsThatAreOff(t *testing.T) {
	pagingBubble(t, simtest.Options{}, nil, func(t *testing.T, b *workertest.Bench, s *storage) {
		off := begin(b, limits(0, 0))
		require.Len(t, stepWith(b, off, "a", entry("huge", 40_000)).WorkingMemory, 1, "without a limit nothing is paged")
		require.Zero(t, s.saves.Load())
		hard := begin(b, limits(0, 100))
		require.Len(t, stepWith(b, hard, "a", entry("first", 180), entry("second", 180)).WorkingMemory, 2, "nothing is above the hard limit")
		require.Equal(t, "second third", left(stepWith(b, hard, "b", entry("third", 180))), "the oldest goes, and no more than has to")
		done := lastPageDone(t, b, hard)
		require.Empty(t, done.Paged)
		require.Equal(t, "first", tagsOf(done.Dropped))
		soft := begin(b, limits(100, 0))
		require.Empty(t, stepWith(b, soft, "a", entry("huge", 40_000)).WorkingMemory)
		require.Empty(t, lastPageDone(t, b, soft).Dropped)
	})
}

// Where a reflection is due at every step, paging still comes.
func TestPagingIsNotStarved(t *testing.T) {
	for _, hard := range []int{0, 150} {
		pagingBubble(t, simtest.Options{}, nil, func(t *testing.T, b *workertest.Bench, _ *storage) {
			run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps, c.PagingLimit, c.HardLimit = 1, 100, hard })
			require.Equal(t, events.Reflecting, stepWith(b, run, "a", entry("small", 100)).State)
			b.Append(run, events.Reflecting, &events.ReflectDone{})
			require.LessOrEqual(t, reducertest.WorkingMemoryTokens(stepWith(b, run, "b", entry("big", 900))), 80)
			require.Equal(t, 1, b.Count(run, events.TypePageDone))
		})
	}
}

// What was loaded is in storage already, maybe with a newer value. It is written
// only where it is missing.
func TestLoadedEntriesDoNotGoBack(t *testing.T) {
	pagingBubble(t, simtest.Options{}, nil, func(t *testing.T, b *workertest.Bench, s *storage) {
		run := begin(b, limits(100, 0))
		newer := events.Entry{Tags: []string{"there"}, Value: "newer"}
		require.NoError(t, entrystore.New(b.Journal).Save(t.Context(), own(b, run), entrystore.Actor, newer))
		stepWith(b, run, "a", loaded("there", 800), loaded("missing", 800))
		require.Equal(t, "there missing", tagsOf(lastPageDone(t, b, run).Paged))
		require.EqualValues(t, 1, s.saves.Load())
		got, err := entrystore.New(b.Journal).Get(t.Context(), own(b, run), newer.Tags)
		require.NoError(t, err)
		require.Equal(t, newer, got)
		_, err = entrystore.New(b.Journal).Get(t.Context(), own(b, run), []string{"missing"})
		require.NoError(t, err)
	})
}

// An observer that dies between storing and its event is followed by one that
// stores nothing again: meanwhile another run may have stored something newer.
func TestCrashBetweenStorageAndEvent(t *testing.T) {
	var struck atomic.Bool
	crash := func(m simtest.Moment) bool {
		return m.Point == simtest.BeforeAppend && strings.Contains(string(m.Record.Body), `"PageDone"`) && !struck.Swap(true)
	}
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, simtest.Options{Crash: crash}, nil)
		var counted []*storage
		for i := range 2 {
			p := b.Journal.NewProcess()
			s := &storage{Store: p}
			counted = append(counted, s)
			made, err := observer.New(observer.Config{Base: worker.Base{Instance: fmt.Sprint(i), Store: b.NewStore(p), Queue: p, Feed: p}, KV: s})
			require.NoError(t, err)
			b.Go(func(ctx context.Context) error {
				err := made.Run(ctx)
				select {
				case <-p.Dead():
					return nil
				default:
					return err
				}
			})
		}
		run := begin(b, limits(100, 0))
		mem := stepWith(b, run, "a", entry("x", 800))
		require.Empty(t, mem.WorkingMemory)
		require.Equal(t, 1, b.Count(run, events.TypeLLMAttemptFailed), "the worker that was lost: %v", b.Types(run))
		require.EqualValues(t, 1, counted[0].saves.Load()+counted[1].saves.Load())
	})
}

func TestStorageIsAwayForAWhile(t *testing.T) {
	times := 0
	away := func(_ *observer.Config, s *storage) {
		s.fails = func() error {
			if times++; times < 20 {
				return simtest.ErrAway
			}
			return nil
		}
	}
	pagingBubble(t, simtest.Options{}, away, func(t *testing.T, b *workertest.Bench, _ *storage) {
		run := begin(b, limits(100, 0))
		require.Empty(t, stepWith(b, run, "a", entry("x", 800)).WorkingMemory)
		require.Zero(t, b.Count(run, events.TypeLLMAttemptFailed), "an outage of less than a minute is nobody's failure")
	})
}

func TestStorageStaysAway(t *testing.T) {
	denied := fmt.Errorf("run `moorebus init --storage default/a`: %w", journal.ErrDenied)
	for _, c := range []struct {
		err      error
		attempts int
		want     string
	}{
		{simtest.ErrAway, effects.MaxHandlerFailures, "does not answer"},
		{denied, 0, "moorebus init --storage default/a"},
		{nil, 0, "this observer has no storage"},
	} {
		change := func(cfg *observer.Config, s *storage) {
			if s.fails = func() error { return c.err }; c.err == nil {
				cfg.KV = nil
			}
		}
		pagingBubble(t, simtest.Options{}, change, func(t *testing.T, b *workertest.Bench, _ *storage) {
			run := begin(b, limits(100, 0))
			mem := stepWith(b, run, "a", entry("x", 800))
			require.Equal(t, events.Errored, mem.State)
			require.Equal(t, codes.Storage, mem.Error.Code)
			require.Contains(t, mem.Error.Message, c.want)
			require.Len(t, mem.WorkingMemory, 1, "what is not stored stays")
			require.Equal(t, c.attempts, b.Count(run, events.TypeLLMAttemptFailed))
		})
	}
}

// An event has its bounds, whatever leaves at once: the values stand in the events
// that added them.
func TestPageDoneFitsIntoTheLog(t *testing.T) {
	pagingBubble(t, simtest.Options{}, nil, func(t *testing.T, b *workertest.Bench, s *storage) {
		run := begin(b, limits(100, 0))
		var puts []events.Payload
		for i := range 40 {
			puts = append(puts, entry(fmt.Sprint("big", i), 60_000))
		}
		mem := stepWith(b, run, "a", puts...)
		done := lastPageDone(t, b, run)
		require.Len(t, done.Paged, 40)
		require.Empty(t, mem.WorkingMemory)
		require.EqualValues(t, 40, s.saves.Load())
		require.NotEmpty(t, done.Paged[0].Value)
		require.Empty(t, done.Paged[39].Value)
		recs := b.Records(run)
		require.Less(t, len(recs[len(recs)-1].Body), 400<<10)
		got, err := entrystore.New(b.Journal).Get(t.Context(), own(b, run), done.Paged[39].Tags)
		require.NoError(t, err)
		require.Len(t, got.Value, 60_000)
	})
}

// The agent's estimator decides; one that this observer does not have is the rule
// of thumb.
func TestPagingByTheAgentsEstimator(t *testing.T) {
	for name, paged := range map[string]bool{"": false, "bytes/4": false, "letters": true, "unknown": false} {
		change := func(cfg *observer.Config, _ *storage) {
			cfg.Estimators = tokens.Set{"letters": func(text string) int { return len(text) }}
		}
		pagingBubble(t, simtest.Options{}, change, func(t *testing.T, b *workertest.Bench, _ *storage) {
			run := begin(b, func(c *events.Config) {
				limits(100, 0)(c)
				c.TokenEstimator = name
			})
			require.Equal(t, paged, len(stepWith(b, run, "a", entry("x", 300)).WorkingMemory) == 0, name)
		})
	}
}

// A run that was handed over pages to the storage that it began with: nothing is
// lost, and nothing of the other agent's is taken for the run's.
func TestPagingAfterAHandOff(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		start := reducertest.StartOf("find it", events.ModeTask)
		start.Agent.Config.ReflectEveryNSteps, start.Agent.Config.PagingLimit = 0, 30
		start.Tools = append(start.Tools, events.ToolSpec{Name: "go", Effect: "idempotent", Pool: events.AgentsPool})
		run := b.Start(start)
		heir := start.Agent
		heir.Name = "heir"
		first := entrystore.Owner{Namespace: "default", Agent: start.Agent.Name}
		second := entrystore.Owner{Namespace: "default", Agent: "heir"}
		require.NoError(t, entrystore.New(b.Journal).Save(t.Context(), second, entrystore.Actor, events.Entry{Tags: []string{"plan"}, Value: "the heir's own plan"}))
		big := strings.Repeat("A", 200)
		b.Append(run, events.Planning, &events.StorageLoaded{Tags: []string{"plan"}, Entries: []events.Entry{{Tags: []string{"plan"}, Value: big}}})
		b.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Confidence: 1, Calls: []events.Call{{ID: "h", Name: "go", Arguments: "{}"}}}})
		b.Append(run, events.Acting, &events.HandedOff{Agent: heir, AgentHash: "x", Tools: start.Tools, CallID: "h"})
		b.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "h", Success: true, Observation: "SUCCESS: x", Code: "ok"}})
		require.Empty(t, b.AwaitType(run, events.TypePageDone).WorkingMemory)
		for of, want := range map[entrystore.Owner]string{first: big, second: "the heir's own plan"} {
			got, err := entrystore.New(b.Journal).Get(t.Context(), of, []string{"plan"})
			require.NoError(t, err, of)
			require.Equal(t, want, got.Value, of)
		}
	})
}
