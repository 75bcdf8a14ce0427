package events_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestAllCallsHaveTheModelsOrder(t *testing.T) {
	call := func(id string) events.Call { return events.Call{ID: id} }
	refused := func(id string, place int) events.Refusal { return events.Refusal{Call: call(id), Place: place} }
	for name, c := range map[string]struct {
		reply events.ToolCallReply
		want  []string
	}{
		"nothing refused":     {events.ToolCallReply{Calls: []events.Call{call("a"), call("b")}}, []string{"a", "b"}},
		"first refused":       {events.ToolCallReply{Calls: []events.Call{call("b")}, Refused: []events.Refusal{refused("a", 1)}}, []string{"a", "b"}},
		"between and last":    {events.ToolCallReply{Calls: []events.Call{call("a"), call("c")}, Refused: []events.Refusal{refused("b", 2), refused("d", 4)}}, []string{"a", "b", "c", "d"}},
		"queued":              {events.ToolCallReply{Calls: []events.Call{call("a")}, Queued: []events.Call{call("c")}, Refused: []events.Refusal{refused("b", 2)}}, []string{"a", "b", "c"}},
		"places not counted":  {events.ToolCallReply{Calls: []events.Call{call("a")}, Refused: []events.Refusal{refused("x", 0), refused("y", 0)}}, []string{"a", "x", "y"}},
		"a place beyond them": {events.ToolCallReply{Calls: []events.Call{call("a")}, Refused: []events.Refusal{refused("x", 9)}}, []string{"a", "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range c.reply.AllCalls() {
				got = append(got, c.ID)
			}
			require.Equal(t, c.want, got)
		})
	}
}

// What a person sees of a reply begins with its ending, where that is unusual.
func TestUnusualEnding(t *testing.T) {
	for _, c := range []struct{ finish, raw, want string }{
		{"", "", "It is 4"},
		{"stop", "end_turn", "It is 4"},
		{"tool_calls", "tool_use", "It is 4"},
		{"length", "max_tokens", "[length: max_tokens] It is 4"},
		{"length", "length", "[length] It is 4"},
		{"refusal", "", "[refusal] It is 4"},
	} {
		p := &events.LLMFinalAnswer{Reply: events.Reply{Content: "It is 4", Facts: events.Facts{Finish: c.finish, FinishRaw: c.raw}}}
		require.Equal(t, c.want, events.Summary(p))
	}
	require.Equal(t, "by ann", events.Summary(&events.Paused{By: events.By{By: "ann"}}))
}

func TestProvidersOfAnAgent(t *testing.T) {
	var a events.Agent
	require.NoError(t, json.Unmarshal([]byte(`{"llm":{"provider":"own"},"models":{"default":["b/x/y","a/z",{"provider":"b","model":"w"}],"poetry":"p/q"}}`), &a))
	require.Equal(t, []string{"own", "b", "a"}, a.Providers(), "a name alone is one of the agent's own provider")
}
