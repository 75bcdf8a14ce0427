package sim

import "github.com/moorebus/moorebus/pkg/events"

// narrow is a definition whose model sees the last message only, and may edit
// that.
func narrow(a *events.Agent) { a.Config.ContextWindowSize = 1 }

// contextCases are those of a model that edits its own context.
var contextCases = []*livenessCase{
	{row: rowOwn, name: "by the model", event: events.TypeContextWindowExpanded, from: events.Planning, agent: narrow,
		script: script(calls("moorebus_load_messages")), then: itself},
	{row: rowOwn, name: "by the model", event: events.TypeToolCallsAddedToContext, from: events.Planning, agent: narrow,
		script: script(calls("look"), scriptEntry{"calls": []scriptEntry{{
			"name": "moorebus_load_tool_result", "arguments": map[string][]string{"call_ids": {"call_1_1"}},
		}}}), then: itself},
	{row: rowOwn, name: "the last of several", event: events.TypeToolCallsAddedToContext, from: events.Planning, agent: narrow,
		script: script(calls("moorebus_load_messages", "moorebus_search_tool_calls")), then: itself},
	{row: "LlmToolCall", name: "after edits of the context", event: events.TypeLLMToolCall, from: events.Planning, agent: narrow,
		script: script(calls("look", "moorebus_load_messages")), then: itself},
}
