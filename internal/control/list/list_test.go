package list_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// rig is a controller that does not run, and the rest of the world.
type rig struct {
	controltest.World
	*control.Controller
}

func newRig(t testing.TB, b journal.Bus) *rig {
	t.Helper()
	c, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "test"}, Timers: b, KV: b,
	})
	require.NoError(t, err)
	c.Admission = control.Unbounded{}
	require.NoError(t, announce.NewDirectory(b, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	return &rig{controltest.NewWorld(t, b), c}
}

func onEveryBus(t *testing.T, shards int, test func(t *testing.T, r *rig)) {
	t.Run("simulated", func(t *testing.T) { test(t, newRig(t, simtest.New(simtest.Options{Shards: shards}))) })
	t.Run("NATS", func(t *testing.T) {
		test(t, newRig(t, controltest.NATS(t, natsbus.InitOptions{Shards: shards})))
	})
}

// start starts a run of an agent in chat mode.
func (r *rig) start(agent, task string) string {
	r.T.Helper()
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.Mode = agent, "openai", events.ModeChat
	result, err := r.Start(r.T.Context(), "", control.StartRequest{Agent: &a, Task: task})
	require.NoError(r.T, err)
	return result.RunID
}

// lists expects these runs, newest first, in pages of two.
func (r *rig) lists(values list.Filters, want ...string) {
	r.T.Helper()
	var got []string
	for q := (list.Query{Filters: values, Limit: 2}); ; {
		page, err := r.Runs(r.T.Context(), "", q)
		require.NoError(r.T, err)
		for _, run := range page.Runs {
			got = append(got, run.RunID)
			whom := values["waiting"]
			require.True(r.T, whom == "" || string(run.Waiting) == whom || whom == "any" && run.Waiting != "", "%+v", run)
			require.True(r.T, values["parent"] == "" || run.Parent == values["parent"], "%+v", run)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	require.Equal(r.T, want, got)
}

func cost(dollars float64) *float64 { return &dollars }

func TestFilters(t *testing.T) {
	onEveryBus(t, 2, func(t *testing.T, r *rig) {
		before := time.Now()
		bill := r.start("billing", "Check INVOICE 77")
		news := r.start("news", "What is new?")
		dear := r.start("news", "Read everything")
		answer := controltest.TurnDone("The Élysée says nothing.")
		r.Happens(news, events.Planning, answer)
		done := &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "42 pages", Usage: events.Usage{Total: 42, CostUSD: cost(0.75)}}}
		r.Happens(dear, events.Planning, done)
		after := time.Now()

		r.lists(nil, dear, news, bill)
		r.lists(list.Filters{"agent": "news"}, dear, news)
		r.lists(list.Filters{"agent": "new"})
		r.lists(list.Filters{"q": "invoice 77"}, bill)
		r.lists(list.Filters{"q": "42 PAGES"}, dear)
		r.lists(list.Filters{"q": "bill"}, bill)
		r.lists(list.Filters{"q": news}, news)
		r.lists(list.Filters{"state": "waiting_for_user"}, news)
		r.lists(list.Filters{"waiting": "user"}, news)
		r.lists(list.Filters{"waiting": "any"}, news)
		r.lists(list.Filters{"waiting": "human"})
		r.lists(list.Filters{"cost_above": "0.5"}, dear)
		r.lists(list.Filters{"cost_above": "0.75"})
		r.lists(list.Filters{"since": before.Add(-time.Hour).Format(time.RFC3339Nano), "until": after.Add(time.Hour).Format(time.RFC3339Nano)}, dear, news, bill)
		r.lists(list.Filters{"since": after.Add(time.Hour).Format(time.RFC3339Nano)})
		r.lists(list.Filters{"until": before.Add(-time.Hour).Format(time.RFC3339Nano)})
		r.lists(list.Filters{"parent": bill})
		r.lists(list.Filters{"agent": "news", "state": "done", "q": "everything"}, dear)

		page, err := r.Runs(t.Context(), "", list.Query{})
		require.NoError(t, err)
		require.Equal(t, 0.75, page.Runs[0].CostUSD)
		require.Equal(t, 42, page.Runs[0].Tokens)
		require.Empty(t, page.Runs[0].Waiting)
		require.Equal(t, list.WaitingUser, page.Runs[1].Waiting)
		require.Zero(t, page.Runs[2].CostUSD)

		// What the log has since the last list is in the next one.
		r.Happens(bill, events.Control, &events.CancelledRun{})
		r.lists(list.Filters{"state": "cancelled"}, bill)
		r.lists(list.Filters{"state": "done"}, dear)

		for _, q := range []list.Query{
			{Limit: -1}, {Limit: 1001}, {Filters: list.Filters{"state": "flying"}}, {Filters: list.Filters{"parent": "x"}}, {Filters: list.Filters{"waiting": "me"}}, {Filters: list.Filters{"cost_above": "-1"}}, {Cursor: "x"}, {Cursor: runlog.NewID()},
			{Filters: list.Filters{"state": "done"}, Cursor: news},
		} {
			_, err := r.Runs(t.Context(), "", q)
			require.True(t, refusal.Is(err, refusal.CodeBadParameter), "%+v: %v", q, err)
		}
		r.Happens(news, events.Control, &events.FatalError{Outcome: events.Outcome{Code: "stalled", Message: "It stood still."}})
		page, err = r.Runs(t.Context(), "", list.Query{Filters: list.Filters{"agent": "news"}})
		require.NoError(t, err)
		require.Equal(t, []string{"", "stalled"}, []string{page.Runs[0].Error, page.Runs[1].Error})
	})
}

// A feature says which runs its own filter matches.
func TestFiltersOfFeatures(t *testing.T) {
	r := newRig(t, simtest.New(simtest.Options{}))
	odd, even := r.start("news", "What is new?"), r.start("news", "What is new?")
	asked := list.Query{Filters: list.Filters{"parity": "odd"}}
	refused := func(q list.Query, want string) {
		_, err := r.Runs(t.Context(), "", q)
		require.True(t, refusal.Is(err, refusal.CodeBadParameter), "%v", err)
		require.ErrorContains(t, err, want)
	}
	refused(asked, `"parity" is no filter`)
	r.Know(row.Filter{Name: "parity", Kind: row.Chosen, Choices: [][2]string{{"odd"}, {"even"}, {"gone"}}})
	refused(asked, "parity: nothing here knows it")
	r.Filter("parity", func(_ context.Context, ns, value string) (func(string) bool, error) {
		if value == "gone" {
			return nil, refusal.New(refusal.Invalid, refusal.CodeBadParameter, "parity is gone")
		}
		require.Equal(t, "default", ns)
		return func(run string) bool { return run == map[string]string{"odd": odd, "even": even}[value] }, nil
	})
	r.lists(asked.Filters, odd)
	r.lists(list.Filters{"parity": "even", "agent": "news"}, even)
	r.lists(list.Filters{"parity": "even", "agent": "none"})
	refused(list.Query{Filters: list.Filters{"parity": "gone"}}, "parity is gone")
	refused(list.Query{Filters: list.Filters{"parity": "1"}}, `parity: "1" is not known; use odd, even or gone`)
}

// A run waits for its client while a call of the client's tools is open, whatever came since.
func TestRunsThatWaitForTheirClient(t *testing.T) {
	r := newRig(t, simtest.New(simtest.Options{}))
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "clerk", "openai"
	a.ClientTools = []events.ClientTool{{Name: "ask", Description: "Asks.", Schema: json.RawMessage(`{"type":"object"}`)}}
	result, err := r.Start(t.Context(), "", control.StartRequest{Agent: &a, Task: "Paint it"})
	require.NoError(t, err)
	id, waits := result.RunID, list.Filters{"waiting": "client"}
	r.lists(waits)
	call := events.Call{ID: "c1", Name: "ask", Arguments: "{}"}
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{call}, Confidence: 1}})
	r.lists(waits, id)
	r.Happens(id, events.Control, &events.ToolCallStarted{CallID: "c1"})
	r.Happens(id, events.Control, &events.Paused{})
	r.lists(waits, id)
	r.Happens(id, events.Control, &events.Resumed{}, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "SUCCESS: blue", Code: "ok"}})
	r.lists(waits)

	outside := events.DefaultAgent()
	outside.Name, outside.LLM.Provider = "asked", events.ClientProvider
	result, err = r.Start(t.Context(), "", control.StartRequest{Agent: &outside, Task: "Say hi"})
	require.NoError(t, err)
	r.lists(waits, result.RunID)
	r.lists(list.Filters{"waiting": "any"}, result.RunID)
}

// A fork shows what it has from its parent, whose start may be in another shard.
func TestForksInherit(t *testing.T) {
	onEveryBus(t, 4, func(t *testing.T, r *rig) {
		last := r.start("news", "What is new?")
		ids := []string{last}
		for range 5 {
			fork, err := r.Fork(t.Context(), "", last, forking.Request{At: 1})
			require.NoError(t, err)
			last = fork.RunID
			ids = append([]string{last}, ids...)
		}
		r.lists(list.Filters{"agent": "news", "q": "what is new"}, ids...)
		page, err := r.Runs(t.Context(), "", list.Query{Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "What is new?", page.Runs[0].Task)
		require.Equal(t, &list.ForkPoint{Run: ids[1], At: 1}, page.Runs[0].ForkedFrom)
	})
}

// Records that are no events of their run do not change how it stands.
func TestForgedRecords(t *testing.T) {
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("news", "What is new?")
		controltest.Forge(t, r.Bus, r.At(id), events.Planning, controltest.TurnDone("no"), events.Acting, events.Done)
		other := r.start("news", "And now?")
		r.lists(list.Filters{"state": "planning"}, other, id)
		r.lists(list.Filters{"state": "done"})
	})
}

// The index and the log itself list the same runs.
func TestIndexIsTheLog(t *testing.T) {
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		dice := rand.New(rand.NewPCG(16, uint64(len(t.Name()))))
		for i := range 60 {
			id := r.start("news", fmt.Sprint("task ", i))
			switch dice.IntN(4) {
			case 0:
				r.Happens(id, events.Control, &events.CancelledRun{})
			case 1:
				r.Happens(id, events.Planning, controltest.TurnDone("said"))
			case 2:
				_, err := r.Fork(t.Context(), "", id, forking.Request{At: 1})
				require.NoError(t, err)
			}
		}
		for _, state := range []events.State{"", events.Planning, events.Cancelled, events.WaitingForUser, events.Done} {
			q := list.Query{Filters: list.Filters{"state": string(state)}, Limit: 1000}
			page, err := r.Runs(t.Context(), "", q)
			require.NoError(t, err)
			log, err := r.Backwards(t.Context(), "", q)
			require.NoError(t, err)
			for i := range page.Runs {
				page.Runs[i].Waiting = "" // only the index knows
			}
			require.Equal(t, log.Runs, page.Runs, state)
		}
	})
}

// purged is a log without the records of one run.
type purged struct {
	journal.Bus
	run string
}

func (p *purged) Head(ctx context.Context, run events.Run) (journal.Record, error) {
	if run.ID == p.run {
		return journal.Record{}, journal.ErrNotFound
	}
	return p.Bus.Head(ctx, run)
}

func TestPurgedRunsAreDropped(t *testing.T) {
	bus := &purged{Bus: simtest.New(simtest.Options{})}
	r := newRig(t, bus)
	var ids []string
	for range 5 {
		ids = append([]string{r.start("news", "What is new?")}, ids...)
	}
	r.lists(list.Filters{"agent": "news"}, ids...)
	bus.run = ids[1]
	r.lists(list.Filters{"agent": "news"}, ids[0], ids[2], ids[3], ids[4])
	bus.run = ""
	r.lists(list.Filters{"agent": "news"}, ids[0], ids[2], ids[3], ids[4])

	// One that no page shows is dropped as well.
	bus.run = ids[4]
	for range 3 {
		ids = append([]string{r.start("news", "What is new?")}, ids...)
		_, err := r.Runs(t.Context(), "", list.Query{Filters: list.Filters{"agent": "news"}, Limit: 1})
		require.NoError(t, err)
	}
	bus.run = ""
	r.lists(list.Filters{"agent": "news"}, ids[0], ids[1], ids[2], ids[3], ids[5], ids[6])
}

// A request that ends before the index is there says so, and what it read is not read again.
func TestIndexIsBuiltInParts(t *testing.T) {
	r := newRig(t, simtest.New(simtest.Options{}))
	id := r.start("news", "What is new?")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := r.Runs(ctx, "", list.Query{Filters: list.Filters{"agent": "news"}})
	require.Error(t, err)
	r.lists(list.Filters{"agent": "news"}, id)
}

// Runs are found by the beginning of their ids, by the index and without it.
func TestFind(t *testing.T) {
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		ids := []string{"0198c5a0-5a6b-7c00-8000-000000000001", "0198c5a0-5a6b-7c00-8000-000000000002", "0298c5a0-5a6b-7c00-8000-000000000001"}
		for _, id := range ids {
			a := events.DefaultAgent()
			a.Name, a.LLM.Provider = "news", "openai"
			_, err := r.Start(t.Context(), "", control.StartRequest{Agent: &a, Task: "What is new?", RunID: id})
			require.NoError(t, err)
		}
		for _, find := range []func(context.Context, string, string, int) ([]list.Run, error){r.Find, r.FindInLog} {
			finds := func(prefix string, limit int, want ...string) {
				found, err := find(t.Context(), "default", prefix, limit)
				require.NoError(t, err)
				var got []string
				for _, run := range found {
					require.Equal(t, "What is new?", run.Task)
					got = append(got, run.RunID)
				}
				require.Equal(t, want, got)
			}
			finds("0198c5a0-5a6b-7c00-8000-000000000002", 9, ids[1])
			finds("0198", 9, ids[1], ids[0])
			finds("0198", 1, ids[1])
			finds("03", 9)
			finds("", 1, ids[2])
			finds("", 9, ids[2], ids[1], ids[0])
		}
	})
}
