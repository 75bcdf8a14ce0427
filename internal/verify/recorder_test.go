package verify_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// recorder writes the log of one run by the reducer's own rules, with fixed ids
// and times.
type recorder struct {
	t       testing.TB
	machine *reducer.Machine
	run     events.Run
	mem     *reducer.Memory
	records []journal.Record
	// ancestors is how many of the records, the first ones, are those of the runs
	// that a fork stands on.
	ancestors int
	ids       int
	now       time.Time
}

func runID(k int) string { return fmt.Sprintf("019325a0-0000-7000-8000-%012x", k) }

func newRecorder(t testing.TB, k int) *recorder {
	machine := reducer.NewMachine(reducer.MachineOptions{})
	run := events.NewRun(events.DefaultNamespace, runID(k), 1)
	return &recorder{
		t: t, machine: machine, run: run, mem: machine.Initial(run.ID), ids: k << 16,
		now: time.Date(2025, 11, 20, 9, 0, 0, 0, time.UTC),
	}
}

// stamp makes the next event's id and time.
func (r *recorder) stamp(role string) reducer.Stamp {
	r.ids++
	r.now = r.now.Add(250 * time.Millisecond)
	return reducer.Stamp{
		ID: fmt.Sprintf("019325a0-1000-7000-8000-%012x", r.ids), Source: "moorebus/" + role + "/corpus", Time: r.now,
	}
}

// on appends an event out of a state, or from control.
func (r *recorder) on(origin events.State, p events.Payload) {
	r.t.Helper()
	subject, e, err := r.machine.Draft(r.mem, r.run, origin, p, r.stamp(string(origin)))
	require.NoError(r.t, err)
	r.append(subject.String(), r.encode(e))
}

func (r *recorder) encode(e *events.Event) []byte {
	r.t.Helper()
	body, err := r.machine.Codec().Encode(e)
	require.NoError(r.t, err)
	return body
}

// append stores a record as it is and folds it, legal or not.
func (r *recorder) append(subject string, body []byte) {
	r.records = append(r.records, journal.Record{Subject: subject, Seq: uint64(len(r.records) + 1), Body: body})
	_, _ = r.machine.Apply(r.mem, subject, body)
}

// end appends what a role appends to a poisoned run.
func (r *recorder) end() {
	r.t.Helper()
	r.on(r.mem.State, effects.End(r.mem))
}

// own are the records of the run itself.
func (r *recorder) own() []journal.Record { return r.records[r.ancestors:] }

// fork begins the run as a fork of another one's event at, whose records come
// before its own.
func (r *recorder) fork(parent *recorder, at uint64, change func(*events.Forked)) {
	r.t.Helper()
	log := simtest.New(simtest.Options{})
	r.records, r.ancestors = slices.Clone(parent.records), len(parent.records)
	for _, rec := range r.records {
		log.Inject(0, rec.Subject, rec.Body)
	}
	fold, err := runlog.FoldAt(r.t.Context(), log, r.machine, parent.run, at)
	require.NoError(r.t, err)
	p := &events.Forked{Run: parent.run.ID, At: at, Hash: fold.Memory().Control.Head}
	if change != nil {
		change(p)
	}
	r.mem.Adopt(fold.Memory())
	r.on(events.Idle, p)
}

func (r *recorder) start(task string, change func(*events.Start)) {
	agent := events.DefaultAgent()
	agent.Name, agent.SystemPrompt, agent.LLM.Provider = "corpus", "You are terse.", "scripted"
	p := &events.Start{
		Task: task, TaskType: "default", AgentHash: events.Hash([]byte("corpus")), TableHash: r.machine.Table().Hash(),
		Tools: []events.ToolSpec{
			tool("search", "web", "pure", "low"), tool("word_count", "default", "idempotent", "low"), tool("pay", "money", "once", "high"),
		},
	}
	p.Agent, p.Mode = agent, events.ModeTask
	if change != nil {
		change(p)
	}
	p.Agent.Mode = p.Mode
	resolved, err := p.Agent.Resolve()
	require.NoError(r.t, err)
	p.Agent = resolved
	r.on(events.Idle, p)
}

func chat(p *events.Start) { p.Mode = events.ModeChat }

func tool(name, pool, effect, risk string) events.ToolSpec {
	return events.ToolSpec{
		Name: name, Description: "The tool " + name, Pool: pool, Effect: effect, Risk: risk,
		Schema: json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}}}`),
	}
}

func call(id, name string) events.Call {
	return events.Call{ID: id, Name: name, Arguments: `{"q": "` + id + `"}`}
}

func reply(calls ...events.Call) events.ToolCallReply {
	cost := 0.00025
	return events.ToolCallReply{
		Calls: calls, Confidence: 1, Model: "script",
		Usage: events.Usage{Input: 20, Output: 5, Total: 25, CostUSD: &cost},
	}
}

func one(id, name string) *events.LLMToolCall {
	return &events.LLMToolCall{ToolCallReply: reply(call(id, name))}
}

func answer(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "m-answer", Reply: said(text)}
}

func said(text string) events.Reply {
	return events.Reply{Content: text, Model: "script", Usage: events.Usage{Input: 30, Output: 10, Total: 40}}
}

func success(id, text string) *events.ToolSuccess {
	return &events.ToolSuccess{Outcome: &events.ToolOutcome{
		CallID: id, Success: true, Observation: codes.SuccessPrefix + text, Code: "ok", LatencyMS: 12,
	}}
}

// step is a single call from its request to its commit.
func (r *recorder) step(id, name, text string) {
	r.t.Helper()
	r.on(events.Planning, one(id, name))
	r.on(events.Acting, success(id, text))
	r.on(events.Observing, &events.Continue{})
}

// good is a short run that ends well.
func good(r *recorder) {
	r.start("Search", nil)
	r.step("call_1", "search", "found")
	r.on(events.Planning, answer("It was found."))
}

func (r *recorder) subject(from, to events.State) string {
	return events.Subject{Run: r.run, From: from, To: to, Pool: events.DefaultPool}.String()
}
