package planner_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
)

// How replies end that are not what was asked for: refused, cut off, withheld.
func TestEndings(t *testing.T) {
	cut := func(calls ...llm.Call) llm.ToolCalls {
		r := ask(calls...)
		r.Cut = true
		return r
	}
	endless := ask(call("a", "alpha", "{}"))
	endless.Reasoning = json.RawMessage(`"` + strings.Repeat("x", journal.MaxBody) + `"`)
	cutText := say("It is 4")
	cutText.Cut = true
	number := func(s *events.Start) { s.Agent.OutputSchema = []byte(`{"type":"object"}`) }
	for _, c := range []outcome{
		{
			name: "a refusal is an answer", reply: say(llm.RefusedText), leadTo: events.Done,
			want: &events.LLMFinalAnswer{Reply: events.Reply{Content: llm.RefusedText, Model: "m-1", Usage: used}},
		},
		{
			name: "a refusal is no structured answer", reply: say(llm.RefusedText), leadTo: events.Planning,
			start: []func(*events.Start){number}, check: invalidReply(llm.RefusedText, "output_schema", "not valid JSON"),
		},
		{
			name: "text that is cut is an answer as far as it goes", reply: cutText, leadTo: events.Done,
			want: &events.LLMFinalAnswer{Reply: events.Reply{Content: "It is 4", Model: "m-1", Usage: used}},
		},
		{
			name: "a structured answer that is cut is none", leadTo: events.Planning, start: []func(*events.Start){number},
			reply: llm.Structured{Content: `{}    `, Meta: cutText.Meta}, check: invalidReply("{}    ", "cut_off", "cut off at the token limit"),
		},
		{
			name: "a call that is cut is not run", reply: cut(call("a", "alpha", `{}`)), leadTo: events.Planning,
			check: invalidReply("", "cut_off", "cut off at the token limit"),
		},
		{
			name: "calls before the one that is cut are", reply: cut(call("a", "alpha", `{}`), call("b", "alpha", `{}`)), leadTo: events.Acting,
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.LLMToolCall)
				require.True(t, ok, "%T", p)
				require.Equal(t, "a", r.Calls[0].ID)
				require.Equal(t, "cut_off", r.Refused[0].Code)
			},
		},
		{
			name: "what is wrong with a call goes before its cut", reply: cut(call("a", "pair", `{"a":`)), leadTo: events.Planning,
			check: invalidReply("", "invalid_arguments", ""),
		},
		{name: "reasoning counts like the rest", reply: endless, leadTo: events.Planning, check: invalidReply("", "too_large", "too large")},
		{
			name: "a content filter ends the run", leadTo: events.Errored,
			reply: &llm.Error{Kind: llm.KindInvalid, Message: "the provider's content filter stopped the reply"},
			want:  &events.FatalError{Outcome: events.Outcome{Code: "invalid", Message: "the provider's content filter stopped the reply"}},
		},
		{
			name: "an overloaded provider is asked again", leadTo: events.Planning,
			reply: &llm.Error{Kind: llm.KindOverloaded, Message: "Overloaded"},
			check: func(t *testing.T, p events.Payload) {
				require.Equal(t, "overloaded", p.(*events.LLMAttemptFailed).Kind)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, []any{c.reply, say("It is 42.")}, func(t *testing.T, r *rig) {
				e := r.event(r.begin(c.start...), 2)
				require.Equal(t, c.leadTo, e.To)
				if c.want != nil {
					require.Equal(t, c.want, withoutID(e.Data))
				}
				if c.check != nil {
					c.check(t, e.Data)
				}
			})
		})
	}
}

// What a provider wants back with its calls goes through the log and back to it,
// as long as the turn lasts.
func TestReasoningGoesBack(t *testing.T) {
	thought := json.RawMessage(`{"provider":"p","blocks":[1.50,"<b>"]}`)
	thinking := func(r llm.ToolCalls, reasoning json.RawMessage) llm.ToolCalls {
		r.Reasoning = reasoning
		return r
	}
	replies := []any{
		thinking(ask(call("a", "alpha", "{}")), thought), thinking(ask(call("b", "nonsense", "{}")), thought),
		thinking(ask(call("c", "alpha", "{}")), json.RawMessage(`{"broken`)), say("It is 42."), say("It still is."),
	}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(chat, func(s *events.Start) { s.Agent.LLM.ThinkingTokens = 2048 })
		require.JSONEq(t, string(thought), string(r.event(run, 2).Data.(*events.LLMToolCall).Reasoning))
		r.act(run, "first")
		require.JSONEq(t, string(thought), string(r.event(run, 5).Data.(*events.ReplyInvalid).Reasoning))
		require.Nil(t, r.event(run, 6).Data.(*events.LLMToolCall).Reasoning, "what cannot be written is not")
		r.act(run, "second")
		r.event(run, 9)
		sent := func(i int) (all []string) {
			req := r.mock.Requests()[i]
			require.Equal(t, 2048, req.Sampling.ThinkingTokens)
			for _, m := range req.Messages {
				if m.Role == llm.RoleAssistant {
					all = append(all, string(m.Reasoning))
				}
			}
			return all
		}
		require.Equal(t, []string{string(thought), string(thought), ""}, sent(3))
		r.Append(run, events.WaitingForUser, &events.UserMessage{MessageID: "m", Content: "Really?"})
		r.event(run, 11)
		require.Equal(t, []string{"", "", "", ""}, sent(4), "the turn is over")
	})
}
