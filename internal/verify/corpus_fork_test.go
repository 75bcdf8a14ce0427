package verify_test

import (
	"encoding/json"

	"github.com/moorebus/moorebus/pkg/events"
)

// forkRuns are forks, each behind the run that it was forked from.
var forkRuns = []recording{
	{"fork_single_call", func(r *recorder) {
		parent := newRecorder(r.t, 0xf001)
		good(parent)
		r.fork(parent, 2, nil)
		r.on(events.Acting, failure("call_1", "not this time"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("It was not found."))
	}},
	{"fork_two_pools", func(r *recorder) {
		parent := newRecorder(r.t, 0xf002)
		parent.start("Search and count", nil)
		parent.on(events.Planning, several(call("a", "search"), call("b", "word_count")))
		parent.on(events.Planning, &events.ToolCallDispatched{CallID: "a"})
		parent.on(events.Planning, &events.ToolCallDispatched{CallID: "b"})
		parent.on(events.ParallelActing, result("b", "2", true))
		r.fork(parent, 5, nil)
		r.on(events.Planning, &events.ToolCallDispatched{CallID: "a"})
		r.on(events.ParallelActing, result("a", "found", true))
		r.on(events.ParallelActing, &events.ToolSuccess{})
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("Found two."))
	}},
	{"fork_patched", func(r *recorder) {
		parent := newRecorder(r.t, 0xf003)
		parent.askToPay()
		parent.on(events.WaitingForHuman, &events.HumanRejected{Decision: decision("call_1", events.DecisionRejected)})
		r.fork(parent, 2, func(p *events.Forked) {
			agent := events.DefaultAgent()
			agent.Name, agent.SystemPrompt, agent.LLM.Provider, agent.Blacklist = "corpus", "You are generous.", "scripted", []string{"search"}
			agent.Mode, agent.Config.ContextWindowSize, agent.Config.MaxSteps = events.ModeTask, 0, 4
			p.Patch = json.RawMessage(`{"task":"Pay twice","system_prompt":"You are generous."}`)
			p.Task, p.TaskType, p.Agent, p.AgentHash = "Pay twice", "payment", &agent, events.Hash([]byte("generous"))
			p.Tools = []events.ToolSpec{tool("pay", "bank", "idempotent", "high")}
		})
		r.on(events.WaitingForHuman, &events.HumanApproved{Decision: decision("call_1", events.DecisionApproved)})
		r.on(events.Acting, success("call_1", "paid"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("It was paid twice."))
	}},
	{"fork_of_a_fork", func(r *recorder) {
		first := newRecorder(r.t, 0xf004)
		first.start("Talk", chat)
		first.on(events.Planning, &events.LLMMessageComplete{MessageID: "m1", Reply: said("Hello.")})
		second := newRecorder(r.t, 0xf005)
		second.fork(first, 2, nil)
		second.on(events.Control, &events.UserMessage{MessageID: "m2", Content: "And now?"})
		r.fork(second, 2, nil)
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m3", Reply: said("Good bye.")})
		r.on(events.WaitingForUser, &events.Closed{})
	}},
	{"poison_fork_of_another_event", func(r *recorder) {
		parent := newRecorder(r.t, 0xf006)
		good(parent)
		r.records, r.ancestors = append(r.records, parent.records...), len(parent.records)
		r.mem.Disown("the hashes differ") // as the fold finds it from the log
		r.forge(events.Idle, events.Planning, &events.Forked{Run: parent.run.ID, At: 1, Hash: events.Hash([]byte("other"))}, nil)
		r.end()
	}},
	{"poison_fork_of_an_end", func(r *recorder) {
		parent := newRecorder(r.t, 0xf007)
		good(parent)
		r.records, r.ancestors = append(r.records, parent.records...), len(parent.records)
		r.mem.Disown("the parent has ended")
		r.forge(events.Idle, events.Done, &events.Forked{Run: parent.run.ID, At: 5, Hash: parent.mem.Control.Head}, nil)
		r.end()
	}},
}
