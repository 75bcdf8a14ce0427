package observer_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test in virtual time with one observer. Nobody plans or acts but
// the test.
func bubble(t *testing.T, test func(t *testing.T, b *workertest.Bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, simtest.Options{}, nil)
		p := b.Journal.NewProcess()
		o, err := observer.New(observer.Config{Base: worker.Base{Instance: "1", Store: b.NewStore(p), Queue: p, Feed: p}, KV: p})
		require.NoError(t, err)
		b.Go(o.Run)
		test(t, b)
	})
}

func begin(b *workertest.Bench, change func(*events.Config)) events.Run {
	start := reducertest.StartOf("find it", events.ModeTask)
	change(&start.Agent.Config)
	return b.Start(start)
}

func reply(ids ...string) events.ToolCallReply {
	r := events.ToolCallReply{Confidence: 1}
	for _, id := range ids {
		r.Calls = append(r.Calls, events.Call{ID: id, Name: "alpha", Arguments: "{}"})
	}
	return r
}

// act has the planner call a tool and the actor answer, and waits for the
// observer.
func act(b *workertest.Bench, run events.Run, p events.Payload, id string) *reducer.Memory {
	b.T.Helper()
	b.Append(run, events.Planning, p)
	b.Act(run, id, id)
	n := b.Memory(run).N
	return b.Await(run, func(mem *reducer.Memory) bool {
		return mem.N >= n && mem.State != events.Observing && mem.State != events.Acting
	})
}

func TestObservingCommits(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		run := begin(b, func(*events.Config) {})
		mem := act(b, run, &events.LLMToolCall{ToolCallReply: reply("a")}, "a")
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolSuccess", "Continue"}, b.Types(run))
		require.Equal(t, "moorebus/observer/1", b.Events(run)[3].Source)
		require.Equal(t, []reducer.HistoryEntry{{
			Step: 1, Tool: reducer.ToolCall{ID: "a", Name: "alpha", Arguments: "{}"}, Observation: "SUCCESS: a", Success: true, Code: "ok",
		}}, mem.History)
		require.Nil(t, mem.CurrentToolCall)
		require.Nil(t, mem.LastObservation)
		require.Contains(t, b.Records(run)[3].Subject, ".observing.planning.default.")
	})
}

func TestReflectionEveryNSteps(t *testing.T) {
	for every, want := range map[int]string{0: "CCCCCC", 1: "RRRRRR", 2: "CRCRCR", 5: "CCCCRC"} {
		t.Run(fmt.Sprint(every), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *workertest.Bench) {
				run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = every })
				got := ""
				for i := range 6 {
					id := fmt.Sprint("c", i)
					mem := act(b, run, &events.LLMToolCall{ToolCallReply: reply(id)}, id)
					if mem.State == events.Reflecting {
						got += "R"
						b.Append(run, events.Reflecting, &events.ReflectDone{})
					} else {
						got += "C"
					}
				}
				require.Equal(t, want, got)
			})
		})
	}
}

// While calls of the same reply are still queued nothing is compressed.
func TestQueuedPassesDoNotReflect(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps = 1; c.PagingLimit = 1 })
		b.Append(run, events.Planning, entry("x", 100))
		first := &events.LLMToolCall{ToolCallReply: reply("a", "b", "c")}
		first.Calls, first.Queued = first.Calls[:1], first.Calls[1:]
		require.Equal(t, events.Planning, act(b, run, first, "a").State)
		require.Equal(t, events.Planning, act(b, run, &events.LLMToolCall{ToolCallReply: reply("b")}, "b").State)
		require.Equal(t, events.Reflecting, act(b, run, &events.LLMToolCall{ToolCallReply: reply("c")}, "c").State, "with the last one")
	})
}

func entry(tag string, size int) *events.WorkingMemoryAdded {
	return &events.WorkingMemoryAdded{Entry: events.Entry{Tags: []string{tag}, Value: strings.Repeat("x", size)}}
}

func TestPaging(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps, c.PagingLimit = 0, 100 })
		for _, e := range []*events.WorkingMemoryAdded{entry("old", 80), entry("mid", 80), entry("young", 80)} {
			b.Append(run, events.Planning, e)
		}
		mem := act(b, run, &events.LLMToolCall{ToolCallReply: reply("a")}, "a")
		require.Equal(t, events.Planning, mem.State)
		require.Zero(t, b.Count(run, events.TypeNeedsPaging), "three times 20 tokens are within the limit")

		// The same tags again count as new, so `mid` and `young` are older.
		for _, e := range []*events.WorkingMemoryAdded{entry("old", 100), entry("big", 160)} {
			b.Append(run, events.Planning, e)
		}
		before := reducertest.WorkingMemoryTokens(b.Memory(run))
		require.Greater(t, before, 100)
		act(b, run, &events.LLMToolCall{ToolCallReply: reply("b")}, "b") // to Paging, or back from there already
		require.Equal(t, 1, b.Count(run, events.TypeNeedsPaging))
		mem = b.AwaitType(run, events.TypePageDone)
		require.Equal(t, events.Planning, mem.State)
		require.LessOrEqual(t, reducertest.WorkingMemoryTokens(mem), 80)
		var done *events.PageDone
		for _, e := range b.Events(run) {
			if p, ok := e.Data.(*events.PageDone); ok {
				done = p
			}
		}
		require.Equal(t, []events.Entry{
			{Tags: []string{"mid"}, Value: strings.Repeat("x", 80)}, {Tags: []string{"young"}, Value: strings.Repeat("x", 80)},
		}, done.Paged, "the oldest go first, with their values, and no more than has to")
		require.Empty(t, done.Dropped)
	})
}

func TestOneEntryBeyondEveryLimitIsPagedToo(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps, c.PagingLimit, c.HardLimit = 0, 100, 200 })
		b.Append(run, events.Planning, entry("huge", 4000))
		act(b, run, &events.LLMToolCall{ToolCallReply: reply("a")}, "a")
		mem := b.AwaitType(run, events.TypePageDone)
		require.Empty(t, mem.WorkingMemory)
	})
}

func TestPagingOff(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		run := begin(b, func(c *events.Config) { c.ReflectEveryNSteps, c.PagingLimit, c.HardLimit = 0, 0, 0 })
		b.Append(run, events.Planning, entry("huge", 40000))
		require.Equal(t, events.Planning, act(b, run, &events.LLMToolCall{ToolCallReply: reply("a")}, "a").State)
		require.Zero(t, b.Count(run, events.TypeNeedsPaging))
	})
}

// Bookkeeping goes on while the run is paused.
func TestPausedRunIsObserved(t *testing.T) {
	bubble(t, func(t *testing.T, b *workertest.Bench) {
		run := begin(b, func(*events.Config) {})
		b.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: reply("a")})
		b.Append(run, events.Control, &events.Paused{})
		b.Append(run, events.Acting, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Observation: "ERROR: x", Code: "c"}})
		mem := b.AwaitType(run, events.TypeContinue)
		require.True(t, mem.Control.Paused)
		require.False(t, mem.History[0].Success)
		workertest.Quiet()
		require.Len(t, b.Types(run), 5)
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	_, err := observer.New(observer.Config{Base: worker.Base{Instance: "1"}})
	require.ErrorContains(t, err, "observer: Store")
}

func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := workertest.New(t, simtest.Options{}, nil)
		o, err := observer.New(observer.Config{Base: worker.Base{Instance: "1", Store: b.Store, Queue: b.Journal, Feed: b.Journal}, KV: b.Journal})
		require.NoError(t, err)
		run := begin(b, func(c *events.Config) { c.PagingLimit = 1 })
		b.Append(run, events.Planning, entry("x", 100))
		b.Append(run, events.Planning, &events.LLMToolCall{ToolCallReply: reply("a")})
		b.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "a", Success: true}})
		require.NoError(t, o.Step(t.Context()))
		require.Equal(t, events.Paging, b.Memory(run).State)
		require.NoError(t, o.Step(t.Context()))
		require.Equal(t, events.Planning, b.Memory(run).State)
	})
}
