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

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
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

func textAgent(t *testing.T, b *agent.Builder, bus journal.Bus) *watched {
	t.Helper()
	calculator, err := builtin.New(builtin.Calculator, builtin.Options{})
	require.NoError(t, err)
	broken, err := typed.New(tool.Definition{Name: "broken", Description: "never works", Effect: tool.Pure},
		func(_ context.Context, in query) (string, error) { return "", errors.New("no " + in.Q + "</value>") })
	require.NoError(t, err)
	return built(t, b.Text().StatePrompt("base", "You calculate.").StatePrompt("thinking", "Think.").
		Bus(bus).Tool(calculator).Tool(broken).ReflectEvery(0))
}

// TestALocalModelUsesEveryTool: a model that only speaks text, over HTTP, with the
// real planner, actor and observer on a real bus.
func TestALocalModelUsesEveryTool(t *testing.T) {
	t.Parallel()
	bus := busOf(t)
	home := newTextServer(t, homeReplies...)
	caller, err := openai.New(openai.Options{BaseURL: home.URL + "/v1", Model: "home"})
	require.NoError(t, err)
	defer caller.Close()
	a := textAgent(t, agent.New("agent").LLM(caller), bus)
	answer, err := a.Run(t.Context(), task)
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
	again := textAgent(t, agent.New("agent").LLM(model), bus)
	answer, err = again.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "It is 42 & that is all.", answer)
	second := events.NewRun(events.DefaultNamespace, again.Memory().RunID, bus.Shards())
	difference, err := replay.Diff(t.Context(), machine, bus, run, bus, second)
	require.NoError(t, err)
	require.True(t, difference.Equal, "%+v", difference)
	require.Len(t, home.asked(), len(homeReplies), "nobody asked the server")
}

// A model that refuses is followed by the next one.
func TestFallback(t *testing.T) {
	t.Parallel()
	refusing := llm.Text{Content: "I will not.", Meta: llm.Meta{Finish: llm.FinishRefusal}}
	first := scripted.NewMock(refusing)
	spare := scripted.NewMock(scripted.Say("It is 42."))
	a, err := agent.New("agent").LLM(first).Provider("spare", spare).Model("big", "spare/vendor/large", "small").Build()
	require.NoError(t, err)
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "It is 42.", answer)
	require.Equal(t, []string{"big", "vendor/large"}, []string{first.ModelForCall(0), spare.ModelForCall(0)})
}

const iterations = 300

// rememberer is a model that remembers one thing after the other, and loads and
// forgets some.
func rememberer(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	meta := llm.Meta{Confidence: 1}
	i := req.Replies
	if i >= iterations {
		return llm.Text{Meta: meta, Content: "I remember all of it."}, nil
	}
	arguments := map[string]any{"tags": fmt.Sprintf("fact, n %d", i), "value": strings.Repeat(fmt.Sprintf("fact %d. ", i), 40)}
	name := "working_memory_add"
	switch i % 10 {
	case 3, 7:
		name = "storage_save"
	case 5:
		name, arguments = "storage_load", map[string]any{"tags": []string{fmt.Sprint("n ", i/2)}}
	case 8:
		name, arguments = "working_memory_remove", map[string]any{"tags": fmt.Sprintf("n %d, fact", i-2)}
	}
	text, err := json.Marshal(arguments)
	return llm.ToolCalls{Meta: meta, Calls: []llm.Call{{ID: fmt.Sprint("c", i), Name: name, Arguments: string(text)}}}, err
}

// A run whose memory goes far beyond its limits keeps within them, loses nothing,
// and is replayed without its storage.
func TestMemoryBeyondEveryLimit(t *testing.T) {
	t.Parallel()
	bus := busOf(t)
	b := agent.New("keeper").LLM(llm.CallerFunc(rememberer)).Bus(bus).
		MaxSteps(2*iterations).WorkingMemory(400, 600).ReflectEvery(0)
	for _, name := range builtin.MemoryNames() {
		made, err := builtin.New(name, builtin.Options{})
		require.NoError(t, err)
		b.Tool(made)
	}
	made := built(t, b)
	answer, err := made.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "I remember all of it.", answer)

	run := events.NewRun(events.DefaultNamespace, made.Memory().RunID, bus.Shards())
	machine := reducer.NewMachine(reducer.MachineOptions{})
	mem := machine.Initial(run.ID)
	saved, pagings := map[string]string{}, 0
	for rec, err := range bus.Read(t.Context(), run, 0) {
		require.NoError(t, err)
		e, err := machine.Apply(mem, rec.Subject, rec.Body)
		require.NoError(t, err)
		switch p := e.Data.(type) {
		case *events.WorkingMemoryAdded:
			saved[strings.Join(p.Tags, " ")] = p.Value
		case *events.StorageSaved:
			saved[strings.Join(p.Tags, " ")] = p.Value
		case *events.WorkingMemoryRemoved:
			delete(saved, strings.Join(p.Tags, " "))
		case *events.PageDone:
			pagings++
			require.LessOrEqual(t, reducertest.WorkingMemoryTokens(mem), 320)
		}
	}
	require.Greater(t, pagings, 20)
	require.Greater(t, len(saved), 200)
	of := entrystore.Owner{Namespace: run.Namespace, Agent: "keeper"}
	for tags, value := range saved {
		set := strings.Fields(tags)
		there, err := entrystore.New(bus).Find(t.Context(), of, entrystore.Query{Tags: set})
		require.NoError(t, err)
		if held := slices.IndexFunc(mem.WorkingMemory, func(e reducer.MemoryEntry) bool { return slices.Equal(e.Tags, set) }); held >= 0 {
			require.Equal(t, value, mem.WorkingMemory[held].Value)
			continue
		}
		require.Equal(t, []events.Entry{{Tags: set, Value: value}}, there.Entries)
	}
	report, err := verify.Log(t.Context(), bus, machine, verify.Options{Runs: []events.Run{run}})
	require.NoError(t, err)
	require.True(t, report.Clean(), "%+v", report)
}

// An application has estimators of its own; a name that nobody registered is an
// error when the run is to start.
func TestEstimatorOfOnesOwn(t *testing.T) {
	t.Parallel()
	say := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
		return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "the answer"}, nil
	})
	bus := busOf(t)
	with := func(name string, budget int) *agent.Builder {
		return agent.New("agent").LLM(say).Bus(bus).Budget(events.Budget{MaxInputTokens: budget}).
			Estimator("dear", func(string) int { return 1000 }).TokenEstimator(name)
	}
	for name, want := range map[string]string{
		"": "", tokens.Bytes4: "", tokens.O200K: "", "dear": "the budget of 500 input tokens is used up",
		"o201k": `config.token_estimator: "o201k" is not known; there are: bytes/4, dear, o200k`,
	} {
		made, err := with(name, 500).Build()
		require.NoError(t, err)
		_, err = made.Run(t.Context(), task)
		if want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}

// A whole run over Anthropic's format and a real bus: calls of a tool with a dot
// in its name, in parallel and alone, one that fails, thinking that comes back
// with the calls, and the cache's reads in the sum.
func TestRunOverAnthropic(t *testing.T) {
	t.Parallel()
	about := func(input, cached, output int) llm.Meta {
		return llm.Meta{Model: "claude-test", Confidence: 1, Usage: llm.Usage{Input: input, Cached: cached, Output: output, Total: input + output}}
	}
	find := func(id, q string) llm.Call {
		return llm.Call{ID: id, Name: "library_find", Arguments: `{"q":"` + q + `"}`}
	}
	model := llmtest.NewModel(llmtest.Anthropic{},
		llmtest.Turn{Thinking: "Both at once.", Reply: llm.ToolCalls{Meta: about(100, 0, 20), Content: "I look.", Calls: []llm.Call{find("toolu_1", "one"), find("toolu_2", "none")}}},
		llmtest.Turn{Thinking: "One more.", Reply: llm.ToolCalls{Meta: about(150, 90, 10), Calls: []llm.Call{find("toolu_3", "three")}}},
		llmtest.Turn{Reply: llm.Text{Meta: about(180, 140, 5), Content: "All was looked up."}},
	)
	caller, err := anthropic.New(anthropic.Options{APIKey: "sk-ant-secret-0123456789", BaseURL: model.Serve(t), Model: "claude-test"})
	require.NoError(t, err)
	t.Cleanup(caller.Close)

	look := agent.Func("library.find", "Finds.", func(_ context.Context, in query) (string, error) {
		if in.Q == "none" {
			return "", tool.Failf("not_there", "there is no %s", in.Q)
		}
		return "found " + in.Q, nil
	}, agent.Pure)
	a := built(t, agent.New("agent").LLM(caller).ThinkingTokens(1024).Tool(look))
	_, err = a.Run(t.Context(), task)
	require.NoError(t, err)
	mem := a.Memory()
	require.Equal(t, "All was looked up.", *mem.FinalAnswer)
	require.Equal(t, reducer.TotalUsage{Input: 430, Output: 35, Cached: 230, Total: 465}, mem.TotalUsage)
	require.Equal(t, "library.find", mem.ToolCalls["toolu_1"].Name, "the log has the tool's own name")

	requests := model.Requests()
	require.Len(t, requests, 3)
	var last struct {
		Messages []struct {
			Role    string           `json:"role"`
			Content []map[string]any `json:"content"`
		} `json:"messages"`
	}
	require.NoError(t, json.Unmarshal(requests[2], &last))
	var shape [][]string
	for _, m := range last.Messages {
		kinds := []string{m.Role}
		for _, b := range m.Content {
			kinds = append(kinds, b["type"].(string))
		}
		shape = append(shape, kinds)
	}
	require.Equal(t, [][]string{
		{"user", "text"},
		{"assistant", "thinking", "redacted_thinking", "text", "tool_use", "tool_use"},
		{"user", "tool_result", "tool_result"},
		{"assistant", "thinking", "redacted_thinking", "tool_use"},
		{"user", "tool_result"},
	}, shape)
	first, second, third := last.Messages[1].Content, last.Messages[2].Content, last.Messages[3].Content
	require.Equal(t, map[string]any{"type": "thinking", "thinking": "Both at once.", "signature": llmtest.Signature}, first[0])
	require.Equal(t, "One more.", third[0]["thinking"])
	require.Nil(t, second[0]["is_error"])
	require.Equal(t, true, second[1]["is_error"])
	require.NotContains(t, string(requests[2]), "library.find")
}
