package a2a_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/nodetest"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// agents are the agents of the tests.
var agents = map[string]string{
	"writer": `{"description": "Writes a line.", "llm": {"provider": "scripted", "script": [
		{"content": "I pay first.", "calls": [{"name": "pay", "arguments": {"crowns": 1}}]}, {"text": "All is written down."}]},
		"tools": ["pay"]}`,
	"counter": `{"llm": {"provider": "scripted", "script": [{"text": "{\"count\": 3}"}]},
		"output_schema": {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}}`,
	"cashier": `{"llm": {"provider": "scripted", "script": [
		{"calls": [{"name": "pay", "arguments": {"crowns": 10}}]}, {"text": "The tool says: {{observation -1}}"}]},
		"approval": {"policy": "always"}, "tools": ["pay"]}`,
	"asker": `{"llm": {"provider": "scripted", "script": [
		{"calls": [{"name": "ask_human", "arguments": {"question": "Which colour?"}}]}, {"text": "So it is {{observation -1}}"}]},
		"tools": ["ask_human"]}`,
	"talker": `{"mode": "chat", "llm": {"provider": "scripted", "script": [{"text": "Mars has two moons."}, {"text": "Jupiter has many."}]}}`,
	"guide": `{"client_tools": [{"name": "locate", "description": "Where the user is.", "schema": {"type": "object"}}],
		"llm": {"provider": "scripted", "script": [{"calls": [{"name": "locate", "arguments": {}}]}, {"text": "You are in {{observation -1}}"}]}}`,
	"opener": `{"llm": {"provider": "scripted", "script": [{"calls": [{"name": "transfer_to_closer", "arguments": {}}]}]}, "tools": ["transfer_to_closer"]}`,
	"closer": `{"llm": {"provider": "scripted", "script": [{"text": "unused"}, {"text": "Closed."}]}}`,
	"spender": `{"llm": {"provider": "scripted", "script": [
		{"calls": [{"name": "pay", "arguments": {"crowns": 1}}]}, {"calls": [{"name": "pay", "arguments": {"crowns": 2}}]}, {"text": "Both are paid."}]},
		"approval": {"policy": "always"}, "tools": ["pay"]}`,
	"drawer": `{"llm": {"provider": "scripted", "script": [{"calls": [{"name": "draw", "arguments": {}}]}, {"text": "Drawn."}]}, "tools": ["draw"]}`,
	"fails":  `{"llm": {"provider": "scripted", "script": []}, "config": {"max_retries": 0}}`,
}

type payment struct {
	Crowns int `json:"crowns"`
}

// serve runs all roles with HTTP on a real bus, and stores the agents.
func serve(t *testing.T, change func(*host.Options)) (*control.Controller, string) {
	t.Helper()
	pay, err := typed.New(tool.Definition{Name: "pay", Description: "Pays.", Effect: tool.Pure},
		func(_ context.Context, p payment) (string, error) { return "paid", nil })
	require.NoError(t, err)
	ask, err := builtin.New(builtin.AskHuman, builtin.Options{})
	require.NoError(t, err)
	registry, err := toolset.New(pay, ask, draw())
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o := host.Options{
		Bus: controltest.NATS(t, natsbus.InitOptions{}), Tools: registry, Providers: map[string]llm.Caller{"scripted": scripted.New()}, Listener: listener,
		Subagents: []subagent.Tool{{Name: "transfer_to_closer", Handoff: "closer"}},
	}
	if change != nil {
		change(&o)
	}
	h, err := host.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		require.NoError(t, <-ended)
	})
	require.NoError(t, h.Announce(t.Context()))
	for name, definition := range agents {
		_, err := h.Gateway().PutAgent(t.Context(), "", name, []byte(definition), agentfile.JSON)
		require.NoError(t, err, name)
	}
	return h.Gateway(), "http://" + listener.Addr().String()
}

// The client of the protocol's own SDK works with every request, over both bindings.
func TestSDK(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/client.mjs")
	require.NoError(t, err)
	for _, binding := range []string{"HTTP+JSON", "JSONRPC"} {
		t.Run(binding, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, func(o *host.Options) { o.A2AAgent = "writer" })
			out, err := nodetest.Command(t, string(script), url, binding).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "all is well")
		})
	}
}

// call sends a request and returns the answer.
func call(t *testing.T, method, url, body string, header ...string) (int, map[string]any) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	var answer map[string]any
	require.NoError(t, json.Unmarshal(data, &answer), string(data))
	if res.StatusCode != http.StatusOK {
		require.Equal(t, "application/json", res.Header.Get("Content-Type"), "a2a-go reads errors of no other type")
	}
	return res.StatusCode, answer
}

func message(id, task string, parts ...string) string {
	m := map[string]any{"messageId": id, "role": "ROLE_USER"}
	if task != "" {
		m["taskId"] = task
	}
	var all []json.RawMessage
	for _, p := range parts {
		all = append(all, json.RawMessage(p))
	}
	m["parts"] = all
	data, err := json.Marshal(map[string]any{"message": m})
	if err != nil {
		panic(err)
	}
	return string(data)
}

func field(v any, path ...string) any {
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// reason returns why a request failed.
func reason(t *testing.T, answer map[string]any) string {
	t.Helper()
	details, ok := field(answer, "error", "details").([]any)
	require.True(t, ok, answer)
	return field(details[0], "reason").(string)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	text := `{"text": "Go."}`
	_, sent := call(t, "POST", url+"/v1/a2a/cashier/message:send", message("m-1", "", text))
	id := field(sent, "task", "id").(string)
	for name, c := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		reason             string
	}{
		"another version":        {"GET", "/v1/a2a/cashier/tasks", "", []string{"A2A-Version", "0.3"}, 400, "VERSION_NOT_SUPPORTED"},
		"no agent":               {"POST", "/v1/a2a/nobody/message:send", message("m", "", text), nil, 404, "AGENT_NOT_FOUND"},
		"no agent's card":        {"GET", "/v1/a2a/nobody/.well-known/agent-card.json", "", nil, 404, "AGENT_NOT_FOUND"},
		"several agents":         {"GET", "/.well-known/agent-card.json", "", nil, 404, "AGENT_NOT_FOUND"},
		"no task":                {"GET", "/v1/a2a/cashier/tasks/nothing", "", nil, 404, "TASK_NOT_FOUND"},
		"another agent's task":   {"GET", "/v1/a2a/talker/tasks/" + id, "", nil, 404, "TASK_NOT_FOUND"},
		"a message to no task":   {"POST", "/v1/a2a/cashier/message:send", message("m", "01900000-0000-7000-8000-000000000000", text), nil, 404, "TASK_NOT_FOUND"},
		"cancel no task":         {"POST", "/v1/a2a/cashier/tasks/nothing:cancel", "", nil, 404, "TASK_NOT_FOUND"},
		"subscribe to no task":   {"POST", "/v1/a2a/cashier/tasks/nothing:subscribe", "", nil, 404, "TASK_NOT_FOUND"},
		"push to nowhere":        {"POST", "/v1/a2a/cashier/tasks/" + id + "/pushNotificationConfigs", "{}", nil, 400, "INVALID_PARAMS"},
		"push to http":           {"POST", "/v1/a2a/cashier/tasks/" + id + "/pushNotificationConfigs", `{"url": "http://example.org/"}`, nil, 400, "INVALID_PARAMS"},
		"push of another task":   {"POST", "/v1/a2a/cashier/tasks/" + id + "/pushNotificationConfigs", `{"url": "https://example.org/", "taskId": "x"}`, nil, 400, "INVALID_PARAMS"},
		"push of two lines":      {"POST", "/v1/a2a/cashier/tasks/" + id + "/pushNotificationConfigs", `{"url": "https://example.org/", "token": "a\r\nb: c"}`, nil, 400, "INVALID_PARAMS"},
		"push of no task":        {"POST", "/v1/a2a/cashier/tasks/nothing/pushNotificationConfigs", `{"url": "https://example.org/"}`, nil, 404, "TASK_NOT_FOUND"},
		"push of another agent":  {"POST", "/v1/a2a/talker/tasks/" + id + "/pushNotificationConfigs", `{"url": "https://example.org/"}`, nil, 404, "TASK_NOT_FOUND"},
		"no push":                {"GET", "/v1/a2a/cashier/tasks/" + id + "/pushNotificationConfigs/x", "", nil, 404, "TASK_NOT_FOUND"},
		"push in a message":      {"POST", "/v1/a2a/cashier/message:send", `{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}, "configuration": {"taskPushNotificationConfig": {"url": "ftp://localhost"}}}`, nil, 400, "INVALID_PARAMS"},
		"extended card":          {"GET", "/v1/a2a/cashier/extendedAgentCard", "", nil, 400, "UNSUPPORTED_OPERATION"},
		"no JSON":                {"POST", "/v1/a2a/cashier/message:send", "{", nil, 400, "INVALID_PARAMS"},
		"no message":             {"POST", "/v1/a2a/cashier/message:send", "{}", nil, 400, "INVALID_PARAMS"},
		"no message id":          {"POST", "/v1/a2a/cashier/message:send", message("", "", text), nil, 400, "INVALID_PARAMS"},
		"no parts":               {"POST", "/v1/a2a/cashier/message:send", message("m", ""), nil, 400, "INVALID_PARAMS"},
		"an empty part":          {"POST", "/v1/a2a/cashier/message:send", message("m", "", "{}"), nil, 400, "INVALID_PARAMS"},
		"a part of two":          {"POST", "/v1/a2a/cashier/message:send", message("m", "", `{"text": "x", "url": "http://localhost/x"}`), nil, 400, "INVALID_PARAMS"},
		"a file of no type":      {"POST", "/v1/a2a/cashier/message:send", message("m", "", `{"raw": "AAAA"}`), nil, 400, "CONTENT_TYPE_NOT_SUPPORTED"},
		"a tenant":               {"POST", "/v1/a2a/cashier/message:send", `{"tenant": "t"}`, nil, 400, "INVALID_PARAMS"},
		"words for a decision":   {"POST", "/v1/a2a/cashier/message:send", message("m-2", id, `{"text": "Perhaps."}`), nil, 422, "ANSWER_NEEDED"},
		"a decision on no call":  {"POST", "/v1/a2a/cashier/message:send", message("m-2", id, `{"data": {"call_id": "x", "decision": "approved"}}`), nil, 404, "UNKNOWN_CALL"},
		"another task's context": {"POST", "/v1/a2a/cashier/message:send", strings.Replace(message("m-2", id, text), `"messageId"`, `"contextId": "c", "messageId"`, 1), nil, 400, "INVALID_PARAMS"},
		"no state":               {"GET", "/v1/a2a/cashier/tasks?status=DONE", "", nil, 400, "INVALID_PARAMS"},
		"a large page":           {"GET", "/v1/a2a/cashier/tasks?pageSize=101", "", nil, 400, "INVALID_PARAMS"},
		"no length":              {"GET", "/v1/a2a/cashier/tasks/" + id + "?historyLength=-1", "", nil, 400, "INVALID_PARAMS"},
		"resume at no event":     {"POST", "/v1/a2a/cashier/tasks/" + id + ":subscribe", "", []string{"Last-Event-ID", "99"}, 400, "INVALID_PARAMS"},
		"no verb":                {"POST", "/v1/a2a/cashier/tasks/" + id + ":explain", "", nil, 404, "NOT_FOUND"},
	} {
		status, answer := call(t, c.method, url+c.path, c.body, c.header...)
		require.Equal(t, c.status, status, "%s: %v", name, answer)
		require.Equal(t, c.reason, reason(t, answer), name)
		require.EqualValues(t, c.status, field(answer, "error", "code"), name)
		require.NotEmpty(t, field(answer, "error", "message"), name)
	}
	_, task := call(t, "GET", url+"/v1/a2a/cashier/tasks/"+id, "")
	require.Equal(t, "TASK_STATE_INPUT_REQUIRED", field(task, "status", "state"), "nothing of this counted")
}

// With a token every request needs it, but for the card of the agent that was made public.
func TestToken(t *testing.T) {
	t.Parallel()
	for agent, want := range map[string]int{"": http.StatusNotFound, "writer": http.StatusOK} {
		_, url := serve(t, func(o *host.Options) { o.Token, o.A2AAgent = "secret", agent })
		status, found := call(t, "GET", url+"/.well-known/agent-card.json", "")
		require.Equal(t, want, status, found)
		if want == http.StatusOK {
			require.Equal(t, "Bearer", field(found, "securitySchemes", "bearer", "httpAuthSecurityScheme", "scheme"))
		}
		for _, path := range []string{"/v1/a2a/writer/.well-known/agent-card.json", "/v1/a2a/writer/tasks"} {
			status, answer := call(t, "GET", url+path, "")
			require.Equal(t, http.StatusUnauthorized, status)
			require.Equal(t, "UNAUTHENTICATED", field(answer, "error", "status"))
			require.Equal(t, "UNAUTHENTICATED", reason(t, answer))
			status, _ = call(t, "GET", url+path, "", "Authorization", "Bearer secret")
			require.Equal(t, http.StatusOK, status)
		}
	}
}

// updates reads a stream to its end: its events with their ids.
func updates(t *testing.T, url, body string, header ...string) (ids []string, all []map[string]any) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	require.Equal(t, http.StatusOK, res.StatusCode)
	id := ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "id":
			id = value
		case "data":
			var u map[string]any
			require.NoError(t, json.Unmarshal([]byte(value), &u))
			ids, all, id = append(ids, id), append(all, u), ""
		}
	}
	return ids, all
}

// A stream that is resumed at any of its events goes on with what followed, also when the task has
// ended.
func TestResume(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	_, sent := call(t, "POST", url+"/v1/a2a/asker/message:send", message("m-1", "", `{"text": "Paint it."}`))
	id := field(sent, "task", "id").(string)
	require.Equal(t, "TASK_STATE_INPUT_REQUIRED", field(sent, "task", "status", "state"))
	_, done := call(t, "POST", url+"/v1/a2a/asker/message:send", message("m-2", id, `{"text": "Red"}`))
	require.Equal(t, "TASK_STATE_COMPLETED", field(done, "task", "status", "state"), done)
	path := url + "/v1/a2a/asker/tasks/" + id + ":subscribe"
	ids, whole := updates(t, path, "", "Last-Event-ID", "1")
	require.Equal(t, "TASK_STATE_SUBMITTED", field(whole[0], "task", "status", "state"))
	var said []string
	for _, u := range whole[1:] {
		if state, ok := field(u, "statusUpdate", "status", "state").(string); ok {
			said = append(said, state)
		}
		if field(u, "artifactUpdate") != nil {
			said = append(said, "artifact")
		}
	}
	require.Equal(t, []string{"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_WORKING", "artifact", "TASK_STATE_COMPLETED"}, trimmed(said))
	for i, at := range ids {
		require.NotEmpty(t, at)
		if i == len(ids)-1 {
			break
		}
		_, rest := updates(t, path, "", "Last-Event-ID", at)
		following := whole[i+1:]
		for len(following) > 0 && ids[len(ids)-len(following)] == at {
			following = following[1:] // of the same event
		}
		require.Equal(t, following, rest[1:], "after event %s", at)
	}
}

// trimmed is the list without repetitions.
func trimmed(list []string) (short []string) {
	for i, s := range list {
		if i == 0 || list[i-1] != s {
			short = append(short, s)
		}
	}
	return short
}

// block returns the first block of a language in the guide.
func block(t *testing.T, language string) string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/how-to/a2a.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(guide), "```"+language+"\n")
	require.True(t, found)
	text, _, _ := strings.Cut(rest, "```")
	return text
}

// The example of the guide prints what the guide says.
func TestGuide(t *testing.T) {
	t.Parallel()
	g, url := serve(t, nil)
	_, err := g.PutAgent(t.Context(), "", "cashier", []byte(block(t, "yaml")), agentfile.YAML)
	require.NoError(t, err)
	out, err := nodetest.Command(t, strings.ReplaceAll(block(t, "js"), "http://localhost:8080", url)).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, block(t, "text"), string(out))
}

// A message begins one task, however often it comes.
func TestTasks(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	base := url + "/v1/a2a/cashier"
	body := message("m-1", "", `{"text": "Pay."}`)
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			var sent map[string]any
			res, err := http.Post(base+"/message:send", "application/json", strings.NewReader(body))
			if err == nil {
				err = errors.Join(json.NewDecoder(res.Body).Decode(&sent), res.Body.Close())
			}
			id, _ := field(sent, "task", "id").(string)
			if err != nil {
				id = err.Error()
			}
			ids <- id
		}()
	}
	id := <-ids
	require.NotEmpty(t, id)
	for range cap(ids) - 1 {
		require.Equal(t, id, <-ids)
	}
	_, list := call(t, "GET", base+"/tasks?status=TASK_STATE_INPUT_REQUIRED&unknown=x", "")
	require.EqualValues(t, 1, list["totalSize"], list)
	require.Empty(t, list["nextPageToken"])
	require.Contains(t, list, "nextPageToken")
	for range 2 {
		status, canceled := call(t, "POST", base+"/tasks/"+id+":cancel", "{}")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "TASK_STATE_CANCELED", field(canceled, "status", "state"))
	}
	_, list = call(t, "GET", base+"/tasks?status=TASK_STATE_INPUT_REQUIRED", "")
	require.EqualValues(t, 0, list["totalSize"], list)
	status, answer := call(t, "POST", base+"/message:send", message("m-2", id, `{"text": "Go on."}`))
	require.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, "UNSUPPORTED_OPERATION", reason(t, answer))
	status, answer = call(t, "POST", base+"/message:stream", body, "A2A-Version", "2.0")
	require.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, "VERSION_NOT_SUPPORTED", reason(t, answer))
}

// A chat is one task, and a message that comes again is no turn of its own.
func TestConversation(t *testing.T) {
	t.Parallel()
	g, url := serve(t, nil)
	base := url + "/v1/a2a/talker"
	_, first := updates(t, base+"/message:stream", message("m-1", "", `{"text": "Mars?"}`))
	id := field(first[0], "task", "id").(string)
	last := first[len(first)-1]
	require.Equal(t, "TASK_STATE_INPUT_REQUIRED", field(last, "statusUpdate", "status", "state"))
	require.Equal(t, "Mars has two moons.", textOf(last, "statusUpdate", "status", "message"))
	turn := message("m-2", id, `{"text": "Jupiter?"}`)
	for range 2 {
		_, sent := call(t, "POST", base+"/message:send", turn)
		require.Equal(t, id, field(sent, "task", "id"))
		require.Len(t, field(sent, "task", "history"), 3)
	}
	_, err := g.Close(t.Context(), "", id, events.By{})
	require.NoError(t, err)
	_, sent := call(t, "POST", base+"/message:send", turn)
	require.Equal(t, "TASK_STATE_COMPLETED", field(sent, "task", "status", "state"), "the same message after the end")
	require.Len(t, field(sent, "task", "artifacts"), 1)
}

// textOf is the text of the first part of what is at a path.
func textOf(v any, path ...string) string {
	parts, _ := field(v, append(path, "parts")...).([]any)
	if len(parts) == 0 {
		return ""
	}
	text, _ := field(parts[0], "text").(string)
	return text
}

// The text of a reply is streamed while the model writes it, to a stream that was there from the
// beginning and to one that came later. The end of the answer repeats nothing.
func TestLiveText(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"task", "chat"} {
		goOn := make(chan struct{})
		slow := llm.CallerFunc(func(ctx context.Context, _ llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
			stream(llm.Chunk{Kind: llm.ChunkText, Text: "One, "})
			for range 2 { // both streams have it
				select {
				case <-goOn:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			stream(llm.Chunk{Kind: llm.ChunkText, Text: "two."})
			return llm.Text{Content: "One, two."}, nil
		})
		g, url := serve(t, func(o *host.Options) { o.Providers["slow"] = slow })
		_, err := g.PutAgent(t.Context(), "", "slow", []byte(`{"mode": "`+mode+`", "llm": {"provider": "slow"}}`), agentfile.JSON)
		require.NoError(t, err)
		base := url + "/v1/a2a/slow"
		_, sent := call(t, "POST", base+"/message:send", strings.Replace(message("m-1", "", `{"text": "Count."}`), `{"message"`, `{"configuration": {"returnImmediately": true}, "message"`, 1))
		id := field(sent, "task", "id").(string)
		texts := make(chan string, 2)
		for range cap(texts) {
			go func() { texts <- liveText(t.Context(), base+"/tasks/"+id+":subscribe", mode, goOn) }()
		}
		if mode == "chat" {
			// A subscription ends with the conversation.
			_, waits := call(t, "POST", base+"/message:send", message("m-1", "", `{"text": "Count."}`))
			require.Equal(t, "One, two.", textOf(waits, "task", "status", "message"))
			_, err := g.Close(t.Context(), "", id, events.By{})
			require.NoError(t, err)
		}
		for range cap(texts) {
			require.Equal(t, "One, two.", <-texts, mode)
		}
	}
}

// liveText returns the text of a stream as a client puts it together. It tells when it has the
// beginning.
func liveText(ctx context.Context, url, mode string, goOn chan struct{}) string {
	req, err := http.NewRequestWithContext(ctx, "POST", url, http.NoBody)
	if err != nil {
		return err.Error()
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	text, begun := "", false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var u map[string]any
		if !ok || json.Unmarshal([]byte(data), &u) != nil {
			continue
		}
		switch {
		case mode == "chat" && field(u, "statusUpdate", "metadata") != nil:
			text += textOf(u, "statusUpdate", "status", "message")
		case mode == "task" && field(u, "artifactUpdate", "append") == true:
			text += textOf(u, "artifactUpdate", "artifact")
		case mode == "task" && field(u, "artifactUpdate") != nil:
			text = textOf(u, "artifactUpdate", "artifact")
		}
		if text == "One, " && !begun {
			begun = true
			goOn <- struct{}{}
		}
	}
	return text
}

// A task waits for the tools of its client, and goes on with their results.
func TestClientTools(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	base := url + "/v1/a2a/guide"
	_, waits := call(t, "POST", base+"/message:send", message("m-1", "", `{"text": "Where am I?"}`))
	require.Equal(t, "TASK_STATE_INPUT_REQUIRED", field(waits, "task", "status", "state"), waits)
	id := field(waits, "task", "id").(string)
	asked := field(waits, "task", "status", "message", "parts").([]any)
	one := field(asked[1], "data", "client_calls").([]any)[0]
	require.Equal(t, "locate", field(one, "name"))
	require.NotEmpty(t, field(one, "deadline"))
	result := func(message1, text string) (int, map[string]any) {
		return call(t, "POST", base+"/message:send", message(message1, id,
			`{"data": {"type": "tool-call-result", "toolCallId": "`+field(one, "id").(string)+`", "result": {"isSuccess": true, "content": "`+text+`"}}}`))
	}
	for range 2 {
		status, done := result("m-2", "Brno")
		require.Equal(t, http.StatusOK, status, done)
		require.Equal(t, "TASK_STATE_COMPLETED", field(done, "task", "status", "state"), done)
		require.Equal(t, "You are in Brno", textOf(field(done, "task", "artifacts").([]any)[0]))
	}
	status, answer := result("m-3", "Oslo")
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "ALREADY_ANSWERED", reason(t, answer))
}

// A task that is handed over is found under both agents, and listed under the one that has it.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	_, sent := call(t, "POST", url+"/v1/a2a/opener/message:send", message("m-1", "", `{"text": "Close it."}`))
	require.Equal(t, "TASK_STATE_COMPLETED", field(sent, "task", "status", "state"), sent)
	id := field(sent, "task", "id").(string)
	for agent, listed := range map[string]int{"opener": 0, "closer": 1} {
		status, task := call(t, "GET", url+"/v1/a2a/"+agent+"/tasks/"+id, "")
		require.Equal(t, http.StatusOK, status, task)
		status, list := call(t, "GET", url+"/v1/a2a/"+agent+"/tasks", "")
		require.Equal(t, http.StatusOK, status, list)
		require.Len(t, list["tasks"], listed, agent)
	}
}
