package planner_test

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// outcome is one reply of a model and the event that it has to become.
type outcome struct {
	name   string
	start  []func(*events.Start)
	reply  any
	want   events.Payload
	check  func(t *testing.T, p events.Payload)
	leadTo events.State
}

func TestReplies(t *testing.T) {
	for _, c := range outcomes() {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, []any{c.reply}, func(t *testing.T, r *rig) {
				run := r.begin(c.start...)
				e := r.event(run, 2)
				require.Equal(t, c.leadTo, e.To)
				require.Equal(t, 1, e.Step, "every reply of a model is a step")
				require.Equal(t, "moorebus/planner/1", e.Source)
				if c.want != nil {
					require.Equal(t, c.want, withoutID(e.Data))
				}
				if c.check != nil {
					c.check(t, e.Data)
				}
				quiet()
				r.Memory(run)
			})
		})
	}
}

// withoutID drops the id that the planner makes up, and the facts, which have tests of their
// own.
func withoutID(p events.Payload) events.Payload {
	if facts := events.FactsOf(p); facts != nil {
		*facts = events.Facts{}
	}
	switch p := p.(type) {
	case *events.LLMFinalAnswer:
		p.MessageID = ""
	case *events.LLMToolCall:
		p.MessageID = ""
	case *events.LLMMessageComplete:
		p.MessageID = ""
	case *events.AnswerTooShort:
		p.MessageID = ""
	case *events.LowConfidence:
		p.MessageID = ""
	case *events.LLMThought:
		p.MessageID = ""
	case *events.ReplyInvalid:
		p.MessageID = ""
	}
	return p
}

var used = events.Usage{Input: 10, Output: 5, Total: 15}

func say(text string) llm.Text {
	return llm.Text{Content: text, Meta: llm.Meta{Confidence: 1, Model: "m-1", Usage: llm.Usage{Input: 10, Output: 5, Total: 15}}}
}

func invalidReply(content, code, says string) func(*testing.T, events.Payload) {
	return func(t *testing.T, p events.Payload) {
		invalid, ok := p.(*events.ReplyInvalid)
		require.True(t, ok, "%T", p)
		require.Equal(t, content, invalid.Content)
		require.NotEmpty(t, invalid.Results)
		require.Equal(t, code, invalid.Results[0].Code)
		require.True(t, strings.HasPrefix(invalid.Results[0].Observation, "ERROR: "))
		require.Contains(t, invalid.Results[0].Observation, says)
	}
}

func outcomes() []outcome {
	return append(append(answers(), refusals()...), acceptances()...)
}

func answers() []outcome {
	shortest := []func(*events.Start){config(func(c *events.Config) { c.MinAnswerLength = events.DefaultAgent().Config.MinAnswerLength })}
	integer := func(s *events.Start) { s.Agent.OutputSchema = []byte(`{"type":"integer"}`) }
	number := func(s *events.Start) { s.Agent.OutputSchema = []byte(`{"type":"object","required":["n","m"]}`) }
	return []outcome{
		{
			name: "final answer", reply: say("It is 42."), leadTo: events.Done,
			want: &events.LLMFinalAnswer{Reply: events.Reply{Content: "It is 42.", Model: "m-1", Usage: used}},
		},
		{
			name: "four runes are too short", reply: say("äöüß"), leadTo: events.Planning,
			want: &events.AnswerTooShort{Content: "äöüß", Model: "m-1", Usage: used},
		},
		{name: "five runes are enough", reply: say("äöüßä"), leadTo: events.Done},
		{name: "a short answer where one character is enough", start: shortest, reply: say("7"), leadTo: events.Done},
		{name: "no answer where none is too short", start: shortest, reply: say(""), leadTo: events.Planning, check: invalidReply("", "empty_reply", "empty")},
		{name: "white space is no answer", start: shortest, reply: say(" \n"), leadTo: events.Planning, check: invalidReply("", "empty_reply", "empty")},
		{
			name: "a short structured answer", start: []func(*events.Start){integer}, leadTo: events.Done,
			reply: llm.Structured{Content: "42", Meta: llm.Meta{Confidence: 1}},
		},
		{
			name: "no structured answer", start: []func(*events.Start){integer}, leadTo: events.Planning,
			reply: llm.Structured{Meta: llm.Meta{Confidence: 1}}, check: invalidReply("", "empty_reply", ""),
		},
		{
			name: "empty answer", reply: say(""), leadTo: events.Planning,
			start: []func(*events.Start){config(func(c *events.Config) { c.MinAnswerLength = 0 })}, check: invalidReply("", "empty_reply", "empty"),
		},
		{
			name: "a turn of a chat", start: []func(*events.Start){chat}, reply: say("Hi"), leadTo: events.WaitingForUser,
			want: &events.LLMMessageComplete{Reply: events.Reply{Content: "Hi", Model: "m-1", Usage: used}},
		},
		{
			name: "an empty turn", start: []func(*events.Start){chat}, reply: say(""), leadTo: events.Planning,
			check: invalidReply("", "empty_reply", "empty"),
		},
		{
			name: "calls without a call", reply: llm.ToolCalls{Content: "I am done.", Meta: llm.Meta{Confidence: 1}}, leadTo: events.Done,
			want: &events.LLMFinalAnswer{Reply: events.Reply{Content: "I am done.", Model: "scripted"}},
		},
		{
			name: "structured answer", start: []func(*events.Start){number}, leadTo: events.Done,
			reply: llm.Structured{Content: `{"n":1,"m":2}`, Meta: llm.Meta{Confidence: 1}},
		},
		{name: "structured answer in words", start: []func(*events.Start){number}, leadTo: events.Done, reply: say(`{"n":1,"m":2}`)},
		{
			name: "answer that does not satisfy the schema", start: []func(*events.Start){number}, leadTo: events.Planning,
			reply: llm.Structured{Content: `{"x":1}`, Meta: llm.Meta{Confidence: 1}},
			check: func(t *testing.T, p events.Payload) {
				invalidReply(`{"x":1}`, "output_schema", "n")(t, p)
				require.Contains(t, p.(*events.ReplyInvalid).Results[0].Observation, "m")
			},
		},
		{
			name: "answer that is no JSON", start: []func(*events.Start){number}, leadTo: events.Planning,
			reply: say("forty-two"), check: invalidReply("forty-two", "output_schema", ""),
		},
		{
			name: "invalid UTF-8", reply: say("\xff\xfeabcde"), leadTo: events.Done,
			want: &events.LLMFinalAnswer{Reply: events.Reply{Content: "\uFFFDabcde", Model: "m-1", Usage: used}},
		},
		{
			name: "too large", reply: say(strings.Repeat("ä", journal.MaxBody)), leadTo: events.Planning,
			check: func(t *testing.T, p events.Payload) {
				invalid, ok := p.(*events.ReplyInvalid)
				require.True(t, ok)
				require.Equal(t, "too_large", invalid.Results[0].Code)
				require.Less(t, len(invalid.Content), 5000)
				require.True(t, utf8.ValidString(invalid.Content))
				require.Equal(t, used, invalid.Usage, "it is billed")
			},
		},
		{
			name: "large text of characters that HTML escapes", reply: say(strings.Repeat("<", journal.MaxBody/2)), leadTo: events.Done,
		},
	}
}

func refusals() []outcome {
	return []outcome{
		{
			name: "unknown tool", reply: ask(call("a", "nonsense", "{}")), leadTo: events.Planning,
			want: &events.ReplyInvalid{RefusedReply: events.RefusedReply{
				Calls:   []events.Call{{ID: "a", Name: "nonsense", Arguments: "{}"}},
				Results: []events.Answer{{ID: "a", Observation: `ERROR: tool "nonsense" not found`, Code: "not_found"}},
				Model:   "m-1", Usage: used,
			}},
		},
		{
			name: "blacklisted", reply: ask(call("a", "forbidden", "{}")), leadTo: events.Planning,
			start: []func(*events.Start){func(s *events.Start) {
				s.Tools = append(s.Tools, events.ToolSpec{Name: "forbidden", Effect: "pure", Pool: "default"})
			}},
			check: func(t *testing.T, p events.Payload) {
				b, ok := p.(*events.ToolBlacklisted)
				require.True(t, ok, "%T", p)
				require.Equal(t, "blacklisted", b.Results[0].Code)
				require.Contains(t, b.Results[0].Observation, "blacklisted")
			},
		},
		{
			name: "unknown goes before blacklisted", reply: ask(call("a", "forbidden", "{}")), leadTo: events.Planning,
			check: invalidReply("", "not_found", "not found"),
		},
		{
			name: "blacklisted goes before invalid arguments", reply: ask(call("a", "pair", `{"a":"x"}`)), leadTo: events.Planning,
			start: []func(*events.Start){func(s *events.Start) { s.Agent.Blacklist = []string{"pair"} }},
			check: func(t *testing.T, p events.Payload) { require.IsType(t, &events.ToolBlacklisted{}, p) },
		},
		{
			name: "every invalid argument is named", reply: ask(call("a", "pair", `{"a":"x","c":1}`)), leadTo: events.Planning,
			check: func(t *testing.T, p events.Payload) {
				invalidReply("", "invalid_arguments", "pair")(t, p)
				for _, word := range []string{"/a", "b", "c"} {
					require.Contains(t, p.(*events.ReplyInvalid).Results[0].Observation, word)
				}
			},
		},
		{
			name: "keys that differ in case alone", reply: ask(call("a", "alpha", `{"amount":1,"AMOUNT":1000}`)), leadTo: events.Planning,
			check: invalidReply("", "invalid_arguments", `the keys "amount" and "AMOUNT" differ in upper and lower case only`),
		},
		{
			name: "arguments that are no JSON", reply: ask(call("a", "pair", `{"a":`)), leadTo: events.Planning,
			check: func(t *testing.T, p events.Payload) {
				invalidReply("", "invalid_arguments", "")(t, p)
				require.Equal(t, `{"a":`, p.(*events.ReplyInvalid).Calls[0].Arguments, "verbatim")
			},
		},
		{
			name: "invalid arguments go before low confidence", reply: doubting(0.1, call("a", "pair", `{}`)), leadTo: events.Planning,
			check: invalidReply("", "invalid_arguments", ""),
		},
		{
			name: "all refused for different reasons", leadTo: events.Planning,
			start: []func(*events.Start){func(s *events.Start) { s.Agent.Blacklist = []string{"alpha"} }},
			reply: ask(call("a", "alpha", "{}"), call("b", "nonsense", "{}")),
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.ReplyInvalid)
				require.True(t, ok, "%T", p)
				require.Len(t, r.Calls, 2)
				require.Equal(t, []string{"blacklisted", "not_found"}, []string{r.Results[0].Code, r.Results[1].Code})
			},
		},
		{
			name: "one of two refused", reply: ask(call("a", "alpha", "{}"), call("b", "nonsense", "{}")), leadTo: events.Acting,
			want: &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
				Calls: []events.Call{{ID: "a", Name: "alpha", Arguments: "{}"}},
				Refused: []events.Refusal{{
					Call:        events.Call{ID: "b", Name: "nonsense", Arguments: "{}"},
					Observation: `ERROR: tool "nonsense" not found`, Code: "not_found", Place: 2,
				}},
				Confidence: 1, Model: "m-1", Usage: used,
			}},
		},
		{
			name: "one of three refused", leadTo: events.ParallelActing,
			reply: ask(call("a", "alpha", "{}"), call("b", "pair", "{}"), call("c", "alpha", "{}")),
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.LLMParallelToolCalls)
				require.True(t, ok, "%T", p)
				require.Len(t, r.Calls, 2)
				require.Equal(t, "invalid_arguments", r.Refused[0].Code)
			},
		},
		{
			name: "calls that are too large", leadTo: events.Planning,
			reply: ask(call("a", "alpha", `{"x":"`+strings.Repeat("x", journal.MaxBody)+`"}`)),
			check: func(t *testing.T, p events.Payload) {
				invalidReply("", "too_large", "too large")(t, p)
				require.Empty(t, p.(*events.ReplyInvalid).Calls, "there is none to be answered")
			},
		},
	}
}

func acceptances() []outcome {
	beside := ask(call("a", "alpha", `{"n": 1.0}`))
	beside.Content = "I look it up."
	return []outcome{
		{
			name: "text beside a call", reply: beside, leadTo: events.Acting,
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.LLMToolCall)
				require.True(t, ok, "%T", p)
				require.Equal(t, "I look it up.", r.Content)
				require.NotEmpty(t, r.MessageID)
				require.Equal(t, `{"n": 1.0}`, r.Calls[0].Arguments, "verbatim")
			},
		},
		{
			name: "calls without ids, twice the same id", leadTo: events.ParallelActing,
			reply: llm.ToolCalls{Meta: llm.Meta{Confidence: 1}, Calls: []llm.Call{call("x", "alpha", "{}"), call("x", "alpha", "{}"), call("x~1", "alpha", "{}")}},
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.LLMParallelToolCalls)
				require.True(t, ok, "%T", p)
				require.Equal(t, []events.Call{
					{ID: "x", Name: "alpha", Arguments: "{}"},
					{ID: "x~1", Name: "alpha", Arguments: "{}", ProviderID: "x"},
					{ID: "x~1~1", Name: "alpha", Arguments: "{}", ProviderID: "x~1"},
				}, r.Calls)
			},
		},
		{
			name: "an id that no header can hold", leadTo: events.Acting, reply: ask(call("two\nlines", "alpha", "{}")),
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.LLMToolCall)
				require.True(t, ok, "%T", p)
				require.Equal(t, []events.Call{{
					ID: "call_" + events.Hash([]byte("two\nlines"))[:16], Name: "alpha", Arguments: "{}", ProviderID: "two\nlines",
				}}, r.Calls)
			},
		},
		{
			name: "one after another", leadTo: events.Acting,
			start: []func(*events.Start){config(func(c *events.Config) { c.ParallelTools = false })},
			reply: ask(call("a", "alpha", "{}"), call("b", "alpha", "{}"), call("c", "alpha", "{}")),
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.LLMToolCall)
				require.True(t, ok, "%T", p)
				require.Equal(t, "a", r.Calls[0].ID)
				require.Len(t, r.Queued, 2)
			},
		},
		{
			name: "low confidence", reply: doubting(0.39, call("a", "alpha", "{}")), leadTo: events.Reflecting,
			want: &events.LowConfidence{Confidence: 0.39, Model: "m-1", Usage: used},
		},
		{name: "confidence at the threshold", reply: doubting(0.4, call("a", "alpha", "{}")), leadTo: events.Acting},
		{
			name: "low confidence without retries", reply: doubting(0.1, call("a", "alpha", "{}")), leadTo: events.Acting,
			start: []func(*events.Start){config(func(c *events.Config) { c.MaxRetries = 0 })},
		},
		{
			name: "approval of every call", reply: ask(call("a", "alpha", `{"x":1}`)), leadTo: events.WaitingForHuman,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveAlways, Expires: events.Duration(time.Hour)})},
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.HumanApprovalRequired)
				require.True(t, ok, "%T", p)
				require.Equal(t, []events.Request{{CallID: "a", Tool: "alpha", Arguments: `{"x":1}`, Risk: "low", Reason: r.Requests[0].Reason}}, r.Requests)
				require.NotEmpty(t, r.Requests[0].Reason)
				require.Equal(t, time.Now().UTC().Add(time.Hour).Format(events.TimeFormat), r.Deadline)
			},
		},
		{
			name: "a call of the least risk that is asked for", reply: ask(call("a", "pair", `{"a":1,"b":""}`)), leadTo: events.WaitingForHuman,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveAtLeast, Risk: "critical"})},
		},
		{
			name: "one risky call holds the batch", leadTo: events.WaitingForHuman,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveAbove, Risk: "high"})},
			reply: ask(call("a", "alpha", "{}"), call("b", "pair", `{"a":1,"b":""}`)),
			check: func(t *testing.T, p events.Payload) {
				r, ok := p.(*events.HumanApprovalRequired)
				require.True(t, ok, "%T", p)
				require.Len(t, r.Calls, 2)
				require.Len(t, r.Requests, 1)
				require.Equal(t, "b", r.Requests[0].CallID)
				require.Empty(t, r.Deadline)
			},
		},
		{
			name: "a policy that cannot be evaluated", reply: ask(call("a", "alpha", "{}")), leadTo: events.WaitingForHuman,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveExpr, Expr: "arguments.amount > 1"})},
			check: func(t *testing.T, p events.Payload) {
				require.Contains(t, p.(*events.HumanApprovalRequired).Requests[0].Reason, "cannot be evaluated")
			},
		},
		{
			name: "a policy that costs too much", reply: ask(call("a", "alpha", "{}")), leadTo: events.WaitingForHuman,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveExpr, Expr: "all(1..900, all(1..900, # > 0))"})},
			check: func(t *testing.T, p events.Payload) {
				require.Contains(t, p.(*events.HumanApprovalRequired).Requests[0].Reason, "it takes more than 1000000 steps with these arguments")
			},
		},
		{
			name: "low confidence goes before approval", reply: doubting(0.1, call("a", "alpha", "{}")), leadTo: events.Reflecting,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveAlways})},
		},
		{
			name: "invalid arguments go before approval", reply: ask(call("a", "pair", "{}")), leadTo: events.Planning,
			start: []func(*events.Start){approve(events.Approval{Policy: events.ApproveAlways})},
		},
		{
			name: "invalid UTF-8 in a call", reply: ask(call("\xffid", "alpha", "{\"x\":\"\xff\"}")), leadTo: events.Acting,
			check: func(t *testing.T, p events.Payload) {
				require.Equal(t, "\uFFFDid", p.(*events.LLMToolCall).Calls[0].ProviderID)
				require.Equal(t, "{\"x\":\"\uFFFD\"}", p.(*events.LLMToolCall).Calls[0].Arguments)
			},
		},
	}
}

// A provider that gives neither a reply nor an error is broken, not the run's
// log.
func TestNoReplyAtAll(t *testing.T) {
	nothing := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) { return nil, nil })
	bubbleWith(t, nothing, func(t *testing.T, r *rig) {
		run := r.begin()
		require.Equal(t, "other", r.AwaitEnd(run).Error.Code)
		require.Equal(t, []string{"Start", "LlmAttemptFailed", "FatalError"}, r.Types(run))
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	r := newBenchRig(t)
	for name, spoil := range map[string]func(*planner.Config){
		"planner: Store": func(c *planner.Config) { c.Store = nil },
		"OPENAI_API_KEY": func(c *planner.Config) { c.Providers = nil },
		"KV":             func(c *planner.Config) { c.KV = nil },
	} {
		cfg := r.config(scripted.NewMock())
		spoil(&cfg)
		_, err := planner.New(cfg)
		require.ErrorContains(t, err, name)
	}
}

// The words beside calls that were refused have the reply's id, as the live feed names it.
func TestAMessageWithRefusedCallsHasTheIDOfTheReply(t *testing.T) {
	tried := ask(call("a", "nonsense", "{}"))
	tried.Content = "I try."
	bubble(t, []any{tried, say("It is 42.")}, func(t *testing.T, r *rig) {
		run := r.begin()
		mem := r.AwaitEnd(run)
		require.Equal(t, "I try.", mem.Messages[1].Content)
		require.Equal(t, r.event(run, 2).Data.(*events.ReplyInvalid).MessageID, mem.Messages[1].ID)
	})
}
