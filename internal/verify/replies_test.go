package verify_test

import (
	"encoding/json"
	"errors"
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
var old = events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(signed)}}

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

// Replies that were not used are given back as the log has them, so that the run can be
// carried once more: refusals that went to the next model, and what ended in the middle.
func TestRepliesThatWereNotUsed(t *testing.T) {
	usage := events.Usage{Input: 3, Output: 1, Total: 4}
	log, run := recorded(t, 1, func(r *recorder) {
		r.start("Search", nil)
		r.on(events.Planning, &events.LLMAttemptFailed{
			Kind: "refused", Message: "I will not.", Key: "plan/1", Next: true, Usage: &usage, Facts: events.Facts{Finish: "refusal", FinishRaw: "refusal"},
		})
		r.on(events.Planning, &events.LLMAttemptFailed{Kind: "overloaded", Message: "busy", Key: "plan/1"})
		r.on(events.Planning, &events.ReplyInvalid{RefusedReply: events.RefusedReply{
			Results: []events.Answer{{Observation: "ERROR: no such call", Code: "tool_use_failed"}}, Usage: usage, Facts: events.Facts{Finish: "error"},
		}})
		r.on(events.Planning, &events.ReplyInvalid{RefusedReply: events.RefusedReply{
			Results: []events.Answer{{Observation: "ERROR: the reply is empty", Code: "empty_reply"}}, Usage: usage, Facts: events.Facts{Finish: "length"},
		}})
		r.on(events.Planning, answer("It was found."))
	})
	model, err := replay.Model(t.Context(), log, machine(), run)
	require.NoError(t, err)
	said := func(n int) (llm.Response, *llm.Error) {
		response, err := model.Call(t.Context(), llm.Request{Replies: n}, nil)
		var failed *llm.Error
		errors.As(err, &failed)
		return response, failed
	}
	_, refused := said(0)
	require.Equal(t, []any{llm.ErrorKind("refused"), 4, llm.FinishRefusal}, []any{refused.Kind, refused.Usage.Total, refused.Reply.Finish})
	_, busy := said(1)
	require.Equal(t, &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}, busy)
	_, unread := said(2)
	require.Equal(t, []any{llm.KindToolUse, "no such call", 4}, []any{unread.Kind, unread.Message, unread.Usage.Total})
	empty, _ := said(3)
	require.Equal(t, []any{"", llm.FinishLength}, []any{empty.(llm.Text).Content, empty.About().Finish})
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
