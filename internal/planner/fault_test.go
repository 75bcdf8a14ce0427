package planner_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Whatever a model server does, the run goes on once it does better, or ends and
// says why; over real HTTP, with plain calls and streams.
func TestModelServerFaults(t *testing.T) {
	t.Parallel()
	for _, wire := range []llmtest.Wire{llmtest.OpenAI{}, llmtest.Anthropic{}} {
		for _, plain := range []bool{true, false} {
			for _, fault := range llmtest.Faults() {
				if plain && (fault.StreamOnly || wire.Name() != (llmtest.OpenAI{}).Name()) {
					continue // a plain call follows a stream that broke, so those are met, too
				}
				for _, forever := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/plain=%v/forever=%v", wire.Name(), fault.Name, plain, forever), func(t *testing.T) {
						t.Parallel()
						meetFault(t, wire, fault, plain, forever)
					})
				}
			}
		}
	}
}

// impatient tries a call that fails again at once, as often as is said.
func impatient(attempts int) planner.Policy {
	return planner.Policy{Base: 5 * time.Millisecond, Max: 20 * time.Millisecond, Attempts: attempts, RateLimitAttempts: attempts}
}

// speaking is a provider that speaks the format. One that hangs is given up soon; where
// none hangs that would only make a slow machine's own time look like a fault.
func (r *rig) speaking(wire llmtest.Wire, url string, hangs bool) llm.Caller {
	r.T.Helper()
	o := openai.Options{BaseURL: url + "/v1"}
	if hangs {
		o.Timeout, o.Silence = 3*time.Second, 600*time.Millisecond
	}
	if wire.Name() == (llmtest.OpenAI{}).Name() {
		return r.openAI(o)
	}
	caller, err := anthropic.New(anthropic.Options{BaseURL: url, Model: "m", Timeout: o.Timeout, Silence: o.Silence})
	require.NoError(r.T, err)
	r.T.Cleanup(caller.Close)
	return caller
}

func meetFault(t *testing.T, wire llmtest.Wire, fault llmtest.Fault, plain, forever bool) {
	model := &llmtest.Server{Wire: wire, Fault: fault, Faulty: 1, Text: "It is 42."}
	attempts := 100 // a healthy reply may be late for a hasty caller; it is asked for again
	if forever {
		model.Faulty, attempts = -1, 3
	}
	server := httptest.NewServer(model)
	defer server.Close()
	r := newBenchRig(t)
	cfg := r.config(r.speaking(wire, server.URL, fault.Hangs))
	cfg.NoStream, cfg.Retry = plain, impatient(attempts)
	r.run(cfg)
	run := r.begin()
	mem := r.AwaitEnd(run)
	failed := r.Count(run, events.TypeLLMAttemptFailed)
	if forever && !fault.StreamOnly {
		require.Equal(t, events.Errored, mem.State)
		require.Equal(t, string(fault.Kind), mem.Error.Code, mem.Error.Message)
		require.NotEmpty(t, mem.Error.Message)
		require.Positive(t, failed, "it was tried again before")
	} else {
		require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
		require.Equal(t, "It is 42.", *mem.FinalAnswer, "whole, and once")
		require.Positive(t, failed)
	}
	require.Positive(t, model.Requests())
	require.LessOrEqual(t, model.Requests(), failed+1, "no request is made that no attempt accounts for")
}

// A server that is not there refuses the connection; the run goes on when it is.
func TestModelServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	r := newBenchRig(t)
	cfg := r.config(r.speaking(llmtest.OpenAI{}, "http://"+address, false))
	cfg.Retry = planner.Policy{Base: 5 * time.Millisecond, Max: 50 * time.Millisecond, Attempts: 1000}
	r.run(cfg)
	run := r.begin()
	r.Await(run, func(mem *reducer.Memory) bool { return len(mem.Control.Attempts) > 0 })
	again, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := &httptest.Server{Listener: again, Config: &http.Server{Handler: &llmtest.Server{Text: "It is 42."}, ReadHeaderTimeout: time.Minute}}
	server.Start()
	defer server.Close()
	require.Equal(t, events.Done, r.AwaitEnd(run).State)

	refused := newBenchRig(t)
	cfg = refused.config(refused.speaking(llmtest.OpenAI{}, "http://127.0.0.1:1", false))
	cfg.NoStream, cfg.Retry = true, impatient(3)
	refused.run(cfg)
	mem := refused.AwaitEnd(refused.begin())
	require.Equal(t, string(llm.KindNetwork), mem.Error.Code)
	require.Contains(t, mem.Error.Message, "refused")
}

// How replies end that are not what was asked for: refused, cut off, withheld.
func TestEndings(t *testing.T) {
	cut := func(calls ...llm.Call) llm.ToolCalls {
		r := ask(calls...)
		r.Finish, r.FinishRaw = llm.FinishLength, "max_tokens"
		return r
	}
	endless := ask(call("a", "alpha", "{}"))
	endless.Reasoning = events.Reasoning{{Kind: events.ReasoningText, Text: strings.Repeat("x", journal.MaxBody)}}
	refusing := say("I will not do that.")
	refusing.Finish = llm.FinishRefusal
	number := func(s *events.Start) { s.Agent.OutputSchema = []byte(`{"type":"object"}`) }
	for _, c := range []outcome{
		{
			name: "a refusal ends a task", reply: refusing, leadTo: events.Errored,
			want: &events.FatalError{Outcome: events.Outcome{Code: "refused", Message: "I will not do that."}, Usage: &used},
		},
		{
			name: "a refusal is no structured answer", reply: refusing, leadTo: events.Errored, start: []func(*events.Start){number},
			want: &events.FatalError{Outcome: events.Outcome{Code: "refused", Message: "I will not do that."}, Usage: &used},
		},
		{
			name: "a refusal is the turn of a chat", reply: refusing, leadTo: events.WaitingForUser, start: []func(*events.Start){chat},
			check: func(t *testing.T, p events.Payload) {
				said := p.(*events.LLMMessageComplete)
				require.Equal(t, []string{"I will not do that.", "refusal"}, []string{said.Content, said.Finish})
			},
		},
		{
			name: "a call that is cut is not run", reply: cut(call("a", "alpha", `{}`)), leadTo: events.Planning,
			check: invalidReply("", "cut_off", "cut off"),
		},
		{
			name: "a call that is cut ends the run where that is wanted", reply: cut(call("a", "alpha", `{"q": "wh`)), leadTo: events.Errored,
			start: []func(*events.Start){onCut(events.CutFail)},
			check: func(t *testing.T, p events.Payload) { require.Equal(t, "cut_off", p.(*events.FatalError).Code) },
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
			name: "a cut goes before what is wrong with a call", reply: cut(call("a", "pair", `{"a":`)), leadTo: events.Planning,
			check: invalidReply("", "cut_off", "make it again"),
		},
		{name: "reasoning counts like the rest", reply: endless, leadTo: events.Planning, check: invalidReply("", "too_large", "too large")},
		{
			name: "a call that the provider cannot read is told", leadTo: events.Planning,
			reply: &llm.Error{Kind: llm.KindToolUse, Message: "Failed to call a function", Usage: &llm.Usage{Input: 1, Output: 2, Total: 3}},
			check: invalidReply("", "tool_use_failed", "Failed to call a function"),
		},
		{
			name: "a call that the provider cannot read has an ending", leadTo: events.Planning,
			reply: &llm.Error{Kind: llm.KindToolUse, Message: "Failed to call a function", Reply: &llm.Meta{}},
			check: func(t *testing.T, p events.Payload) { require.Equal(t, "error", events.FactsOf(p).Finish) },
		},
		{
			name: "a reply with an error has an ending", leadTo: events.Planning,
			reply: &llm.Error{Kind: llm.KindOverloaded, Message: "busy", Reply: &llm.Meta{}},
			check: func(t *testing.T, p events.Payload) {
				failed := p.(*events.LLMAttemptFailed)
				require.Equal(t, "unknown", failed.Finish)
				require.NotEmpty(t, failed.MessageID)
			},
		},
		{
			name: "a schema that the server refuses is not asked for again", leadTo: events.Errored,
			reply: &llm.Error{Kind: llm.KindSchemaRefused, Message: "no grammar for oneOf"},
			want:  &events.FatalError{Outcome: events.Outcome{Code: "schema_refused", Message: "no grammar for oneOf"}},
		},
		{
			name: "an invalid request ends the run", leadTo: events.Errored,
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

// What a model reasoned goes through the log and back to its provider.
func TestReasoningGoesBack(t *testing.T) {
	thought := events.Reasoning{
		{Kind: events.ReasoningText, Text: "Hm, <größe>."}, {Kind: events.ReasoningOpaque, Data: json.RawMessage(`{"blocks":[1.50,"<b>"]}`), ID: "r1"},
	}
	thinking := func(r llm.ToolCalls, reasoning ...events.ReasoningPart) llm.ToolCalls {
		r.Reasoning = reasoning
		return r
	}
	answer := say("It is 42.")
	answer.Reasoning = thought
	replies := []any{
		thinking(ask(call("a", "alpha", "{}")), thought...), thinking(ask(call("b", "nonsense", "{}")), thought...),
		thinking(ask(call("c", "alpha", "{}")), events.ReasoningPart{Kind: events.ReasoningOpaque, Data: json.RawMessage(`{"broken`)}), answer, say("It still is."),
	}
	bubble(t, replies, func(t *testing.T, r *rig) {
		run := r.begin(chat, func(s *events.Start) { s.Agent.LLM.ThinkingTokens = 2048 })
		require.Len(t, r.event(run, 2).Data.(*events.LLMToolCall).Reasoning, 2)
		r.act(run, "first")
		require.Len(t, r.event(run, 5).Data.(*events.ReplyInvalid).Reasoning, 2)
		require.Nil(t, r.event(run, 6).Data.(*events.LLMToolCall).Reasoning, "what cannot be written is not")
		r.act(run, "second")
		r.event(run, 9)
		sent := func(i int) (all []events.Reasoning) {
			req := r.mock.Requests()[i]
			require.Equal(t, 2048, req.Sampling.ThinkingTokens)
			for _, m := range req.Messages {
				if m.Role == llm.RoleAssistant {
					all = append(all, m.Reasoning)
					require.True(t, m.Reasoning == nil || m.Asked == events.Asked{Provider: "scripted"}, "%+v", m.Asked)
				}
			}
			return all
		}
		require.Equal(t, []events.Reasoning{thought, thought, nil}, sent(3))
		r.Append(run, events.WaitingForUser, &events.UserMessage{MessageID: "m", Content: "Really?"})
		r.event(run, 11)
		require.Equal(t, []events.Reasoning{thought, thought, nil, thought}, sent(4), "the answer's too, in later turns")
	})
}

// A rate limit that lasts long uses up no attempt of another kind, and a failure
// of another kind none of a rate limit.
func TestFailuresCountByTheirKind(t *testing.T) {
	limited := &llm.Error{Kind: llm.KindRateLimited, Message: "slow down", RetryAfter: time.Second}
	busy := &llm.Error{Kind: llm.KindOverloaded, Message: "busy"}
	odd := &llm.Error{Kind: llm.KindOther, Message: "odd"}
	for name, replies := range map[string][]any{
		"one that is overloaded":  {limited, limited, limited, limited, limited, limited, busy, limited, say("It is 42.")},
		"one that is like no one": {limited, limited, odd, limited, say("It is 42.")},
		"limits after failures":   {busy, busy, busy, busy, limited, limited, say("It is 42.")},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, replies, func(t *testing.T, r *rig) {
				mem := r.AwaitEnd(r.begin())
				require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
			})
		})
	}
	t.Run("and each is bounded", func(t *testing.T) {
		bubble(t, []any{limited, busy, limited, busy, busy, busy, busy, limited, busy}, func(t *testing.T, r *rig) {
			run := r.begin()
			require.Equal(t, "overloaded", r.AwaitEnd(run).Error.Code)
			require.Equal(t, 8, r.Count(run, events.TypeLLMAttemptFailed))
		})
	})
}
