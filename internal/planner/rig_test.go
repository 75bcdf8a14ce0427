package planner_test

import (
	"encoding/json"
	"flag"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) {
	// Those that run beside others wait for a server or a clock most of the time.
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// rig is a bench with one planner on a process of its own. Nobody acts or
// observes but the test.
type rig struct {
	*workertest.Bench
	mock *scripted.Mock
}

// bubble runs a test in virtual time with a planner that is given the replies.
func bubble(t *testing.T, replies []any, test func(t *testing.T, r *rig)) {
	t.Helper()
	mock := scripted.NewMock(replies...)
	bubbleWith(t, mock, func(t *testing.T, r *rig) {
		r.mock = mock
		test(t, r)
	})
}

func bubbleWith(t *testing.T, caller llm.Caller, test func(t *testing.T, r *rig), change ...func(*planner.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newBenchRig(t)
		cfg := r.config(caller)
		for _, c := range change {
			c(&cfg)
		}
		made, err := planner.New(cfg)
		require.NoError(t, err)
		r.Go(made.Run)
		test(t, r)
	})
}

func newBenchRig(t *testing.T) *rig {
	return &rig{Bench: workertest.New(t, simtest.Options{}, nil)}
}

// config is that of a planner on a process of its own.
func (r *rig) config(caller llm.Caller) planner.Config {
	p := r.Journal.NewProcess()
	return planner.Config{
		Base: worker.Base{Instance: "1", Store: r.NewStore(p), Queue: p, Feed: p}, KV: p,
		Providers: map[string]llm.Caller{"scripted": caller},
		Validator: schema.New(schema.Options{}), Approval: approval.New(),
	}
}

// pair is a tool whose arguments are checked.
var pair = events.ToolSpec{
	Name: "pair", Description: "takes two", Effect: "pure", Pool: "default", Risk: "critical",
	Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a","b"],"additionalProperties":false}`),
}

// begin opens a run of reducertest's agent, changed as the test wants it.
func (r *rig) begin(change ...func(*events.Start)) events.Run {
	r.T.Helper()
	return r.Start(startOf(change...))
}

func startOf(change ...func(*events.Start)) *events.Start {
	s := reducertest.StartOf("find it", events.ModeTask)
	s.Agent.Config.ReflectEveryNSteps = 0
	s.Agent.Config.MinAnswerLength = 5 // shorter ones are asked for again
	s.Tools = append(s.Tools, pair)
	for _, c := range change {
		c(s)
	}
	return s
}

func chat(s *events.Start) { s.Mode, s.Agent.Mode = events.ModeChat, events.ModeChat }

func config(change func(*events.Config)) func(*events.Start) {
	return func(s *events.Start) { change(&s.Agent.Config) }
}

func approve(policy events.Approval) func(*events.Start) {
	return func(s *events.Start) { s.Agent.Approval = &policy }
}

// event waits for the run's event n and returns it.
func (r *rig) event(run events.Run, n uint64) *events.Event {
	r.T.Helper()
	r.Await(run, func(mem *reducer.Memory) bool { return mem.N == n })
	return r.Events(run)[n-1]
}

// act is what actor and observer do for the call that is next.
func (r *rig) act(run events.Run, text string) {
	r.T.Helper()
	n := r.Memory(run).N
	mem := r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.Acting && mem.N >= n })
	r.answerWith(run, mem.CurrentToolCall.ID, text)
}

// answer answers a call that is the current one or becomes it.
func (r *rig) answer(run events.Run, id string) {
	r.T.Helper()
	r.Await(run, func(mem *reducer.Memory) bool { return mem.State == events.Acting && mem.CurrentToolCall.ID == id })
	r.answerWith(run, id, "done")
}

func (r *rig) answerWith(run events.Run, id, text string) {
	r.T.Helper()
	r.Act(run, id, text)
	r.Append(run, events.Observing, &events.Continue{})
}

func ask(calls ...llm.Call) llm.ToolCalls {
	return llm.ToolCalls{Calls: calls, Meta: llm.Meta{Confidence: 1, Model: "m-1", Usage: llm.Usage{Input: 10, Output: 5, Total: 15}}}
}

func call(id, tool, arguments string) llm.Call {
	return llm.Call{ID: id, Name: tool, Arguments: arguments}
}

func doubting(confidence float64, calls ...llm.Call) llm.ToolCalls {
	r := ask(calls...)
	r.Confidence = confidence
	return r
}

// quiet waits until nothing moves any more.
func quiet() { workertest.Quiet() }
