package planner_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func onCut(how events.OnCut) func(*events.Start) {
	return func(s *events.Start) { s.Agent.OnCut = how }
}

// cutText is an answer that the provider cut off.
func cutText(text string, finish llm.Finish, raw string) llm.Text {
	r := say(text)
	r.Finish, r.FinishRaw, r.RequestSHA256 = finish, raw, "of "+text
	r.Reasoning = events.Reasoning{{Kind: events.ReasoningText, Text: "on " + text}, {Kind: events.ReasoningOpaque, Data: []byte(`"` + text + `"`)}}
	return r
}

// The words by which providers say that a reply was cut off are one fact here.
var cuts = []struct {
	finish llm.Finish
	raw    string
}{
	{llm.FinishLength, "length"}, {llm.FinishLength, "max_tokens"}, {llm.FinishLength, "model_length"}, {llm.FinishError, "error"},
	{llm.FinishError, "network_error"}, {llm.FinishError, "insufficient_system_resource"}, {llm.FinishContentFilter, "content_filter"},
}

// By default the model is asked once for the rest of an answer that was cut off.
func TestACutAnswerIsContinued(t *testing.T) {
	for _, cut := range cuts {
		for _, start := range []func(*events.Start){onCut(""), chat} {
			rest := say("2.")
			rest.Finish, rest.FinishRaw, rest.RequestSHA256 = llm.FinishStop, "end_turn", "of the rest"
			rest.Reasoning = cutText("2.", "", "").Reasoning
			bubble(t, []any{cutText("It is 4", cut.finish, cut.raw), rest}, func(t *testing.T, r *rig) {
				e := r.event(r.begin(start), 2)
				require.Equal(t, "It is 42.", replyOf(t, e.Data).Content)
				require.Equal(t, events.Usage{Input: 20, Output: 10, Total: 30}, *events.Billed(e.Data), "both are billed")
				require.Equal(t, &events.Facts{
					Finish: "stop", FinishRaw: "end_turn", RequestSHA256: "of It is 4", Asked: &events.Asked{Provider: "scripted"},
					Reasoning: events.Reasoning{{Kind: "text", Text: "on It is 4"}, {Kind: "opaque", Data: []byte(`"It is 4"`)}, {Kind: "text", Text: "on 2."}},
				}, events.FactsOf(e.Data))
				require.Len(t, r.mock.Requests(), 2)
				again := r.mock.Requests()[1]
				require.True(t, again.Rest)
				last := again.Messages[len(again.Messages)-2:]
				require.Equal(t, llm.RoleAssistant, last[0].Role)
				require.Equal(t, "It is 4", last[0].Content)
				require.Equal(t, llm.RoleUser, last[1].Role, "newer models refuse a prefill")
			})
		}
	}
}

func replyOf(t *testing.T, p events.Payload) events.Reply {
	t.Helper()
	switch p := p.(type) {
	case *events.LLMFinalAnswer:
		require.False(t, p.Incomplete)
		return p.Reply
	case *events.LLMMessageComplete:
		require.False(t, p.Incomplete)
		return p.Reply
	}
	require.Fail(t, "no answer", "%#v", p)
	return events.Reply{}
}

// A cut answer never passes for a whole one.
func TestACutAnswerEndsTheRun(t *testing.T) {
	twice := []any{cutText("It is ", llm.FinishLength, "max_tokens"), cutText("4", llm.FinishError, "network_error")}
	for name, c := range map[string]struct {
		replies       []any
		start         func(*events.Start)
		tokens        int
		finish, words string
	}{
		"at once":           {twice, onCut(events.CutFail), 15, "length", "max_tokens"},
		"when it is again":  {twice, onCut(events.CutContinue), 30, "error", "network_error"},
		"in a chat":         {twice, chat, 30, "error", "on_cut: accept"},
		"without more text": {[]any{twice[0], say("")}, onCut(""), 30, "length", `"It is "`},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.replies, func(t *testing.T, r *rig) {
				run := r.begin(c.start)
				require.Equal(t, events.Errored, r.AwaitEnd(run).State)
				end := r.event(run, 2).Data.(*events.FatalError)
				require.Equal(t, "cut_off", end.Code)
				require.Contains(t, end.Message, c.words)
				require.Equal(t, c.tokens, end.Usage.Total)
				require.Equal(t, c.finish, end.Finish)
			})
		})
	}
}

// An agent may take answers as far as they come, marked as such.
func TestACutAnswerIsAccepted(t *testing.T) {
	schema := func(s *events.Start) { s.Agent.OutputSchema = []byte(`{"type":"object","required":["n"]}`) }
	accept := onCut(events.CutAccept)
	bubble(t, []any{cutText("I", llm.FinishLength, "length")}, func(t *testing.T, r *rig) {
		answer := r.event(r.begin(accept), 2).Data.(*events.LLMFinalAnswer)
		require.True(t, answer.Incomplete)
		require.Equal(t, []string{"I", "length"}, []string{answer.Content, answer.Finish})
	})
	bubble(t, []any{cutText("It is 4", llm.FinishLength, "length")}, func(t *testing.T, r *rig) {
		require.True(t, r.event(r.begin(accept, chat), 2).Data.(*events.LLMMessageComplete).Incomplete)
	})
	bubble(t, []any{cutText(`{"n": 4`, llm.FinishLength, "length"), cutText(`{"n": 42}`, llm.FinishLength, "length")}, func(t *testing.T, r *rig) {
		run := r.begin(accept, schema)
		invalidReply(`{"n": 4`, "cut_off", "shorter")(t, r.event(run, 2).Data)
		require.True(t, r.event(run, 3).Data.(*events.LLMFinalAnswer).Incomplete)
	})
}

// What is joined is checked as a whole. The rest is asked for without the schema, since a
// grammar would begin the answer again.
func TestACutStructuredAnswerIsJoined(t *testing.T) {
	first := llm.Structured{Content: `{"n": 4`, Meta: cutText("", llm.FinishLength, "length").Meta}
	bubble(t, []any{first, say(`2}`)}, func(t *testing.T, r *rig) {
		run := r.begin(func(s *events.Start) { s.Agent.OutputSchema = []byte(`{"type":"object","required":["n"]}`) })
		require.Equal(t, `{"n": 42}`, replyOf(t, r.event(run, 2).Data).Content)
		require.NotEmpty(t, r.mock.Requests()[0].OutputSchema)
		require.Empty(t, r.mock.Requests()[1].OutputSchema)
	})
}

// The rest of an answer may be a call.
func TestTheRestOfAnAnswerMayBeACall(t *testing.T) {
	bubble(t, []any{cutText("I look it ", llm.FinishLength, "length"), ask(call("a", "alpha", "{}"))}, func(t *testing.T, r *rig) {
		made := r.event(r.begin(), 2).Data.(*events.LLMToolCall)
		require.Equal(t, "I look it ", made.Content)
		require.Equal(t, 30, made.Usage.Total)
	})
}

// If the call for the rest fails, what came is billed, and the model is asked again.
func TestTheCallForTheRestFails(t *testing.T) {
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy", Usage: &llm.Usage{Input: 1, Total: 1}}
	bubble(t, []any{cutText("It is 4", llm.FinishLength, "length"), busy, say("It is 42.")}, func(t *testing.T, r *rig) {
		run := r.begin()
		mem := r.AwaitEnd(run)
		failed := r.event(run, 2).Data.(*events.LLMAttemptFailed)
		require.Equal(t, "overloaded", failed.Kind)
		require.Equal(t, 16, failed.Usage.Total)
		require.Equal(t, "length", failed.Finish)
		require.Equal(t, "It is 42.", *mem.FinalAnswer)
		require.Equal(t, 31, mem.TotalUsage.Total)
	})
}

// The call for the rest is reserved like the first. A budget that does not allow it ends the
// run, with what was used.
func TestTheCallForTheRestIsReserved(t *testing.T) {
	bubble(t, []any{cutText("It is 4", llm.FinishLength, "length"), say("2.")}, func(t *testing.T, r *rig) {
		run := r.begin(func(s *events.Start) { s.Agent.Budget = &events.Budget{MaxOutputTokens: 5} })
		mem := r.AwaitEnd(run)
		require.Equal(t, "budget_output_tokens", mem.Error.Code)
		require.Equal(t, 15, mem.TotalUsage.Total)
		require.Equal(t, []string{"Start", "LlmAttemptFailed", "BudgetExceeded"}, r.Types(run))
		require.Len(t, r.mock.Requests(), 1)
	})
}

// A reply without text and without a call is told once, whatever the model reasoned. The next
// one in a row ends the run.
func TestEmptyReplies(t *testing.T) {
	reasoned := say("")
	reasoned.Reasoning = events.Reasoning{{Kind: events.ReasoningText, Text: "What is six times seven? It is 42."}}
	long := say("")
	long.Finish = llm.FinishLength
	short := config(func(c *events.Config) { c.MinAnswerLength = 0 })
	for _, mode := range []func(*events.Start){short, chat} {
		bubble(t, []any{reasoned, say("It is 42."), long, say("")}, func(t *testing.T, r *rig) {
			run := r.begin(mode)
			invalidReply("", "empty_reply", "answer in words")(t, r.event(run, 2).Data)
			require.Equal(t, "It is 42.", replyOf(t, r.event(run, 3).Data).Content)
		})
		bubble(t, []any{long, reasoned}, func(t *testing.T, r *rig) {
			run := r.begin(mode)
			mem := r.AwaitEnd(run)
			require.Equal(t, []string{"Start", "ReplyInvalid", "FatalError"}, r.Types(run))
			require.Equal(t, "empty_reply", mem.Error.Code)
			require.Equal(t, 30, mem.TotalUsage.Total)
			told := r.mock.Requests()[1].Messages
			require.Contains(t, told[len(told)-1].Content, "reason less")
		})
	}
	t.Run("by a failure of the provider", func(t *testing.T) {
		bubble(t, []any{cutText("", llm.FinishError, "network_error"), say("It is 42.")}, func(t *testing.T, r *rig) {
			refused := r.event(r.begin(), 2).Data.(*events.ReplyInvalid)
			require.NotContains(t, refused.Results[0].Observation, "reason less")
		})
	})
	t.Run("in a row", func(t *testing.T) {
		bubble(t, []any{say(""), ask(call("a", "alpha", "{}")), say(""), say("It is 42.")}, func(t *testing.T, r *rig) {
			run := r.begin()
			r.act(run, "done")
			require.Equal(t, "It is 42.", *r.AwaitEnd(run).FinalAnswer)
		})
	})
}

// TestRepliesOfTheProvidersTools: what the provider made is an answer, goes back in a chat, and
// stands in the log with the sources that the text names.
func TestRepliesOfTheProvidersTools(t *testing.T) {
	made := say("")
	made.Reasoning = events.Reasoning{{Kind: events.ReasoningOpaque, ID: "ig_1", Data: json.RawMessage(`{"type":"image_generation_call","status":"completed","result":"AAAA"}`)}}
	named := say("As found.")
	named.Citations = []events.Citation{{Type: "url_citation", URL: "https://example.org/a", Title: "A", End: 9}}
	bubble(t, []any{made, named}, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		first := r.event(run, 2).Data.(*events.LLMMessageComplete)
		require.Equal(t, "[image_generation_call (completed)]", first.Content)
		require.Equal(t, []string{"image_generation_call (completed)"}, first.Reasoning.Items())
		r.say(run, "and now?")
		second := r.event(run, 4).Data.(*events.LLMMessageComplete)
		require.Equal(t, []events.Citation{{Type: "url_citation", URL: "https://example.org/a", Title: "A", End: 9}}, second.Citations)
		sent := r.mock.Requests()[1].Messages
		require.Equal(t, made.Reasoning, sent[len(sent)-2].Reasoning)
	})
	compacted := say("")
	compacted.Reasoning = events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(`{"type":"compaction","content":"x"}`)}}
	bubble(t, []any{compacted, say("It is 42.")}, func(t *testing.T, r *rig) {
		invalidReply("", "empty_reply", "answer in words")(t, r.event(r.begin(), 2).Data)
	})
}

// The provider's tools are asked for with each request, and are none of the agent's.
func TestProviderToolsAreAskedFor(t *testing.T) {
	search := []json.RawMessage{json.RawMessage(`{"type":"web_search"}`)}
	bubble(t, []any{say("It is 42.")}, func(t *testing.T, r *rig) {
		run := r.begin(func(p *events.Start) {
			p.Agent.ProviderTools, p.TableHash = search, reducer.DefaultTable().Hash()
		})
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		require.Equal(t, search, r.mock.Requests()[0].ProviderTools)
	})
}

// A content filter that leaves no text refuses. In a chat the refusal is the answer.
func TestWithheldIsRefused(t *testing.T) {
	withheld := say("")
	withheld.Finish, withheld.FinishRaw = llm.FinishContentFilter, "SAFETY"
	bubble(t, []any{withheld}, func(t *testing.T, r *rig) {
		run := r.begin()
		require.Equal(t, reducer.RunError{Code: "refused", Message: llm.RefusedText}, *r.AwaitEnd(run).Error)
		require.Equal(t, "SAFETY", r.event(run, 2).Data.(*events.FatalError).FinishRaw)
	})
	bubble(t, []any{withheld, say("It is 42.")}, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		said := r.event(run, 2).Data.(*events.LLMMessageComplete)
		require.Equal(t, []string{llm.RefusedText, "refusal", "SAFETY"}, []string{said.Content, said.Finish, said.FinishRaw})
		require.Equal(t, events.WaitingForUser, r.Memory(run).State, "the chat goes on")
		quiet()
		require.Len(t, r.mock.Requests(), 1, "the turn is paid for once")
	})
}

// A reply that broke off is billed and asked for again at once, without streaming.
func TestBrokenReplies(t *testing.T) {
	broken := &llm.Error{Kind: llm.KindBroken, Message: "the stream ended without an ending", Usage: &llm.Usage{Input: 10, Total: 10}, Reply: &llm.Meta{Model: "m-1"}}
	var streamed []bool
	replies := []any{broken, broken, say("It is 42."), say("x")}
	caller := llm.CallerFunc(func(_ context.Context, _ llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		streamed = append(streamed, stream != nil)
		if err, ok := replies[len(streamed)-1].(error); ok {
			return nil, err
		}
		return replies[len(streamed)-1].(llm.Response), nil
	})
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		first := r.event(run, 2).Data.(*events.LLMAttemptFailed)
		require.Equal(t, []any{"broken_reply", "unknown", 10, int64(0)}, []any{first.Kind, first.Finish, first.Usage.Total, first.RetryAfterMS})
		second := r.event(run, 3).Data.(*events.LLMAttemptFailed)
		require.Positive(t, second.RetryAfterMS, "then by the policy")
		r.event(run, 4)
		r.Append(run, events.WaitingForUser, &events.UserMessage{MessageID: "m", Content: "Really?"})
		r.event(run, 6)
		require.Equal(t, []bool{true, false, false, true}, streamed)
		require.Equal(t, 50, r.Memory(run).TotalUsage.Total)
	})
}

// Settings that the model does not take are in the reply's event, and the log says so once.
func TestAdjustedSettings(t *testing.T) {
	left := func(r llm.ToolCalls) llm.ToolCalls {
		r.Adjusted = []events.Adjusted{{Key: "temperature"}, {Key: "reasoning.effort", Sent: []byte(`"high"`)}}
		return r
	}
	log := &strings.Builder{}
	mock := scripted.NewMock(left(ask(call("a", "alpha", "{}"))), left(ask(call("b", "alpha", "{}"))), say("It is 42."))
	bubbleWith(t, mock, func(t *testing.T, r *rig) {
		run := r.begin()
		r.act(run, "one")
		r.act(run, "two")
		r.AwaitEnd(run)
		require.Equal(t, []events.Adjusted{{Key: "temperature"}, {Key: "reasoning.effort", Sent: []byte(`"high"`)}}, events.FactsOf(r.event(run, 2).Data).Adjusted)
	}, func(c *planner.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	require.Equal(t, 1, strings.Count(log.String(), "temperature is left out, reasoning.effort is sent as"), log.String())
}
