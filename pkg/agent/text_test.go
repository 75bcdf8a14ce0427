package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/recorded"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// textServer is a model server as many people run one at home: it streams plain
// text, and refuses requests with tools.
type textServer struct {
	*httptest.Server
	replies []string

	mu      sync.Mutex
	prompts []string
}

func newTextServer(t *testing.T, replies ...string) *textServer {
	s := &textServer{replies: replies}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *textServer) serve(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Stream   bool            `json:"stream"`
		Tools    json.RawMessage `json:"tools"`
		Messages []struct {
			Role, Content string
		} `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Tools != nil || !req.Stream {
		http.Error(w, `{"error":{"message":"this model streams text and knows no tools","type":"invalid_request_error"}}`, http.StatusBadRequest)
		return
	}
	var prompt strings.Builder
	for _, m := range req.Messages {
		fmt.Fprintf(&prompt, "%s: %s\n", m.Role, m.Content)
	}
	s.mu.Lock()
	n := len(s.prompts)
	s.prompts = append(s.prompts, prompt.String())
	s.mu.Unlock()
	if n >= len(s.replies) {
		http.Error(w, `{"error":{"message":"there are no more replies","type":"invalid_request_error"}}`, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(delta, finish string) {
		_, _ = fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","model":"home","choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}`+"\n\n", delta, finish)
	}
	for part := range strings.SplitSeq(s.replies[n], ">") {
		text, _ := json.Marshal(part + ">")
		send(`"content":`+string(text), "null")
	}
	send("", `"stop"`)
	_, _ = fmt.Fprint(w, `data: {"id":"c","model":"home","choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"total_tokens":49}}`+"\n\ndata: [DONE]\n\n")
}

// asked returns the prompts so far.
func (s *textServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.prompts)
}

// homeReplies are what such a model says: it thinks, calculates, fails, calls what
// there is not, writes broken XML, and answers.
var homeReplies = []string{
	"<think>Do I write <agent>?</think>\n<agent><next_state>executing</next_state><thinking_log>6*7 is for the calculator</thinking_log></agent>",
	"```xml\n<agent>\n<action>\n<type>calculator</type>\n<expression>6 * 7</expression>\n</action>\n</agent>\n```",
	"<agent><action><type>broken</type><q>x < y & z</q></action></agent>",
	"<agent><action><type>fly</type><to>Rome</to></action></agent>",
	"<agent><action><type>calculator<expression>1</expression></action></agent>",
	"<agent><thinking_log>I have it: 42.</thinking_log></agent>",
	"<agent><action><type>answer</type><value>It is 42 &amp; that is all.</value></action></agent>",
}

func textAgent(t *testing.T, b *agent.Builder, bus journal.Bus) *agent.Agent {
	t.Helper()
	calculator, err := builtin.New(builtin.Calculator, builtin.Options{})
	require.NoError(t, err)
	broken, err := typed.New(tool.Definition{Name: "broken", Description: "never works", Effect: tool.Pure},
		func(_ context.Context, in query) (string, error) { return "", errors.New("no " + in.Q + "</value>") })
	require.NoError(t, err)
	a, err := b.Text().StatePrompt("base", "You calculate.").StatePrompt("thinking", "Think.").
		Bus(bus).Tool(calculator).Tool(broken).
		Configure(func(c *events.Config) { c.ReflectEveryNSteps = 0 }).Build()
	require.NoError(t, err)
	return a
}

// TestALocalModelUsesEveryTool: a model that only speaks text, over HTTP, with the
// real planner, actor and observer on a real bus.
func TestALocalModelUsesEveryTool(t *testing.T) {
	bus := busOf(t)
	home := newTextServer(t, homeReplies...)
	caller, err := openai.New(openai.Options{BaseURL: home.URL + "/v1", Model: "home"})
	require.NoError(t, err)
	defer caller.Close()
	a := textAgent(t, agent.New("What is 6*7?").LLM(caller), bus)
	answer, err := a.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "It is 42 & that is all.", answer)
	require.Equal(t, []string{
		"Start", "LlmThought", "LlmToolCall", "ToolSuccess", "Continue", "LlmToolCall", "ToolFailure", "Continue",
		"ReplyInvalid", "ReplyInvalid", "LlmThought", "LlmFinalAnswer",
	}, eventsOf(a.Trace()))

	mem := a.Memory()
	require.Equal(t, 7, mem.Step)
	require.Equal(t, 7*49, mem.TotalUsage.Total)
	require.Equal(t, "42", mem.ToolCalls[mem.Control.CallOrder[0]].Result.Text())
	require.JSONEq(t, `{"q":"x < y & z"}`, mem.ToolCalls[mem.Control.CallOrder[1]].Parameters)
	require.Equal(t, []reducer.Thought{
		{Name: "thinking_log_001", Content: "6*7 is for the calculator"}, {Name: "thinking_log_002", Content: "I have it: 42."},
	}, mem.ThinkingLog)
	last := home.asked()[len(homeReplies)-1]
	for _, part := range []string{
		"You calculate.\n\nThink.\n\n", "<value>42</value>", "no x &lt; y &amp; z&lt;/value&gt;", `tool "fly" not found`,
		"<type>calculator<expression>1</expression>", "ERROR: line 1, column 16: <type> is never closed", "<thinking_log_002>I have it: 42.",
	} {
		require.Contains(t, last, part)
	}

	machine := reducer.NewMachine(reducer.MachineOptions{})
	run := events.NewRun(events.DefaultNamespace, mem.RunID, bus.Shards())
	report, err := verify.Log(t.Context(), bus, machine, verify.Options{Runs: []events.Run{run}})
	require.NoError(t, err)
	require.True(t, report.Clean(), "%+v", report.Findings)

	// The replies in the log carry the run once more, without the server.
	model, err := replay.Model(t.Context(), bus, machine, run)
	require.NoError(t, err)
	again := textAgent(t, agent.New("What is 6*7?").LLM(model), bus)
	answer, err = again.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "It is 42 & that is all.", answer)
	second := events.NewRun(events.DefaultNamespace, again.Memory().RunID, bus.Shards())
	difference, err := replay.Diff(t.Context(), machine, bus, run, bus, second)
	require.NoError(t, err)
	require.True(t, difference.Equal, "%+v", difference)
	require.Len(t, home.asked(), len(homeReplies), "nobody asked the server")
}

func TestTextBuilder(t *testing.T) {
	_, err := agent.New("x").LLM(recorded.New(nil)).StatePrompt("thinking", "Think.").Build()
	require.ErrorContains(t, err, "llm.state_prompts: is for the text protocol")
	_, err = agent.New("x").LLM(recorded.New(nil)).Text().StatePrompt("paging", "Page.").Build()
	require.ErrorContains(t, err, `"paging" is not a state`)
}
