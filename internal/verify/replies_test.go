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

// signed is the reasoning of the recording chat_thinking_and_cut.
const signed = `{"provider":"anthropic","model":"claude","blocks":[{"type":"thinking","thinking":"Hm, <größe> 1.50","signature":"EqQB"}]}`

// old is how reasoning is read that an older build recorded as an object.
var old = []llm.ReasoningPart{{Kind: llm.ReasoningOpaque, Data: json.RawMessage(signed)}}

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
	log := openFile(t, corpus+"/chat_thinking_and_cut.jsonl")
	said := replies(t, log, log.Runs()[0])
	require.Len(t, said, 4)
	for i, cut := range map[int]bool{0: true, 1: true, 3: false} {
		r, ok := said[i].(llm.ToolCalls)
		require.True(t, ok, i)
		require.Equal(t, cut, r.Cut(), i)
		require.Equal(t, old, r.Reasoning, i)
	}
	require.Equal(t, []string{"call_1", "call_2"}, []string{said[0].(llm.ToolCalls).Calls[0].ID, said[0].(llm.ToolCalls).Calls[1].ID})
}

// A reply that only edits its context has it as well.
func TestRepliesToOwnToolsKeepReasoning(t *testing.T) {
	log, run := recorded(t, 1, func(r *recorder) {
		r.start("Think first", chat)
		r.on(events.Planning, &events.ContextWindowExpanded{Increment: 3, ContextReply: &events.ContextReply{
			Calls:   []events.Call{{ID: "x", Name: "moorebus_load_messages", Arguments: "{}"}},
			Results: []events.Answer{{ID: "x", Observation: "ok", Code: "ok"}}, Confidence: 1,
			Facts: events.Facts{Finish: "stop", Reasoning: events.Reasoning{{Kind: "opaque", Data: json.RawMessage(signed)}}},
		}})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-2", Reply: said("Found it.")})
	})
	said := replies(t, log, run)
	require.Len(t, said, 2)
	require.Equal(t, old, said[0].About().Reasoning)
}
