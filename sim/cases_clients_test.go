package sim

import (
	"context"
	"encoding/json"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The cases of calls that a run's own client answers.

const (
	rowClientCall   = "LlmToolCall, ToolCallDispatched, HumanApproved of a client's call"
	rowClientBegan  = "ToolCallStarted of a client's call"
	rowClientAnswer = "ToolSuccess, ToolFailure, ToolCallResult of a client's call"
	rowClientBeside = "UserMessage, CustomMemorySet, ContextWindowExpanded behind a client's result, in one request"
	rowClientLate   = "ToolFailure, ToolCallResult of a client's call (`timeout`)"
	rowClientJoin   = "ToolSuccess, ToolFailure (batch whose last result is a client's)"
)

var clientCases = []*livenessCase{
	{row: rowClientCall, name: "of a client", event: events.TypeLLMToolCall, from: events.Planning, script: script(calls("pick")),
		agent: ofClient, people: answers("call_1_1"), then: people},
	{row: rowClientCall, name: "of a client that times out", event: events.TypeLLMToolCall, from: events.Planning, script: script(calls("pick")),
		agent: ofClient, points: timedPoints, then: people},
	{row: rowClientCall, name: "of a client", event: events.TypeToolCallDispatched, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "pick")), agent: ofClient, people: answers("call_1_2"), then: "ToolCallDispatched, LlmParallelToolCalls, ToolCallResult"},
	{row: rowClientCall, name: "of a client", event: events.TypeHumanApproved, from: events.WaitingForHuman, script: script(calls("pick")),
		agent: approvesClient, asked: true, people: then(decides(approved), answers("call_1_1")), then: people},
	{row: rowClientBegan, name: "of a client", event: events.TypeToolCallStarted, from: events.Acting, script: script(calls("pick")),
		agent: ofClient, asked: true, people: then(begins("call_1_1"), answers("call_1_1")), then: people},
	{row: rowClientAnswer, name: "of a client", event: events.TypeToolSuccess, from: events.Acting, script: script(calls("pick")),
		agent: ofClient, asked: true, people: answers("call_1_1"), then: itself},
	{row: rowClientAnswer, name: "of a client", event: events.TypeToolFailure, from: events.Acting, script: script(calls("pick")),
		agent: ofClient, asked: true, people: fails("call_1_1"), then: itself},
	{row: rowClientAnswer, name: "of a client, not the last", event: events.TypeToolCallResult, from: events.ParallelActing,
		script: script(calls("pick", "pick")), agent: ofClient, asked: true, people: answers("call_1_1", "call_1_2"), then: people},
	{row: rowClientAnswer, name: "of a client, the last", event: events.TypeToolCallResult, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "pick")), agent: ofClient, asked: true, people: then(awaits(5), answers("call_1_2")), then: itself},
	{row: rowClientBeside, name: "behind a client's result", event: events.TypeUserMessage, from: events.Observing, script: script(calls("pick")),
		agent: ofClient, asked: true, people: sends(result("call_1_1"), more), then: itself},
	{row: rowClientBeside, name: "behind a client's result, before another one", event: events.TypeUserMessage, from: events.ParallelActing,
		script: script(calls("pick", "pick")), agent: ofClient, asked: true,
		people: then(sends(result("call_1_1"), more), answers("call_1_2")), then: people},
	{row: rowClientBeside, name: "behind the last result", event: events.TypeUserMessage, from: events.ParallelActing,
		script: script(calls("look", "pick")), agent: ofClient, asked: true, people: then(awaits(5), sends(result("call_1_2"), more)), then: itself},
	{row: rowClientBeside, name: "behind all results", event: events.TypeCustomMemorySet, from: events.ParallelActing,
		script: script(calls("pick", "pick")), agent: ofClient, asked: true,
		people: sends(result("call_1_1"), result("call_1_2"), keeps), then: itself},
	{row: rowClientBeside, name: "behind a client's result", event: events.TypeContextWindowExpanded, from: events.Observing, script: script(calls("pick")),
		agent: ofClient, asked: true, people: sends(result("call_1_1"), control.ExpandContextWindow{Increment: 1}), then: itself},
	{row: rowMemory, name: "behind a message", event: events.TypeCustomMemorySet, from: events.Planning, agent: chat, asked: true, then: itself,
		people: when(events.WaitingForUser, then(sends(more, keeps), awaits(5), closing))},
	{row: rowClientLate, name: "of a client that does not answer", event: events.TypeToolFailure, from: events.Acting, script: script(calls("pick")),
		agent: ofClient, timer: true, then: itself},
	{row: rowClientLate, name: "of a client that does not answer", event: events.TypeToolCallResult, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "pick")), agent: ofClient, timer: true, then: itself},
	{row: rowClientJoin, name: "of a client's batch", event: events.TypeToolSuccess, from: events.ParallelActing, script: script(calls("pick", "look")),
		agent: ofClient, people: then(awaits(5), answers("call_1_1")), then: itself},
	{row: rowClientJoin, name: "of a client's batch", event: events.TypeToolFailure, from: events.ParallelActing, script: script(calls("pick", "pick")),
		agent: ofClient, people: fails("call_1_1", "call_1_2"), then: itself},
	{row: rowForked, name: "while a client is asked", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: people,
		script: script(calls("pick")), agent: ofClient, people: forks(2)},
}

func approvesClient(a *events.Agent) {
	ofClient(a)
	approveAlways(a)
}

// answers has the client answer calls as soon as they have gone out.
func answers(ids ...string) func(context.Context, *person) { return returns(true, ids) }

func fails(ids ...string) func(context.Context, *person) { return returns(false, ids) }

func returns(success bool, ids []string) func(context.Context, *person) {
	return func(ctx context.Context, p *person) {
		for _, id := range ids {
			p.client(ctx, control.ToolCallResult{CallID: id, Success: success, Text: "red"})
		}
	}
}

// sends sends inputs in one request.
func sends(in ...control.Input) func(context.Context, *person) {
	return func(ctx context.Context, p *person) { p.client(ctx, in...) }
}

var (
	more  = control.UserMessage{MessageID: "more", Content: "more"}
	keeps = control.KeepCustom{Key: "kept", Make: func(*reducer.Memory) (json.RawMessage, error) { return json.RawMessage("1"), nil }}
)

func result(id string) control.Input {
	return control.ToolCallResult{CallID: id, Success: true, Text: "red"}
}

func begins(id string) func(context.Context, *person) {
	return func(ctx context.Context, p *person) { p.client(ctx, control.ToolCallStarted{CallID: id}) }
}
