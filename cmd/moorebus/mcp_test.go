package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/mcpserve"
	"github.com/moorebus/moorebus/pkg/events"
)

// The agents that are offered: one that answers, one that waits for ever, one that
// fails.
var mcpAgents = map[string]string{
	"adder": `
name: adder
description: Adds what it always adds.
llm: {provider: scripted, script: [{calls: [{name: calculator, arguments: {expression: "19+23"}}]}, {text: "It is {{observation -1}}."}]}
tools: [calculator]
`,
	"waiter": `
name: waiter
mode: chat
llm: {provider: scripted, script: [{calls: [{name: ask_human, arguments: {question: "Well?"}}]}, {text: "never said"}]}
tools: [ask_human]
`,
	"broken": `
name: broken
llm: {provider: scripted, script: [{error: {kind: auth, message: "no such key"}}]}
`,
}

// mcpBus is a bus with the agents.
func mcpBus(t *testing.T) *bus {
	t.Helper()
	b := testBus(t)
	for name, text := range mcpAgents {
		_, err := b.host.Gateway().PutAgent(t.Context(), "", name, []byte(text), agentfile.YAML)
		require.NoError(t, err)
	}
	require.NoError(t, b.host.Announce(t.Context()))
	return b
}

// listener is a client that notes what it is told.
type listener struct {
	mu       sync.Mutex
	progress []string
	changed  chan struct{}
}

func (l *listener) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.progress, "\n")
}

func mcpClient(t *testing.T, transport mcp.Transport) (*mcp.ClientSession, *listener) {
	t.Helper()
	l := &listener{changed: make(chan struct{}, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.progress = append(l.progress, r.Params.Message)
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { l.changed <- struct{}{} },
	})
	session, err := client.Connect(t.Context(), transport, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() })
	return session, l
}

// moorebusMCP is the command as a process of its own.
func moorebusMCP(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command("moorebus", append([]string{"mcp"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+filepath.Join(home, "share"), "GORACE="+noSleep)
	cmd.Stderr = os.Stderr
	return cmd
}

func callAgent(ctx context.Context, s *mcp.ClientSession, name, task string) (*mcp.CallToolResult, error) {
	params := &mcp.CallToolParams{Name: name, Arguments: map[string]any{"task": task}}
	params.SetProgressToken(name)
	return s.CallTool(ctx, params)
}

func textOf(t *testing.T, res *mcp.CallToolResult) string {
	t.Helper()
	require.Len(t, res.Content, 1)
	return res.Content[0].(*mcp.TextContent).Text
}

// endsIn waits for the one run of an agent to reach a state.
func (b *bus) endsIn(t *testing.T, agent string, state events.State) {
	t.Helper()
	require.Eventually(t, func() bool {
		page, err := b.host.Gateway().Runs(t.Context(), "", list.Query{Filters: list.Filters{"state": string(state)}})
		require.NoError(t, err)
		return slices.ContainsFunc(page.Runs, func(r list.Run) bool { return r.Agent == agent && r.State == state })
	}, time.Minute, 20*time.Millisecond, "no run of %s is %s", agent, state)
}

func TestMCPOverStdio(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	b := mcpBus(t)
	session, heard := mcpClient(t, &mcp.CommandTransport{Command: moorebusMCP(t, "--nats", b.url)})

	listed, err := session.ListTools(t.Context(), nil)
	require.NoError(t, err)
	names := map[string]string{}
	for _, tool := range listed.Tools {
		names[tool.Name] = tool.Description
		require.Contains(t, tool.InputSchema.(map[string]any)["properties"], "task")
	}
	require.Equal(t, map[string]string{
		"adder": "Adds what it always adds.", "broken": "Gives a task to the agent broken and returns its answer.",
		"waiter": "Gives a task to the agent waiter and returns its answer.",
	}, names)

	t.Run("two at once", func(t *testing.T) {
		var both sync.WaitGroup
		ids := make([]any, 2)
		for i := range ids {
			both.Go(func() {
				res, err := callAgent(t.Context(), session, "adder", "Add.")
				if err == nil && !res.IsError && res.Content[0].(*mcp.TextContent).Text == "It is 42." {
					content := res.StructuredContent.(map[string]any)
					if content["answer"] == "It is 42." && content["state"] == "done" && content["run_id"] == res.Meta[mcpserve.MetaRun] {
						ids[i] = content["run_id"]
					}
				}
			})
		}
		both.Wait()
		require.NotNil(t, ids[0])
		require.NotNil(t, ids[1])
		require.NotEqual(t, ids[0], ids[1])
		require.Eventually(t, func() bool { return strings.Contains(heard.said(), "LlmFinalAnswer") }, time.Minute, 10*time.Millisecond)
		require.Contains(t, heard.said(), "planning → acting")
	})
	t.Run("errors", func(t *testing.T) {
		res, err := callAgent(t.Context(), session, "broken", "Try.")
		require.NoError(t, err)
		require.True(t, res.IsError)
		require.Contains(t, textOf(t, res), "auth: ")
		require.Contains(t, textOf(t, res), "no such key")
		require.NotEmpty(t, res.Meta[mcpserve.MetaRun])
		for task, want := range map[string]any{"empty_task: ": map[string]any{"task": " "}, "has no default task": map[string]any{}, "do not fit": map[string]any{"job": "x"}} {
			res, err = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "adder", Arguments: want})
			require.NoError(t, err)
			require.True(t, res.IsError)
			require.Contains(t, textOf(t, res), task)
		}
		_, err = callAgent(t.Context(), session, "nobody", "Try.")
		require.ErrorContains(t, err, "nobody")
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := callAgent(ctx, session, "waiter", "Wait."); done <- err }()
		b.endsIn(t, "waiter", events.WaitingForHuman)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		b.endsIn(t, "waiter", events.Cancelled)
	})
	t.Run("other agents", func(t *testing.T) {
		_, err := b.host.Gateway().PutAgent(t.Context(), "", "late", []byte(strings.Replace(mcpAgents["adder"], "name: adder", "name: late", 1)), agentfile.YAML)
		require.NoError(t, err)
		select { // nobody asks: the list is looked at now and then
		case <-heard.changed:
		case <-time.After(time.Minute):
			t.Fatal("the change was not told")
		}
		res, err := callAgent(t.Context(), session, "late", "Add.")
		require.NoError(t, err)
		require.Equal(t, "It is 42.", textOf(t, res))
	})
}

// A client that goes away takes its runs with it.
func TestMCPClientThatGoes(t *testing.T) {
	b := mcpBus(t)
	cmd := moorebusMCP(t, "--nats", b.url, "--agents", "waiter")
	session, _ := mcpClient(t, &mcp.CommandTransport{Command: cmd})
	listed, err := session.ListTools(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, listed.Tools, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := callAgent(ctx, session, "waiter", "Wait."); done <- err }()
	b.endsIn(t, "waiter", events.WaitingForHuman)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, <-done)
	b.endsIn(t, "waiter", events.Cancelled)
}

// bearer sends a token with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func TestMCPOverHTTP(t *testing.T) {
	b := mcpBus(t)
	cmd := moorebusMCP(t, "--nats", b.url, "--listen", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, "MOOREBUS_TOKEN=s3cret")
	cmd.Stderr = nil
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimSpace(strings.TrimPrefix(line, "serving MCP at "))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	post := func(change func(*http.Request)) int {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("{}"))
		require.NoError(t, err)
		change(req)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	require.Equal(t, http.StatusUnauthorized, post(func(*http.Request) {}))
	require.Equal(t, http.StatusForbidden, post(func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer s3cret")
		r.Header.Set("Origin", "https://evil.example")
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}))
	require.Equal(t, http.StatusForbidden, post(func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer s3cret")
		r.Host = "evil.example"
	}))

	session, heard := mcpClient(t, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer("s3cret")}})
	res, err := callAgent(t.Context(), session, "adder", "Add.")
	require.NoError(t, err)
	require.Equal(t, "It is 42.", textOf(t, res))
	require.Eventually(t, func() bool { return strings.Contains(heard.said(), "LlmToolCall") }, time.Minute, 10*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := callAgent(ctx, session, "waiter", "Wait."); done <- err }()
	b.endsIn(t, "waiter", events.WaitingForHuman)
	cancel()
	require.Error(t, <-done)
	b.endsIn(t, "waiter", events.Cancelled)
	_ = session.Close() // the process may be faster
	began := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	require.Less(t, time.Since(began), 30*time.Second)
}

// The agent of a file runs in the process itself; stdout has the protocol alone.
func TestMCPWithAnAgentOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	require.NoError(t, os.WriteFile(file, []byte(mcpAgents["adder"]), 0o600))
	session, _ := mcpClient(t, &mcp.CommandTransport{Command: moorebusMCP(t, "--agent", file)})
	res, err := callAgent(t.Context(), session, "adder", "Add.")
	require.NoError(t, err)
	require.Equal(t, "It is 42.", textOf(t, res))
}

// questioner calls an agent with a client that asks its user, and returns the questions.
func questioner(t *testing.T, transport mcp.Transport, version string, answer func(*mcp.ElicitParams) *mcp.ElicitResult) (*mcp.ClientSession, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	client := mcp.NewClient(&mcp.Implementation{Name: "asker", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, r.Params.Message)
			return answer(r.Params), nil
		},
	})
	session, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	require.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() })
	require.Equal(t, version, session.InitializeResult().ProtocolVersion)
	require.NotContains(t, []string{"", "1"}, session.InitializeResult().ServerInfo.Version, "it is that of the build")
	return session, func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(asked) }
}

// A client that can ask its user is asked for approvals and answers, in both versions of the
// protocol and on both transports.
func TestMCPAsksTheUser(t *testing.T) {
	b := mcpBus(t)
	const agent = `
name: shopper
llm: {provider: scripted, script: [{calls: [{name: ask_human, arguments: {question: "Which?"}}]}, {calls: [{name: calculator, arguments: {expression: "1+1"}}]}, {text: "done: {{observation -1}} {{observation -2}}"}]}
tools: [ask_human, calculator]
approval: {policy: tools, tools: [calculator]}
`
	_, err := b.host.Gateway().PutAgent(t.Context(), "", "shopper", []byte(agent), agentfile.YAML)
	require.NoError(t, err)
	listening := moorebusMCP(t, "--nats", b.url, "--listen", "127.0.0.1:0")
	listening.Stderr = nil
	stderr, err := listening.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, listening.Start())
	t.Cleanup(func() {
		_ = listening.Process.Signal(syscall.SIGTERM)
		_ = listening.Wait()
		http.DefaultClient.CloseIdleConnections()
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimSpace(strings.TrimPrefix(line, "serving MCP at "))
	for _, version := range []string{"2026-07-28", "2025-11-25"} {
		for name, transport := range map[string]func() mcp.Transport{
			"stdio": func() mcp.Transport { return &mcp.CommandTransport{Command: moorebusMCP(t, "--nats", b.url)} },
			"http":  func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: url} },
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				verdict := "approve"
				session, asked := questioner(t, transport(), version, func(p *mcp.ElicitParams) *mcp.ElicitResult {
					if strings.Contains(p.Message, "Which?") {
						return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "the red one"}}
					}
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": verdict, "reason": "too dear"}}
				})
				res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "shopper", Arguments: map[string]any{"task": "Buy."}})
				require.NoError(t, err)
				require.Equal(t, "done: 2 the red one", textOf(t, res))
				require.Len(t, asked(), 2)
				require.Equal(t, "The agent shopper asks: Which?", asked()[0])
				require.Contains(t, asked()[1], `The agent shopper wants to call calculator with {"expression":"1+1"}. Risk: low.`)
				verdict = "reject"
				res, err = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "shopper", Arguments: map[string]any{"task": "Buy."}})
				require.NoError(t, err)
				require.Contains(t, textOf(t, res), "too dear")
			})
		}
	}
	t.Run("a state of another server", func(t *testing.T) {
		session, _ := mcpClient(t, &mcp.StreamableClientTransport{Endpoint: url})
		_, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "shopper", Arguments: map[string]any{"task": "Buy."}, RequestState: "Zm9yZ2Vk"})
		require.ErrorContains(t, err, "requestState is not one of this server")
	})
}

// An agent uses an agent elsewhere as a tool. That one's question goes through both to the user,
// waits in the log meanwhile, and the answer goes back. The files are those of the guide.
func TestMCPQuestionThroughTwoAgents(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	dir := t.TempDir()
	guide, err := os.ReadFile("../../docs/how-to/mcp.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?ms)^`([^`\n]+)`:\n\n```\\w+\n(.*?)^```").FindAllSubmatch(guide, -1)
	require.Len(t, files, 3)
	for _, f := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, string(f[1])), f[2], 0o600))
	}
	outer := filepath.Join(dir, "outer.yaml")
	data := filepath.Join(dir, "outer")
	session, asked := questioner(t, &mcp.CommandTransport{Command: moorebusMCP(t, "--agent", outer, "--data", data)}, "2026-07-28", func(*mcp.ElicitParams) *mcp.ElicitResult {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "the red one"}}
	})
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "outer", Arguments: map[string]any{"task": "Go."}})
	require.NoError(t, err)
	require.Contains(t, textOf(t, res), "I heard: It is the red one.")
	require.Equal(t, []string{"The agent outer asks: The MCP server inner asks: The agent asker asks: Which? (answer: string)"}, asked())
	out, err := exec.Command("moorebus", "show", res.Meta[mcpserve.MetaRun].(string), "--data", data).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "the red one")
}

// The files of MCP servers in the guide can be read.
func TestMCPFilesOfTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/how-to/mcp.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```json\n(.*?)^```").FindAllSubmatch(guide, -1)
	require.Len(t, blocks, 4)
	for _, block := range blocks {
		_, notes, err := agentfile.ParseMCP(block[1], func(string) (string, bool) { return "value", true })
		require.NoError(t, err)
		require.Empty(t, notes)
	}
}

// An agent's tool says what it returns and what it can do.
func TestMCPDescribesAgents(t *testing.T) {
	b := mcpBus(t)
	for name, text := range map[string]string{
		"typed":   "name: typed\nllm: {provider: scripted, script: [{text: '{\"sum\": 3}'}]}\noutput_schema: {type: object, properties: {sum: {type: integer}}, required: [sum]}\ntools: [calculator]\n",
		"listed":  "name: listed\nllm: {provider: scripted, script: [{text: '[1]'}]}\noutput_schema: {type: array}\n",
		"unknown": "name: unknown\nllm: {provider: scripted, script: [{text: x}]}\ntools: [nobody.has]\n",
	} {
		_, err := b.host.Gateway().PutAgent(t.Context(), "", name, []byte(text), agentfile.YAML)
		require.NoError(t, err)
	}
	session, _ := mcpClient(t, &mcp.CommandTransport{Command: moorebusMCP(t, "--nats", b.url)})
	tools := map[string]*mcp.Tool{}
	for tool, err := range session.Tools(t.Context(), nil) {
		require.NoError(t, err)
		tools[tool.Name] = tool
	}
	require.Equal(t, map[string]any{"type": "object", "properties": map[string]any{"sum": map[string]any{"type": "integer"}}, "required": []any{"sum"}}, tools["typed"].OutputSchema)
	require.True(t, tools["typed"].Annotations.ReadOnlyHint)
	require.False(t, *tools["typed"].Annotations.DestructiveHint)
	require.False(t, *tools["typed"].Annotations.OpenWorldHint)
	require.Contains(t, tools["listed"].OutputSchema.(map[string]any)["properties"], "run_id")
	require.False(t, tools["unknown"].Annotations.ReadOnlyHint)
	require.True(t, *tools["unknown"].Annotations.DestructiveHint)

	res, err := callAgent(t.Context(), session, "typed", "Add.")
	require.NoError(t, err)
	require.Equal(t, map[string]any{"sum": 3.0}, res.StructuredContent)
	require.NotEmpty(t, res.Meta[mcpserve.MetaRun])
	res, err = callAgent(t.Context(), session, "listed", "List.")
	require.NoError(t, err)
	require.Equal(t, "[1]", res.StructuredContent.(map[string]any)["answer"])
}

// Two processes share a data directory. When the one with the server is killed, the other one
// goes on: with the call that it is at, and with new ones.
func TestMCPSharesADataDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	file := filepath.Join(t.TempDir(), "agent.yaml")
	require.NoError(t, os.WriteFile(file, []byte(mcpAgents["adder"]), 0o600))
	waiter := filepath.Join(t.TempDir(), "waiter.yaml")
	require.NoError(t, os.WriteFile(waiter, []byte(strings.Replace(mcpAgents["waiter"], "mode: chat", "mode: task", 1)), 0o600))

	first := moorebusMCP(t, "--data", data, "--agent", file)
	one, _ := mcpClient(t, &mcp.CommandTransport{Command: first})
	second := moorebusMCP(t, "--data", data, "--agent", waiter)
	two, _ := mcpClient(t, &mcp.CommandTransport{Command: second})
	third := moorebusMCP(t, "--data", data, "--agent", file)
	three, _ := mcpClient(t, &mcp.CommandTransport{Command: third})
	for _, session := range []*mcp.ClientSession{one, three} {
		res, err := callAgent(t.Context(), session, "adder", "Add.")
		require.NoError(t, err)
		require.Equal(t, "It is 42.", textOf(t, res))
	}
	done := make(chan *mcp.CallToolResult, 1)
	go func() { res, _ := callAgent(t.Context(), two, "waiter", "Wait."); done <- res }()
	moorebus := func(args ...string) (string, error) {
		cmd := exec.Command("moorebus", append(args, "--data", data)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	var run string
	require.Eventually(t, func() bool {
		out, err := moorebus("runs", "--state", "waiting_for_human", "-o", "json")
		require.NoError(t, err, out)
		run = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindString(out)
		return run != ""
	}, time.Minute, 100*time.Millisecond)

	require.NoError(t, first.Process.Kill())
	_ = one.Close() // its process is gone
	res, err := callAgent(t.Context(), three, "adder", "Add.")
	require.NoError(t, err)
	require.Equal(t, "It is 42.", textOf(t, res))
	require.Eventually(t, func() bool { // a command may come while the next process takes over
		out, err := moorebus("answer", run, "so so", "--by", "ann")
		return err == nil || strings.Contains(out, "already")
	}, time.Minute, 100*time.Millisecond)
	res = <-done
	require.NotNil(t, res)
	require.Equal(t, "never said", textOf(t, res))
}

// A stored agent with a task of its own is called without one.
func TestMCPAgentWithATaskOfItsOwn(t *testing.T) {
	b := mcpBus(t)
	_, err := b.host.Gateway().PutAgent(t.Context(), "", "adder", []byte(mcpAgents["adder"]+"task: Add what you always add.\n"), agentfile.YAML)
	require.NoError(t, err)
	session, _ := mcpClient(t, &mcp.CommandTransport{Command: moorebusMCP(t, "--nats", b.url, "--agents", "adder,waiter")})
	listed, err := session.ListTools(t.Context(), nil)
	require.NoError(t, err)
	for _, tool := range listed.Tools {
		_, required := tool.InputSchema.(map[string]any)["required"]
		require.Equal(t, tool.Name == "waiter", required, tool.Name)
	}
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "adder"})
	require.NoError(t, err)
	require.Equal(t, "It is 42.", textOf(t, res))
	run, err := b.host.Gateway().State(t.Context(), "", res.Meta[mcpserve.MetaRun].(string), 0)
	require.NoError(t, err)
	require.Contains(t, string(run.Memory), "Add what you always add.")
}

func TestMCPThatCannotBe(t *testing.T) {
	b := mcpBus(t)
	for want, args := range map[string][]string{
		`no agent "nobody"`:             {"--nats", b.url, "--agents", "nobody"},
		"set MOOREBUS_TOKEN, listen":    {"--nats", b.url, "--listen", "0.0.0.0:0"},
		"leave out --agents and --nats": {"--agent", "x.yaml", "--agents", "y"},
		"no runs to show":               {"--data", filepath.Join(t.TempDir(), "none")},
		"x.yaml: no such file":          {"--agent", "x.yaml"},
		"--listen: ":                    {"--nats", b.url, "--listen", "nowhere"},
	} {
		cmd := moorebusMCP(t, args...)
		cmd.Stderr = nil
		out, err := cmd.CombinedOutput()
		require.Error(t, err, want)
		require.Contains(t, string(out), want)
	}
}
