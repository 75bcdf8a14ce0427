package events_test

import (
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
