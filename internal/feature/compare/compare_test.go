package compare_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature/compare"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var machine = reducer.NewMachine(reducer.MachineOptions{})

// world is a log with runs that tests write event by event.
type world struct {
	*testing.T
	log   *simtest.Journal
	store *runlog.Store
}

func newWorld(t *testing.T) *world {
	log := simtest.New(simtest.Options{Shards: 3})
	return &world{t, log, runlog.New(runlog.Options{Log: log})}
}

// start starts a run whose tools are look (low risk) and pay.
func (w *world) start(mode events.Mode) events.Run {
	run := w.store.Place("default", w.store.NewID())
	start := reducertest.StartOf("Buy it.", mode)
	start.Tools = []events.ToolSpec{
		{Name: "look", Effect: "pure", Pool: "default", Schema: []byte(`{}`)}, {Name: "pay", Effect: "once", Pool: "default", Schema: []byte(`{}`)},
		{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool, Schema: []byte(`{}`)}, events.ClientTool{Name: "page", Schema: []byte(`{}`)}.Spec(),
	}
	w.add(run, events.Idle, start)
	return run
}

func (w *world) add(run events.Run, origin events.State, payloads ...events.Payload) {
	w.Helper()
	r := w.store.Acquire(run)
	defer w.store.Release(r)
	r.Lock()
	defer r.Unlock()
	require.NoError(w, r.Refresh(w.Context()))
	if p, forked := payloads[0].(*events.Forked); forked {
		fold, err := runlog.FoldAt(w.Context(), w.log, machine, w.store.Place("default", p.Run), p.At)
		require.NoError(w, err)
		p.Hash = fold.Memory().Control.Head
		r.Adopt(fold)
	}
	for _, p := range payloads {
		_, err := r.Commit(w.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: origin, Payload: p}}, nil
		})
		require.NoError(w, err)
	}
}

func (w *world) fork(parent events.Run, at uint64) events.Run {
	w.Helper()
	run := w.store.Place("default", w.store.NewID())
	w.add(run, events.Idle, &events.Forked{Run: parent.ID, At: at})
	return run
}

// calls makes a reply of calls, each a name and arguments with a blank between.
func (w *world) calls(texts ...string) events.ToolCallReply {
	cost := 0.5
	reply := events.ToolCallReply{Confidence: 1, Usage: events.Usage{Input: 10, Output: 5, Total: 15, CostUSD: &cost}}
	for _, text := range texts {
		name, arguments, _ := strings.Cut(text, " ")
		reply.Calls = append(reply.Calls, events.Call{ID: w.store.NewID(), Name: name, Arguments: arguments})
	}
	return reply
}

// call makes one call, which goes well: three events.
func (w *world) call(run events.Run, text string) {
	w.Helper()
	reply := w.calls(text)
	w.add(run, events.Planning, &events.LLMToolCall{ToolCallReply: reply})
	if reply.Calls[0].Name == "page" {
		w.outcome(run, events.Control, reply.Calls[0].ID)
	} else {
		w.result(run, reply.Calls[0].ID)
	}
}

func (w *world) result(run events.Run, id string) { w.outcome(run, events.Acting, id) }

func (w *world) outcome(run events.Run, origin events.State, id string) {
	w.Helper()
	w.add(run, origin, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: id, Success: true, Observation: "SUCCESS: ok", Code: "ok", LatencyMS: 7}})
	w.add(run, events.Observing, &events.Continue{})
}

func (w *world) answer(run events.Run, text string) {
	w.Helper()
	w.add(run, events.Planning, &events.LLMFinalAnswer{MessageID: w.store.NewID(), Reply: events.Reply{Content: text}})
}

func (w *world) compare(a, b events.Run) *compare.Comparison {
	w.Helper()
	c, err := compare.Runs(w.Context(), w.log, machine, a, b)
	require.NoError(w, err)
	return c
}

// ops writes a comparison's steps for people: `~ 3 look {} | 4 look {"a":1}`.
func (w *world) ops(c *compare.Comparison) string {
	lines := make([]string, len(c.Calls))
	for i, op := range c.Calls {
		lines[i] = map[string]string{compare.Same: "=", compare.Added: "+", compare.Removed: "-", compare.Changed: "~"}[op.Op] + show(op.A) + show(op.B)
	}
	return strings.Join(lines, "; ")
}

func show(c *compare.Call) string {
	if c == nil {
		return ""
	}
	of := ""
	if c.Run != "" {
		of = "'"
	}
	return fmt.Sprintf(" %d%s %s %s", c.N, of, c.Name, c.Arguments)
}

func TestForksOfOneRun(t *testing.T) {
	w := newWorld(t)
	parent := w.start(events.ModeTask) // 1
	w.call(parent, `look {"q":"a"}`)   // 2 to 4
	w.call(parent, `look {"q":"b"}`)   // 5 to 7
	w.call(parent, `look {"q":"c"}`)   // 8 to 10
	early, late := w.fork(parent, 4), w.fork(parent, 7)
	w.call(early, `look { "q": "b" }`)
	w.call(early, `pay {"q":1}`)
	w.answer(early, "done")
	w.call(late, `look {"q":"x"}`)
	w.answer(late, "done.")
	w.answer(parent, "done")

	c := w.compare(late, early)
	require.EqualValues(t, 4, *c.ForkPoint, "the lower of the two")
	require.Equal(t, parent.ID, c.ForkRun)
	require.Equal(t, `= 5' look {"q":"b"} 2 look { "q": "b" }; - 2 look {"q":"x"}; + 5 pay {"q":1}`, w.ops(c))
	require.Equal(t, parent.ID, c.Calls[0].A.Run)
	require.False(t, c.Same)
	require.False(t, c.Answer.Same)
	require.Equal(t, []string{"done.", "done"}, []string{*c.Answer.A, *c.Answer.B})
	require.Equal(t, 2, c.Usage.A.ToolCalls)
	require.Equal(t, 3, c.Usage.A.ModelCalls)
	require.Equal(t, 30, c.Usage.A.Total, "what follows the fork point")
	require.InDelta(t, 1, *c.Usage.B.CostUSD, 1e-9)
	require.GreaterOrEqual(t, c.Usage.B.DurationMS, int64(14))

	c = w.compare(parent, late)
	require.EqualValues(t, 7, *c.ForkPoint)
	require.Equal(t, `~ 8 look {"q":"c"} 2 look {"q":"x"}`, w.ops(c))
	c = w.compare(late, parent)
	require.EqualValues(t, 7, *c.ForkPoint, "the event that both have is the parent's")
	require.Equal(t, `~ 2 look {"q":"x"} 8 look {"q":"c"}`, w.ops(c))

	second := w.fork(early, 4) // Forked, and the three events of its first call
	w.call(second, `pay {"q":1.0}`)
	w.answer(second, "another answer")
	c = w.compare(early, second)
	require.EqualValues(t, 4, *c.ForkPoint)
	require.Equal(t, early.ID, c.ForkRun)
	require.Equal(t, `= 5 pay {"q":1} 2 pay {"q":1.0}`, w.ops(c))
	require.True(t, c.Same, "wording does not count")
	require.False(t, c.Answer.Same)
	c = w.compare(second, parent)
	require.EqualValues(t, 4, *c.ForkPoint, "a fork of a fork")
	require.Equal(t, `= 2' look { "q": "b" } 5 look {"q":"b"}; - 2 pay {"q":1.0}; + 8 look {"q":"c"}`, w.ops(c))
}

func TestTheSameRunAndUnrelatedRuns(t *testing.T) {
	w := newWorld(t)
	a, b := w.start(events.ModeTask), w.start(events.ModeTask)
	c := w.compare(a, a)
	require.EqualValues(t, 1, *c.ForkPoint)
	require.True(t, c.Same, "it runs, and is the same")
	require.True(t, c.Answer.Same, "there is none")
	require.NotNil(t, c.Calls)
	require.Zero(t, c.Usage.A)

	c = w.compare(a, b)
	require.Nil(t, c.ForkPoint)
	require.Empty(t, c.ForkRun)
	require.False(t, c.Same, "nobody knows yet what they will do")
	w.call(a, "look {}")
	w.call(b, "look {}")
	w.answer(a, "x")
	w.add(b, events.Control, &events.CancelledRun{})
	c = w.compare(a, b)
	require.Equal(t, "= 2 look {} 2 look {}", w.ops(c))
	require.False(t, c.Same, "they ended in other states")
	require.Equal(t, compare.States{A: events.Done, B: events.Cancelled}, c.State)
	require.Nil(t, c.Answer.B)

	_, err := compare.Runs(t.Context(), w.log, machine, a, w.store.Place("default", w.store.NewID()))
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func TestChatsThatWaitForTheirUsersAreAtRest(t *testing.T) {
	w := newWorld(t)
	a, b := w.start(events.ModeChat), w.start(events.ModeChat)
	for _, run := range []events.Run{a, b} {
		w.call(run, "page {}")
		w.add(run, events.Planning, &events.LLMMessageComplete{MessageID: w.store.NewID(), Reply: events.Reply{Content: run.ID}})
	}
	require.True(t, w.compare(a, b).Same)
	w.add(b, events.Control, &events.UserMessage{MessageID: "1", Content: "Go on."})
	require.False(t, w.compare(a, b).Same)
}

func TestBatchesAndSubRuns(t *testing.T) {
	w := newWorld(t)
	parent := w.start(events.ModeTask)
	fork := w.fork(parent, 1)
	for _, run := range []events.Run{parent, fork} {
		texts := []string{`look {"q":1}`, `helper {"task":"x"}`, `pay {}`}
		if run == fork {
			texts = []string{`helper {"task":"x"}`, `pay {"a":1}`}
		}
		reply := w.calls(texts...)
		w.add(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
		cost := 2.0
		for _, call := range reply.Calls {
			w.add(run, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{
				CallID: call.ID, Success: true, Observation: "SUCCESS: " + run.ID, Code: "ok", Usage: &events.Usage{Total: 100, CostUSD: &cost},
			}})
		}
		w.add(run, events.ParallelActing, &events.ToolSuccess{})
		w.add(run, events.Observing, &events.Continue{})
		w.answer(run, "x")
	}
	c := w.compare(parent, fork)
	require.Equal(t, `- 2 look {"q":1}; = 2 helper {"task":"x"} 2 helper {"task":"x"}; ~ 2 pay {} 2 pay {"a":1}`, w.ops(c))
	require.Equal(t, 315, c.Usage.A.Total, "with sub-runs")
	require.InDelta(t, 4.5, *c.Usage.B.CostUSD, 1e-9)
	require.Equal(t, 3, c.Usage.A.ToolCalls)
	require.Equal(t, 2, c.Usage.A.ModelCalls)
}

// wait makes calls that wait for a human.
func (w *world) wait(run events.Run, texts ...string) []events.Call {
	w.Helper()
	p := &events.HumanApprovalRequired{ToolCallReply: w.calls(texts...)}
	for _, call := range p.Calls {
		p.Requests = append(p.Requests, events.Request{CallID: call.ID, Tool: call.Name, Arguments: call.Arguments, Risk: "high", Reason: "always"})
	}
	w.add(run, events.Planning, p)
	return p.Calls
}

// What ran counts: a decision lets a call go, changes it or stops it.
func TestDecisions(t *testing.T) {
	w := newWorld(t)
	parent := w.start(events.ModeTask)
	id := w.wait(parent, `pay {"a":1}`)[0].ID
	approved, modified, rejected := w.fork(parent, 2), w.fork(parent, 2), w.fork(parent, 2)
	decision := func(word string) events.Decision { return events.Decision{CallID: id, Decision: word, By: "ada"} }
	w.add(approved, events.WaitingForHuman, &events.HumanApproved{Decision: decision(events.DecisionApproved)})
	w.result(approved, id)
	change := decision(events.DecisionModified)
	change.Arguments = `{"a":2}`
	w.add(modified, events.WaitingForHuman, &events.HumanModified{Decision: change})
	w.result(modified, id)
	w.add(rejected, events.WaitingForHuman, &events.HumanRejected{Decision: decision(events.DecisionRejected)})
	w.add(rejected, events.Observing, &events.Continue{})
	for _, run := range []events.Run{approved, modified, rejected} {
		w.answer(run, "x")
	}
	c := w.compare(approved, modified)
	require.EqualValues(t, 2, *c.ForkPoint)
	require.Equal(t, `~ 2 pay {"a":1} 2 pay {"a":2}`, w.ops(c))
	require.Equal(t, 1, c.Usage.A.Approvals)
	c = w.compare(approved, rejected)
	require.Equal(t, `- 2 pay {"a":1}`, w.ops(c))
	require.Equal(t, 1, c.Usage.B.Approvals)
	require.False(t, c.Same)

	other := w.start(events.ModeTask)
	w.wait(other, `pay {"a":1}`)
	c = w.compare(parent, other)
	require.Equal(t, `= 2 pay {"a":1} 2 pay {"a":1}`, w.ops(c), "what waits counts as it was asked for")
	require.False(t, c.Same, "they have not ended")
	w.add(other, events.WaitingForHuman, &events.ApprovalExpired{})
	require.Equal(t, `- 2 pay {"a":1}`, w.ops(w.compare(parent, other)))
}

// The decisions on a batch may come in any order.
func TestDecisionsOnABatch(t *testing.T) {
	w := newWorld(t)
	a, b := w.start(events.ModeTask), w.start(events.ModeTask)
	for _, run := range []events.Run{a, b} {
		calls := w.wait(run, `pay {"a":1}`, `pay {"a":2}`, `pay {"a":3}`)
		order := []int{0, 1, 2}
		if run == b {
			order = []int{2, 1, 0}
		}
		for _, i := range order {
			d := events.Decision{CallID: calls[i].ID, Decision: events.DecisionApproved}
			if i == 1 {
				d.Decision = events.DecisionRejected
			}
			w.add(run, events.WaitingForHuman, &events.HumanDecision{Decision: d})
		}
		w.add(run, events.WaitingForHuman, &events.HumanApprovedParallel{})
	}
	require.Equal(t, `= 3 pay {"a":1} 5 pay {"a":1}; = 5 pay {"a":3} 3 pay {"a":3}`, w.ops(w.compare(a, b)))
}

// A record that is no legal event does not count, and neither does what follows it.
func TestPoisonedRuns(t *testing.T) {
	w := newWorld(t)
	a, b := w.start(events.ModeTask), w.start(events.ModeTask)
	for _, run := range []events.Run{a, b} {
		w.call(run, "look {}")
	}
	w.log.Inject(b.Shard, events.Subject{Run: b, From: events.Planning, To: events.Done, Pool: "default"}.String(), []byte("junk"))
	w.add(b, events.Control, effects.End(w.memory(b)))
	w.answer(a, "x")
	c := w.compare(a, b)
	require.Equal(t, "= 2 look {} 2 look {}", w.ops(c))
	require.Equal(t, events.Errored, c.State.B)
	require.False(t, c.Same)
}

func (w *world) memory(run events.Run) *reducer.Memory {
	w.Helper()
	fold, err := runlog.FoldAt(w.Context(), w.log, machine, run, 1<<20)
	require.NoError(w, err)
	return fold.Memory()
}
