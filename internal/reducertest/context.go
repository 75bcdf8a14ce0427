package reducertest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/pkg/events"
)

// contextEdit draws a reply by which the model edits its own context, or a part of
// one.
func (g gen) contextEdit() events.Payload {
	calls := g.calls(1, 2)
	reply := &events.ContextReply{Calls: calls, Confidence: 1, Model: "m", Part: g.chance(3)}
	if !reply.Part {
		reply.Content, reply.Usage = g.text(), g.usage()
	}
	for i := range calls {
		calls[i].Name = rapid.SampledFrom([]string{"moorebus_load_messages", "moorebus_load_tool_result"}).Draw(g.T, "edit")
		reply.Results = append(reply.Results, events.Answer{ID: calls[i].ID, Observation: "shown", Code: "ok"})
	}
	if g.chance(2) {
		return &events.ContextWindowExpanded{Increment: rapid.IntRange(0, 3).Draw(g.T, "increment"), ContextReply: reply}
	}
	known := slices.DeleteFunc(slices.Clone(g.mem.Control.CallOrder), func(id string) bool { return g.mem.ToolCalls[id] == nil || g.chance(2) })
	return &events.ToolCallsAddedToContext{CallIDs: known, ContextReply: reply}
}
