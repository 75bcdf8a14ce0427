package scripted_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return settled{scripted.New(), settingsOf(t, conv)}.caller()
	})
}

// settled gives every request the settings of its agent.
type settled struct {
	llm.Caller
	settings json.RawMessage
}

func (s settled) caller() llm.Caller {
	return llm.CallerFunc(func(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		req.Settings = s.settings
		return s.Call(ctx, req, stream)
	})
}

func settingsOf(t *testing.T, conv llmtest.Conversation) json.RawMessage {
	script := []map[string]any{}
	for _, turn := range conv {
		e := map[string]any{}
		if turn.Err != nil {
			e["error"] = map[string]any{
				"kind": turn.Err.Kind, "message": turn.Err.Message, "retry_after_ms": turn.Err.RetryAfter.Milliseconds(),
			}
			script = append(script, e)
			continue
		}
		about := turn.Reply.About()
		e["confidence"] = about.Confidence
		e["usage"] = map[string]any{
			"input": about.Usage.Input, "output": about.Usage.Output, "cached": about.Usage.Cached, "total": about.Usage.Total,
		}
		switch r := turn.Reply.(type) {
		case llm.Text:
			e["text"] = r.Content
		case llm.Structured:
			e["text"] = r.Content
		case llm.ToolCalls:
			e["content"] = r.Content
			calls := []map[string]any{}
			for _, c := range r.Calls {
				calls = append(calls, map[string]any{"id": c.ID, "name": c.Name, "arguments": c.Arguments})
			}
			e["calls"] = calls
		}
		script = append(script, e)
	}
	raw, err := json.Marshal(map[string]any{"provider": "scripted", "script": script})
	require.NoError(t, err)
	return raw
}

func block(script string) json.RawMessage {
	return json.RawMessage(`{"provider":"scripted","script":` + script + `}`)
}

func ask(t *testing.T, req llm.Request) (llm.Response, *llm.Error) {
	t.Helper()
	res, err := scripted.New().Call(t.Context(), req, nil)
	if err == nil {
		return res, nil
	}
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	return res, e
}

func TestTheEntryIsTheNumberOfReplies(t *testing.T) {
	c := scripted.New()
	settings := block(`[{"text":"a"},{"text":"b"},{"text":"c"}]`)
	for _, n := range []int{2, 0, 1, 1, 2, 0} {
		res, err := c.Call(t.Context(), llm.Request{Settings: settings, Replies: n}, nil)
		require.NoError(t, err)
		require.Equal(t, string(rune('a'+n)), res.(llm.Text).Content)
		require.Equal(t, "scripted", res.About().Model)
		require.InDelta(t, 1.0, res.About().Confidence, 0)
	}
}

func TestCallsAndGeneratedIDs(t *testing.T) {
	res, err := ask(t, llm.Request{Replies: 1, Model: "m", Settings: block(`[{"text":"x"},
		{"content":"hm","confidence":0.3,"usage":{"input":5,"output":2,"cost_usd":0.5},"calls":[
			{"name":"a","arguments":{"n": 1.50, "b": [1, 2], "a": "<&>"}},
			{"name":"b","arguments":"{\"x\": cut"},
			{"name":"c","id":"mine"},
			{"name":"d"}]}]`)})
	require.Nil(t, err)
	got := res.(llm.ToolCalls)
	require.Equal(t, "hm", got.Content)
	require.Equal(t, []llm.Call{
		{ID: "call_2_1", Name: "a", Arguments: `{"n":1.50,"b":[1,2],"a":"<&>"}`},
		{ID: "call_2_2", Name: "b", Arguments: `{"x": cut`},
		{ID: "mine", Name: "c", Arguments: "{}"},
		{ID: "call_2_4", Name: "d", Arguments: "{}"},
	}, got.Calls)
	require.Equal(t, "m", got.Model)
	require.InDelta(t, 0.3, got.Confidence, 0)
	require.Equal(t, 7, got.Usage.Total)
	require.InDelta(t, 0.5, *got.Usage.CostUSD, 0)
}

// An entry's confidence of 0 is one that was given.
func TestZeroConfidence(t *testing.T) {
	res, err := ask(t, llm.Request{Settings: block(`[{"calls":[{"name":"a"}],"confidence":0}]`)})
	require.Nil(t, err)
	require.Zero(t, res.About().Confidence)
	require.True(t, res.About().ZeroConfidence)
}

func TestReferencesToObservations(t *testing.T) {
	quotes := "line \"one\"\n\ttab \\ ü <b>"
	observations := []string{"first", quotes, "42"}
	tests := []struct{ name, script, want string }{
		{"last in text", `[{"text":"it is {{observation -1}}."}]`, "it is 42."},
		{"first, last but one, white space", `[{"text":"{{observation 1}} {{ observation  -2 }}"}]`, "first " + quotes},
		{"object", `[{"calls":[{"name":"f","arguments":{"q":"see {{observation 2}}!"}}]}]`,
			`{"q":"see line \"one\"\n\ttab \\ ü <b>!"}`},
		{"string, inside a literal", `[{"calls":[{"name":"f","arguments":"{\"q\": \"{{observation 2}}\"}"}]}]`,
			`{"q": "line \"one\"\n\ttab \\ ü <b>"}`},
		{"string, outside a literal", `[{"calls":[{"name":"f","arguments":"{\"n\": {{observation -1}}, \"q\":\"\\\"{{observation -2}}\"}"}]}]`,
			`{"n": 42, "q":"\"line \"one\"\n\ttab \\ ü <b>"}`},
		{"several in one", `[{"calls":[{"name":"f","arguments":{"e":"{{observation 3}} + {{observation -1}}","k":"{{observation 1}}"}}]}]`,
			`{"e":"42 + 42","k":"first"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := ask(t, llm.Request{Settings: block(tt.script), Observations: observations})
			require.Nil(t, err)
			if calls, ok := res.(llm.ToolCalls); ok {
				require.True(t, json.Valid([]byte(calls.Calls[0].Arguments)), calls.Calls[0].Arguments)
				require.JSONEq(t, tt.want, calls.Calls[0].Arguments)
				return
			}
			require.Equal(t, tt.want, res.(llm.Text).Content)
		})
	}
}

func TestAnObservationIsNotExpandedAgain(t *testing.T) {
	res, err := ask(t, llm.Request{
		Settings: block(`[{"text":"{{observation 1}}"}]`), Observations: []string{"{{observation 1}}"},
	})
	require.Nil(t, err)
	require.Equal(t, "{{observation 1}}", res.(llm.Text).Content)
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name string
		req  llm.Request
		want llm.Error
	}{
		{"used up", llm.Request{Settings: block(`[{"text":"a"}]`), Replies: 1},
			llm.Error{Kind: llm.KindInvalid, Message: "no more programmed responses: the script has 1, and number 2 was asked for"}},
		{"empty script", llm.Request{Settings: block(`[]`)},
			llm.Error{Kind: llm.KindInvalid, Message: "no more programmed responses"}},
		{"negative", llm.Request{Settings: block(`[{"text":"a"}]`), Replies: -1},
			llm.Error{Kind: llm.KindInvalid, Message: "no more programmed responses"}},
		{"reflection", llm.Request{Settings: block(`[{"text":"a"}]`), Purpose: llm.PurposeReflect},
			llm.Error{Kind: llm.KindInvalid, Message: "no reflections"}},
		{"observation to come", llm.Request{Settings: block(`[{"text":"{{observation -2}}"}]`), Observations: []string{"x"}},
			llm.Error{Kind: llm.KindInvalid, Message: "script[0]: there is no observation -2: the run has 1 so far"}},
		{"observation to come, in arguments",
			llm.Request{Settings: block(`[{"calls":[{"name":"f","arguments":{"a":"{{observation 1}}"}}]}]`)},
			llm.Error{Kind: llm.KindInvalid, Message: "there is no observation 1"}},
		{"no settings", llm.Request{}, llm.Error{Kind: llm.KindInvalid, Message: "needs a script"}},
		{"programmed", llm.Request{Settings: block(`[{"error":{"kind":"rate_limited","message":"slow","retry_after_ms":1500}}]`)},
			llm.Error{Kind: llm.KindRateLimited, Message: "slow", RetryAfter: 1500 * time.Millisecond}},
		{"programmed without words", llm.Request{Settings: block(`[{"error":{"kind":"network"}}]`)},
			llm.Error{Kind: llm.KindNetwork, Message: "programmed error"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := ask(t, tt.req)
			require.Nil(t, res)
			require.Equal(t, tt.want.Kind, err.Kind)
			require.Contains(t, err.Message, tt.want.Message)
			require.Equal(t, tt.want.RetryAfter, err.RetryAfter)
		})
	}
}

// A script says how its replies end and what the model reasoned. A reply that is cut off has
// a rest, or stays cut off.
func TestEndings(t *testing.T) {
	settings := block(`[{"text":"It is 4","finish":"length","reasoning":[{"kind":"text","text":"Six times seven."},{"kind":"opaque","data":{"s":1.0}}],
		"rest":{"text":"2.","usage":{"total":3}}},{"text":"I","finish":"length"}]`)
	whole, err := ask(t, llm.Request{Settings: settings})
	require.Nil(t, err)
	require.Equal(t, llm.FinishLength, whole.About().Finish)
	require.Equal(t, events.Reasoning{
		{Kind: events.ReasoningText, Text: "Six times seven."}, {Kind: events.ReasoningOpaque, Data: json.RawMessage(`{"s":1.0}`)},
	}, whole.About().Reasoning)
	rest, err := ask(t, llm.Request{Settings: settings, Rest: true})
	require.Nil(t, err)
	require.Equal(t, llm.Text{Content: "2.", Meta: llm.Meta{Model: "scripted", Confidence: 1, Usage: llm.Usage{Input: 3, Total: 3}}}, rest)
	none, err := ask(t, llm.Request{Settings: settings, Replies: 1, Rest: true})
	require.Nil(t, err)
	require.Equal(t, llm.Text{Meta: llm.Meta{Model: "scripted", Confidence: 1, Finish: llm.FinishLength}}, none)
}

func TestStreamsWordByWord(t *testing.T) {
	var words []string
	_, err := scripted.New().Call(t.Context(), llm.Request{Settings: block(`[{"text":"one two three"}]`)},
		func(c llm.Chunk) { words = append(words, c.Text) })
	require.NoError(t, err)
	require.Equal(t, []string{"one ", "two ", "three"}, words)
}

// TestManyScripts has more scripts than the cache holds, in parallel.
func TestManyScripts(t *testing.T) {
	c := scripted.New()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 600 {
				want := fmt.Sprintf("script %d", (i*7+g)%400)
				res, err := c.Call(t.Context(), llm.Request{Settings: block(`[{"text":"` + want + `"}]`)}, nil)
				if err != nil || res.(llm.Text).Content != want {
					t.Errorf("got %v, %v, want %q", res, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLongScript(b *testing.B) {
	settings := block("[" + strings.Repeat(`{"calls":[{"name":"f","arguments":{"a":1}}]},`, 200) + `{"text":"end"}]`)
	c := scripted.New()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(b.Context(), llm.Request{Settings: settings, Replies: 200}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func TestMockConformance(t *testing.T) {
	llmtest.Run(t, func(_ *testing.T, conv llmtest.Conversation) llm.Caller {
		var replies []any
		for _, turn := range conv {
			if turn.Err != nil {
				replies = append(replies, turn.Err)
			} else {
				replies = append(replies, turn.Reply)
			}
		}
		return scripted.NewMock(replies...)
	})
}

func TestMockCountsAndRemembers(t *testing.T) {
	broken := errors.New("broken")
	m := scripted.NewMock(scripted.Ask("f", `{"a":1}`), broken, scripted.Say("done"))
	require.Zero(t, m.CallCount())
	require.Empty(t, m.ModelForCall(0))

	res, err := m.Call(t.Context(), llm.Request{Model: "one"}, nil)
	require.NoError(t, err)
	require.Equal(t, llm.ToolCalls{
		Meta:  llm.Meta{Model: "one"},
		Calls: []llm.Call{{ID: "call_1_1", Name: "f", Arguments: `{"a":1}`}},
	}, res)
	_, err = m.Call(t.Context(), llm.Request{Model: "two"}, nil)
	require.ErrorIs(t, err, broken)
	res, err = m.Call(t.Context(), llm.Request{Messages: []llm.Message{{Content: "hi"}}}, nil)
	require.NoError(t, err)
	require.Equal(t, llm.Text{Meta: llm.Meta{Model: "scripted"}, Content: "done"}, res)

	_, err = m.Call(t.Context(), llm.Request{}, nil)
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, llm.KindInvalid, e.Kind)
	require.Contains(t, e.Message, "no more programmed responses")

	require.Equal(t, 4, m.CallCount())
	require.Equal(t, "one", m.ModelForCall(0))
	require.Equal(t, "two", m.ModelForCall(1))
	require.Empty(t, m.ModelForCall(-1))
	require.Equal(t, "hi", m.Requests()[2].Messages[0].Content)
}

func TestMockGivesEveryReplyOnce(t *testing.T) {
	const n = 100
	var replies []any
	for range n {
		replies = append(replies, scripted.Say("x"))
	}
	m := scripted.NewMock(replies...)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := m.Call(t.Context(), llm.Request{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, n, m.CallCount())
	_, err := m.Call(t.Context(), llm.Request{}, nil)
	require.ErrorContains(t, err, "no more programmed responses")
}

func TestMockTakesNothingAfterTheEndOfItsContext(t *testing.T) {
	m := scripted.NewMock(scripted.Say("x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.Call(ctx, llm.Request{}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, m.CallCount())
}

func TestMockRefusesOtherReplies(t *testing.T) {
	require.PanicsWithValue(t, "scripted.NewMock: reply 1 is a string, neither an llm.Response nor an error", func() {
		scripted.NewMock(scripted.Say("x"), "y")
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
