package agent_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// The further tests of SPEC A92, by their names, over a real embedded server.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"approval":           approval,
		"rejection":          rejection,
		"modification":       modification,
		"token_accumulation": tokenAccumulation,
		"budget":             budget,
		"parallel_timing":    parallelTiming,
		"sub_agent":          subAgent,
		"nested_sub_agent":   nestedSubAgent,
		"retry_recovers":     retryRecovers,
		"auth_fails_fast":    authenticationFailsFast,
		"custom_graph":       customGraph,
		"custom_terminal":    customTerminalState,
		"streaming":          streaming,
		"structured_output":  structuredOutput,
		"mcp":                mcpTools,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// decided runs an agent whose one call waits for a human, who decides.
func decided(t *testing.T, d events.Decision) (mock *scripted.Mock, answer string, mem *agent.Memory) {
	t.Helper()
	mock = scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("the answer"))
	a := build(t, mock, func(b *agent.Builder) { b.Approval(events.Approval{Policy: "always"}) })
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	waiting := 0
	for call, err := range r.Approvals(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "search", call.Tool)
		d.CallID = call.CallID
		require.NoError(t, r.Decide(t.Context(), d))
		waiting++
	}
	require.Equal(t, 1, waiting)
	answer, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Release())
	return mock, answer, r.Memory()
}

func approval(t *testing.T) {
	_, answer, mem := decided(t, events.Decision{Decision: events.DecisionApproved})
	require.Equal(t, "the answer", answer)
	require.Equal(t, "SUCCESS: found it", mem.History[0].Observation)
}

func rejection(t *testing.T) {
	mock, _, mem := decided(t, events.Decision{Decision: events.DecisionRejected, Reason: "not today", By: "ann"})
	require.Equal(t, "REJECTED: not today", mem.History[0].Observation)
	require.False(t, mem.History[0].Success)
	last := mock.Requests()[1].Messages
	require.Equal(t, "REJECTED: not today", last[len(last)-1].Content)
}

func modification(t *testing.T) {
	_, _, mem := decided(t, events.Decision{Decision: events.DecisionModified, Arguments: `{"q":"b"}`})
	require.JSONEq(t, `{"q":"b"}`, mem.History[0].Tool.Arguments)
	require.True(t, mem.History[0].Success)
}

// using is a reply that used so many tokens.
func using(r llm.Response, input, out int) llm.Response {
	meta := llm.Meta{Confidence: 1, Usage: llm.Usage{Input: input, Output: out, Total: input + out}}
	switch r := r.(type) {
	case llm.Text:
		r.Meta = meta
		return r
	case llm.ToolCalls:
		r.Meta = meta
		return r
	}
	return r
}

func tokenAccumulation(t *testing.T) {
	a := build(t, scripted.NewMock(using(scripted.Ask("search", `{"q":"a"}`), 100, 10), using(scripted.Say("the answer"), 150, 20)), nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	used := a.Memory().TotalUsage
	require.Equal(t, []int{250, 30, 280}, []int{used.Input, used.Output, used.Total})
}

func budget(t *testing.T) {
	mock := scripted.NewMock(using(scripted.Ask("search", `{"q":"a"}`), 900, 50), scripted.Say("never asked"))
	a := build(t, mock, func(b *agent.Builder) { b.Budget(events.Budget{MaxTotalTokens: 960}) })
	_, err := a.Run(t.Context(), task)
	var failed *agent.Failed
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "budget_total_tokens", failed.Code)
	require.Equal(t, 1, mock.CallCount())
}

// parallelTiming: neither call waits for the other one's end. What that takes is in
// internal/actor's TestParallelCallsRunAtOnce, whose time does not depend on the machine.
func parallelTiming(t *testing.T) {
	var begun atomic.Int64
	both := make(chan struct{})
	slow := agent.Func("slow", "Ends when two of it have begun.", func(ctx context.Context, _ query) (string, error) {
		if begun.Add(1) == 2 {
			close(both)
		}
		select {
		case <-both:
			return "done", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}, agent.Pure)
	mock := scripted.NewMock(llm.ToolCalls{Calls: []llm.Call{
		{ID: "a", Name: "slow", Arguments: `{"q":"1"}`}, {ID: "b", Name: "slow", Arguments: `{"q":"2"}`},
	}}, scripted.Say("the answer"))
	a := build(t, mock, func(b *agent.Builder) { b.Tool(slow) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := a.Run(ctx, task)
	require.NoError(t, err)
}

// streaming: the words come before the answer that they make.
func streaming(t *testing.T) {
	var said, answer strings.Builder
	words := make(chan struct{}, 100)
	model := llm.CallerFunc(func(_ context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		for _, word := range []string{"one ", "two ", "three"} {
			stream(llm.Chunk{Kind: llm.ChunkText, Text: word})
			<-words // the word was shown before the reply was complete
		}
		return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "one two three"}, nil
	})
	r, err := build(t, model, nil).Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	for o, err := range r.Outputs(t.Context()) {
		require.NoError(t, err)
		switch o := o.Output.(type) {
		case agent.LLMToken:
			said.WriteString(o.Text)
			words <- struct{}{}
		case agent.FinalAnswer:
			answer.WriteString(o.Content)
		}
	}
	require.NoError(t, r.Release())
	require.Equal(t, "one two three", said.String())
	require.Equal(t, "one two three", answer.String())
}

func structuredOutput(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	mock := scripted.NewMock(scripted.Say("forty-two"), llm.Structured{Content: `{"n":42}`})
	a := build(t, mock, func(b *agent.Builder) { b.OutputSchema(schema) })
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.JSONEq(t, `{"n":42}`, answer)
	require.Equal(t, []string{"Start", "ReplyInvalid", "LlmFinalAnswer"}, eventsOf(a.Trace()))
	require.JSONEq(t, string(schema), string(mock.Requests()[0].OutputSchema))
}
