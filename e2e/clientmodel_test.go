package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clientAgent is an agent whose model is its client.
func clientAgent(mode string, tools ...string) map[string]any {
	return map[string]any{"name": "outside", "mode": mode, "llm": map[string]any{"provider": "client"}, "tools": tools}
}

// playing is a player that always answers.
type playing func(r *chatRequest) modelReply

func (p playing) reply(r *chatRequest) (modelReply, error) { return p(r), nil }

// modelRequest is what a model is asked.
type modelRequest struct {
	Key      string          `json:"key"`
	N        uint64          `json:"n"`
	Dialect  string          `json:"dialect"`
	Model    string          `json:"model"`
	Messages json.RawMessage `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	Sampling map[string]any  `json:"sampling"`
	Exact    *bool           `json:"exact"`
}

// pendingRequest waits until the run waits for a reply to another request than that of the key.
func (a *api) pendingRequest(ctx context.Context, run, but string) (r modelRequest) {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		r = modelRequest{}
		return a.get(ctx, "/v1/runs/"+run+"/request", &r) == nil && r.Key != but
	}, startTime, 10*time.Millisecond, "nothing is pending")
	return r
}

// post posts inputs as they stand and returns the status and the code of a refusal.
func (a *api) post(ctx context.Context, run, inputs string) (status int, code string) {
	a.t.Helper()
	err := a.call(ctx, http.MethodPost, "/v1/runs/"+run+"/inputs", []byte(inputs), nil)
	var refused *apiError
	if errors.As(err, &refused) {
		return refused.Status, refused.Code
	}
	require.NoError(a.t, err)
	return http.StatusOK, ""
}

// requirePost posts inputs that have to be answered so.
func (a *api) requirePost(ctx context.Context, run, inputs string, status int, code string) {
	a.t.Helper()
	gotStatus, gotCode := a.post(ctx, run, inputs)
	require.Equal(a.t, fmt.Sprint(status, code), fmt.Sprint(gotStatus, gotCode), inputs)
}

func (a *api) begin(ctx context.Context, agent any, task string) (run string) {
	a.t.Helper()
	run = newRunID()
	require.NoError(a.t, a.start(ctx, runRequest{Agent: agent, Task: task, RunID: run}))
	return run
}

// awaitState waits until the run is in the state.
func (a *api) awaitState(ctx context.Context, run, state string) (v *runView) {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		var err error
		v, err = a.view(ctx, run)
		return err == nil && v.State == state
	}, startTime, 10*time.Millisecond, "the run does not get to %s", state)
	return v
}

// TestClientModel: a model that is the run's own client answers over HTTP, while processes are
// killed. The inputs of seed C are posted as they stand there.
func TestClientModel(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{planners: 2, gateways: 2, ackWait: quickAckWait, tools: []string{"search"}})
	c.tools.handle("search", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "found") })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	other := newAPI(t, "http://"+c.gatewayAddresses[1])
	other.awaitReady()
	t.Run("seed", func(t *testing.T) { testSeedReplies(ctx, t, c) })
	t.Run("race", func(t *testing.T) { testReplyRace(ctx, t, c, other) })
	t.Run("pools", func(t *testing.T) { testReplyOfSeveralPools(ctx, t, c) })
	t.Run("stream", func(t *testing.T) { testRequestStream(ctx, t, c) })
	t.Run("expired", func(t *testing.T) { testReplyExpires(ctx, t, c) })
	t.Run("no planner", func(t *testing.T) { testReplyWithoutPlanner(ctx, t, c) })
	t.Run("no gateway", func(t *testing.T) { testReplyAfterGateway(ctx, t, c, other) })
	t.Run("asked", func(t *testing.T) { testWhatWasAsked(ctx, t, c) })
	c.verifyAll()
}

// testSeedReplies posts the inputs of a model word for word.
func testSeedReplies(ctx context.Context, t *testing.T, c *cluster) {
	run := c.api.begin(ctx, clientAgent("chat", "search"), "hello")
	first := c.api.pendingRequest(ctx, run, "")
	require.EqualValues(t, 1, first.N)
	require.Equal(t, "client", first.Dialect)
	require.JSONEq(t, `[{"role":"user","content":"hello"}]`, string(first.Messages))
	require.Contains(t, string(first.Tools), `"name":"search"`)
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"msg-2"}]`, 422, "no_content")
	started := `[{"type": "tool-call-started", "toolCallId": "tool-1", "name": "search", "parameters": "{\"query\":\"example\"}", "timestamp": 1732334400000}]`
	c.api.requirePost(ctx, run, started, 200, "")
	c.api.requirePost(ctx, run, started, 200, "")
	second := c.api.pendingRequest(ctx, run, first.Key)
	require.Contains(t, string(second.Messages), "found")
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"late","content":"x","key":"`+first.Key+`"}]`, 409, "obsolete")

	require.NoError(t, c.api.call(ctx, http.MethodPost, "/v1/runs/"+run+"/pause", nil, nil))
	chunk := `[{"type": "llm-chunk", "messageId": "msg-2", "chunk": "Hello, "}]`
	c.api.requirePost(ctx, run, chunk, 409, "paused")
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m","content":"x","key":"`+second.Key+`"}]`, 409, "paused")
	require.NoError(t, c.api.call(ctx, http.MethodPost, "/v1/runs/"+run+"/resume", nil, nil))
	require.Equal(t, second.Key, c.api.pendingRequest(ctx, run, "").Key, "a pause changes nothing")

	c.api.requirePost(ctx, run, chunk, 200, "")
	c.api.requirePost(ctx, run, `[{"type": "llm-chunk", "messageId": "msg-2", "chunk": "world"}]`, 200, "")
	complete := `[{"type": "llm-message-complete", "messageId": "msg-2"}]`
	c.api.requirePost(ctx, run, complete, 200, "")
	c.api.requirePost(ctx, run, complete, 200, "")
	v := c.api.awaitState(ctx, run, "waiting_for_user")
	require.Equal(t, "Hello, world", v.Memory.Messages[len(v.Memory.Messages)-1].Content)
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m","content":"x"}]`, 409, "nothing_pending")
	require.Error(t, c.api.get(ctx, "/v1/runs/"+run+"/request", nil))
	c.api.requirePost(ctx, run, `[{"type":"user-message","messageId":"msg-1","content":"Hello, Agent!","timestamp":1732334400000}]`, 200, "")
	third := c.api.pendingRequest(ctx, run, second.Key)
	require.Contains(t, string(third.Messages), "Hello, Agent!")
	c.api.requirePost(ctx, run, `[{"type":"user-message","content":"x"},{"type":"llm-chunk","messageId":"m","chunk":"x"}]`, 400, "bad_input")
}

// testReplyRace posts two replies at once, to two gateways: one of them counts.
func testReplyRace(ctx context.Context, t *testing.T, c *cluster, other *api) {
	for range 5 {
		run := c.api.begin(ctx, clientAgent("task"), "race")
		key := c.api.pendingRequest(ctx, run, "").Key
		var codes [2]string
		var both sync.WaitGroup
		for i, a := range []*api{c.api, other} {
			both.Go(func() {
				_, codes[i] = a.post(ctx, run, fmt.Sprintf(`[{"type":"llm-message-complete","messageId":"m%d","content":"answer %d","key":%q}]`, i, i, key))
			})
		}
		both.Wait()
		require.ElementsMatch(t, []string{"", "obsolete"}, codes[:])
		v := c.api.awaitState(ctx, run, "done")
		require.EqualValues(t, 2, v.N)
	}
}

// testReplyOfSeveralPools has a client model call a tool of an actor and one of the client in
// one reply: both calls go out with it.
func testReplyOfSeveralPools(ctx context.Context, t *testing.T, c *cluster) {
	a := clientToolAgent(0)
	a["tools"] = []string{"search"}
	run := c.api.begin(ctx, a, "mixed")
	first := c.api.pendingRequest(ctx, run, "")
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m","calls":[{"id":"a","name":"search","arguments":{}},{"id":"b","name":"pick","arguments":{}}]}]`, 200, "")
	c.api.requirePost(ctx, run, `[{"type":"tool-call-result","toolCallId":"b","result":{"isSuccess":true,"content":"red"}}]`, 200, "")
	second := c.api.pendingRequest(ctx, run, first.Key)
	require.Contains(t, string(second.Messages), "found")
	require.Contains(t, string(second.Messages), "red")
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"n","content":"Done."}]`, 200, "")
	c.api.awaitState(ctx, run, "done")
}

// testRequestStream reads an event stream that tells what the client is asked.
func testRequestStream(ctx context.Context, t *testing.T, c *cluster) {
	run := c.api.begin(ctx, clientAgent("chat"), "hello")
	want := c.api.pendingRequest(ctx, run, "")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.api.base+"/v1/runs/"+run+"/events?from=2", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	response, err := c.api.http.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	var seen []string
	name := ""
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = event
			continue
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		seen = append(seen, name)
		switch len(seen) {
		case 1:
			var told modelRequest
			require.NoError(t, json.Unmarshal([]byte(data), &told))
			require.Equal(t, want.Key, told.Key, "on connecting")
			c.api.requirePost(ctx, run, `[{"type":"llm-chunk","messageId":"m","chunk":"Hi"}]`, 200, "")
		case 2:
			require.JSONEq(t, `{"message_id":"m","offset":0,"text":"Hi","kind":"text"}`, data)
			c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m"}]`, 200, "")
		case 3:
			c.api.requirePost(ctx, run, `[{"type":"user-message","content":"and?"}]`, 200, "")
		case 5:
			require.Contains(t, data, "and?")
		}
		if len(seen) == 5 {
			break
		}
	}
	require.Equal(t, []string{"request", "chunk", "LlmMessageComplete", "UserMessage", "request"}, seen)
}

// testReplyExpires lets replies not come: the next model is asked, or the run ends.
func testReplyExpires(ctx context.Context, t *testing.T, c *cluster) {
	limited := clientAgent("task")
	limited["llm"] = map[string]any{"provider": "client", "timeout": "1s"}
	run := c.api.begin(ctx, limited, "nobody answers")
	v := c.api.awaitState(ctx, run, "error")
	require.Equal(t, "network", v.Memory.Error.Code)
	require.Contains(t, v.Memory.Error.Message, "within 1s")

	limited["models"] = map[string]any{"default": []string{"client/own", "openai/next"}}
	c.model.play("next", playing(func(*chatRequest) modelReply { return says("the next one answers") }))
	run = c.api.begin(ctx, limited, "somebody else answers")
	key := c.api.pendingRequest(ctx, run, "").Key
	v = c.api.awaitState(ctx, run, "done")
	require.Equal(t, "the next one answers", *v.Memory.FinalAnswer)
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m","content":"late","key":"`+key+`"}]`, 409, "obsolete")
}

// testReplyWithoutPlanner kills all planners while a request is pending.
func testReplyWithoutPlanner(ctx context.Context, t *testing.T, c *cluster) {
	run := c.api.begin(ctx, clientAgent("task"), "who answers?")
	before := c.api.pendingRequest(ctx, run, "")
	c.roles["planner-0"].kill()
	c.roles["planner-1"].kill()
	require.Equal(t, before, c.api.pendingRequest(ctx, run, ""))
	reply := `[{"type":"llm-message-complete","messageId":"m","content":"I do","key":"` + before.Key + `"}]`
	c.api.requirePost(ctx, run, reply, 503, "no_planner")
	require.Equal(t, before, c.api.pendingRequest(ctx, run, ""))
	posted := make(chan string, 1)
	go func() {
		_, code := c.api.post(ctx, run, reply)
		posted <- code
	}()
	c.start("planner", 0)
	c.start("planner", 1)
	if code := <-posted; code != "" { // the planners took more than 10 s to start
		require.Equal(t, "no_planner", code)
		require.NoError(t, c.api.persist(ctx, http.MethodPost, "/v1/runs/"+run+"/inputs", []byte(reply), nil))
	}
	c.api.requirePost(ctx, run, reply, 200, "")
	v := c.api.awaitState(ctx, run, "done")
	require.Equal(t, "I do", *v.Memory.FinalAnswer)
}

// testReplyAfterGateway kills the gateway that has the chunks: they are not trusted any more,
// and never a part of a reply alone.
func testReplyAfterGateway(ctx context.Context, t *testing.T, c *cluster, other *api) {
	run := c.api.begin(ctx, clientAgent("task"), "hello")
	before := c.api.pendingRequest(ctx, run, "")
	c.api.requirePost(ctx, run, `[{"type":"llm-chunk","messageId":"m","chunk":"Hello, "}]`, 200, "")
	other.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m"}]`, 422, "no_content")
	c.replace("gateway", 0)
	c.api.awaitReady()
	require.Equal(t, before, c.api.pendingRequest(ctx, run, ""))
	c.api.requirePost(ctx, run, `[{"type":"llm-chunk","messageId":"m","chunk":"world"}]`, 200, "")
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m"}]`, 422, "no_content")
	c.api.requirePost(ctx, run, `[{"type":"llm-message-complete","messageId":"m","content":"Hello, world"}]`, 200, "")
	v := c.api.awaitState(ctx, run, "done")
	require.Equal(t, "Hello, world", *v.Memory.FinalAnswer)
}

// testWhatWasAsked compares what the model server was sent with what the log says of it.
func testWhatWasAsked(ctx context.Context, t *testing.T, c *cluster) {
	var sent []json.RawMessage
	c.model.play("recorded", playing(func(r *chatRequest) modelReply {
		sent = append(sent, r.Raw)
		if r.replies() == 0 {
			return asks("c1", "search", `{"query":"<x> & y"}`)
		}
		return says("done")
	}))
	id := c.api.begin(ctx, map[string]any{
		"name": "recorded", "system_prompt": "Be <short> & kind.", "llm": map[string]any{"provider": "openai", "temperature": 0.25, "max_tokens": 99},
		"models": map[string]string{"default": "recorded"}, "tools": []string{"search"},
	}, "look")
	v := c.api.awaitState(ctx, id, "done")
	require.Len(t, sent, 2)
	for i, at := range []uint64{2, v.N} {
		var asked modelRequest
		require.NoError(t, c.api.get(ctx, fmt.Sprintf("/v1/runs/%s/request?at=%d", id, at), &asked))
		require.Equal(t, string(sent[i]), string(asked.Messages), "byte for byte")
		require.True(t, *asked.Exact, "event %d", at)
		require.Equal(t, "openai", asked.Dialect)
		require.Equal(t, "recorded", asked.Model)
		require.Equal(t, map[string]any{"temperature": 0.25, "max_tokens": 99.0}, asked.Sampling)
		require.Equal(t, at-1, asked.N)
	}
	var refused *apiError
	require.ErrorAs(t, c.api.get(ctx, "/v1/runs/"+id+"/request?at=1", nil), &refused)
	require.Equal(t, "no_request", refused.Code)
	require.ErrorAs(t, c.api.get(ctx, "/v1/runs/"+id+"/request?at=99", nil), &refused)
	require.Equal(t, "no_request", refused.Code)

	out := run(t, c.env(), "moorebus", "show", id, "--request", "--at", "2")
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stdout, `"messages":`+string(sent[0]))
	require.Empty(t, out.stderr)
	c.api.requirePost(ctx, id, `[{"type":"llm-message-complete","messageId":"m","content":"x"}]`, 409, "not_yours")
}

// TestClientModelOfTheDocuments runs the model of docs/how-to/client-models.md with node.
func TestClientModelOfTheDocuments(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("reason: node is missing, which runs the program of the document")
	}
	text, err := os.ReadFile("../docs/how-to/client-models.md")
	require.NoError(t, err)
	_, program, found := strings.Cut(string(text), "```js\n")
	require.True(t, found)
	program, _, _ = strings.Cut(program, "```")
	file := filepath.Join(t.TempDir(), "model.mjs")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	c := startCluster(t, setup{tools: []string{"calculator"}})
	c.tools.handle("calculator", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "42") })
	id := c.api.begin(t.Context(), clientAgent("task", "calculator"), "6 * 7")
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, node, file, c.api.base, id).CombinedOutput()
	require.NoError(t, err, string(out))
	v := c.api.awaitState(t.Context(), id, "done")
	require.Equal(t, "The result is 42.", *v.Memory.FinalAnswer)
	require.Equal(t, 2, strings.Count(string(out), "200 "), string(out))
}
