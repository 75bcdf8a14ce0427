package verify_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/replay"
)

const signed = `{"provider":"anthropic","model":"claude","blocks":[{"type":"thinking","thinking":"Hm, <größe> 1.50","signature":"EqQB"}]}`

// thinkingRuns are runs whose replies came with what their provider wants back.
var thinkingRuns = []recording{
	{"chat_thinking_and_cut", func(r *recorder) {
		r.start("Think first", chat)
		p := one("call_1", "search")
		p.Reasoning = json.RawMessage(signed)
		p.Refused = []events.Refusal{{Call: call("call_2", "search"), Observation: "ERROR: cut off", Code: "cut_off", Place: 2}}
		r.on(events.Planning, p)
		r.on(events.Acting, success("call_1", "found"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, &events.ReplyInvalid{RefusedReply: events.RefusedReply{
			Calls: []events.Call{call("call_3", "search")}, Results: []events.Answer{{ID: "call_3", Observation: "ERROR: cut off", Code: "cut_off"}},
			Reasoning: json.RawMessage(signed),
		}})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-2", Reply: said("Found it.")})
		r.on(events.WaitingForUser, &events.UserMessage{MessageID: "m-3", Content: "Once more"})
		again := one("call_4", "search")
		again.Reasoning = json.RawMessage(signed)
		r.on(events.Planning, again)
	}},
}

// replies are what the run's model said, by the model that says it again.
func replies(t *testing.T, log journal.Log, run events.Run) (all []llm.Response) {
	t.Helper()
	model, err := replay.Model(t.Context(), log, machine(), run)
	require.NoError(t, err)
	for {
		response, err := model.Call(t.Context(), llm.Request{Replies: len(all)}, nil)
		if err != nil {
			require.ErrorContains(t, err, "the recording ends")
			return all
		}
		all = append(all, response)
	}
}

// What a run is carried once more with has the reasoning, and is cut where it was.
func TestRepliesKeepReasoningAndCuts(t *testing.T) {
	log, run := recorded(t, 1, thinkingRuns[0].record)
	said := replies(t, log, run)
	require.Len(t, said, 4)
	for i, cut := range map[int]bool{0: true, 1: true, 3: false} {
		r, ok := said[i].(llm.ToolCalls)
		require.True(t, ok, i)
		require.Equal(t, cut, r.Cut, i)
		require.JSONEq(t, signed, string(r.Reasoning), i)
	}
	require.Equal(t, []string{"call_1", "call_2"}, []string{said[0].(llm.ToolCalls).Calls[0].ID, said[0].(llm.ToolCalls).Calls[1].ID})
}

// A reply that only edits its context has it as well.
func TestRepliesToOwnToolsKeepReasoning(t *testing.T) {
	log, run := recorded(t, 1, func(r *recorder) {
		r.start("Think first", chat)
		r.on(events.Planning, &events.ContextWindowExpanded{Increment: 3, ContextReply: &events.ContextReply{
			Calls:   []events.Call{{ID: "x", Name: "moorebus_load_messages", Arguments: "{}"}},
			Results: []events.Answer{{ID: "x", Observation: "ok", Code: "ok"}}, Confidence: 1, Reasoning: json.RawMessage(signed),
		}})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-2", Reply: said("Found it.")})
	})
	said := replies(t, log, run)
	require.Len(t, said, 2)
	require.JSONEq(t, signed, string(said[0].(llm.ToolCalls).Reasoning))
}
