package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// farAgent has a tool that takes as long as the test wants.
const farAgent = `
name: far
description: Digs slowly.
llm:
  provider: scripted
  script:
    - calls: [{name: dig, arguments: {}}]
    - text: "Found {{observation -1}}"
tools: [dig]
---
tools:
  - {name: dig, description: Digs., http: {url: "%s"}, effect: idempotent, timeout: 5m}
`

// nearAgent has an agent elsewhere as its tool.
const nearAgent = `
name: near
llm:
  provider: scripted
  script:
    - calls: [{name: far, arguments: {task: Dig here.}}]
    - text: "The far agent says: {{observation -1}}"
tools: [far]
---
tools:
  - {name: far, a2a: "http://%s/v1/a2a/far", headers: {Authorization: "Bearer ${FAR_TOKEN}"}}
`

const farToken = "far-secret-token"

// installation is a process with every role, which can be killed and started again.
type installation struct {
	t                   *testing.T
	address, file, data string
	env                 []string
	process             *process
}

func newInstallation(t *testing.T, definition string, env ...string) *installation {
	t.Helper()
	dir := t.TempDir()
	i := &installation{t: t, address: freeAddress(t), file: filepath.Join(dir, "agent.yaml"), data: filepath.Join(dir, "data")}
	i.env = environment(dir, append(env, "MOOREBUS_DATA="+i.data)...)
	require.NoError(t, os.WriteFile(i.file, []byte(definition), 0o600))
	i.start()
	t.Cleanup(func() { i.process.reap(t) })
	return i
}

// start starts the process and waits until it answers.
func (i *installation) start() {
	i.t.Helper()
	i.process = launch(i.t, i.file, i.env, "moorebus", "dev", "--agent", i.file, "--listen", i.address)
	newAPI(i.t, "http://"+i.address).awaitReady()
}

// call sends a request with JSON and returns the answer.
func (i *installation) call(method, path string, body any, token string) (int, map[string]any) {
	i.t.Helper()
	ctx, stop := context.WithTimeout(i.t.Context(), 2*time.Minute)
	defer stop()
	data, err := json.Marshal(body)
	require.NoError(i.t, err)
	req, err := http.NewRequestWithContext(ctx, method, "http://"+i.address+path, bytes.NewReader(data))
	require.NoError(i.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(i.t, err)
	defer func() { _ = res.Body.Close() }()
	answer := map[string]any{}
	require.NoError(i.t, json.NewDecoder(res.Body).Decode(&answer))
	return res.StatusCode, answer
}

// begin starts a run and returns its id, once its tool is announced.
func (i *installation) begin() string {
	i.t.Helper()
	newAPI(i.t, "http://"+i.address).awaitTools([]string{"far"})
	status, started := i.call("POST", "/v1/runs", map[string]string{"agent": "near", "task": "Have it dug."}, "")
	require.Equal(i.t, http.StatusCreated, status, started)
	return started["run_id"].(string)
}

// events returns the run's events when it has ended.
func (i *installation) events(run string) string {
	i.t.Helper()
	ctx, stop := context.WithTimeout(i.t.Context(), 2*time.Minute)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+i.address+"/v1/runs/"+run+"/events", http.NoBody)
	require.NoError(i.t, err)
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	require.NoError(i.t, err)
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body) // the stream ends with the run
	require.NoError(i.t, err)
	return string(data)
}

// digger is the slow tool: each request waits until the test lets go.
func digger(t *testing.T) (url string, digging <-chan struct{}, letGo func(), requests *atomic.Int64) {
	t.Helper()
	began, released := make(chan struct{}, 64), make(chan struct{})
	requests = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		began <- struct{}{}
		select {
		case <-released:
			_, _ = io.WriteString(w, "a bone")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, began, func() { close(released) }, requests
}

// TestAgentElsewhere kills both installations while an agent of one works for an agent of the
// other: the run ends with the answer of the one task that it began.
func TestAgentElsewhere(t *testing.T) {
	t.Parallel()
	needsCommands(t)
	url, digging, letGo, _ := digger(t)
	far := newInstallation(t, fmt.Sprintf(farAgent, url), "MOOREBUS_TOKEN="+farToken)
	near := newInstallation(t, fmt.Sprintf(nearAgent, far.address), "FAR_TOKEN="+farToken)
	run := near.begin()
	<-digging
	near.process.kill()
	near.start()
	far.process.kill()
	far.start()
	<-digging // the far agent's actor goes on
	letGo()
	events := near.events(run)
	require.Contains(t, events, "The far agent says: Found a bone")
	require.NotContains(t, events, farToken)
	status, tasks := far.call("GET", "/v1/a2a/far/tasks?includeArtifacts=true", nil, farToken)
	require.Equal(t, http.StatusOK, status)
	require.EqualValues(t, 1, tasks["totalSize"], tasks)
	task := tasks["tasks"].([]any)[0].(map[string]any)
	require.Equal(t, "TASK_STATE_COMPLETED", task["status"].(map[string]any)["state"])
}

// A run that is cancelled cancels its task elsewhere.
func TestCancelledRunCancelsItsTaskElsewhere(t *testing.T) {
	t.Parallel()
	needsCommands(t)
	url, digging, letGo, _ := digger(t)
	defer letGo()
	far := newInstallation(t, fmt.Sprintf(farAgent, url), "MOOREBUS_TOKEN="+farToken)
	near := newInstallation(t, fmt.Sprintf(nearAgent, far.address), "FAR_TOKEN="+farToken)
	run := near.begin()
	<-digging
	_, tasks := far.call("GET", "/v1/a2a/far/tasks", nil, farToken)
	id := tasks["tasks"].([]any)[0].(map[string]any)["id"].(string)
	status, answer := near.call("POST", "/v1/runs/"+run+"/cancel", map[string]string{}, "")
	require.Equal(t, http.StatusOK, status, answer)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+far.address+"/v1/runs/"+id+"/events", http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+farToken)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body) // the stream ends with the run
	require.NoError(t, err)
	require.True(t, strings.Contains(string(data), "event: Cancelled"), string(data))
}

// curiousAgent asks before it answers.
const curiousAgent = `
name: far
description: Paints.
llm:
  provider: scripted
  script:
    - calls: [{name: ask_human, arguments: {question: "Which colour?"}}]
    - text: "Painted it: {{observation -1}}"
tools: [ask_human]
---
tools:
  - {builtin: ask_human}
`

// TestQuestionElsewhere kills both installations while an agent of one waits for an answer that the
// agent of the other has a human give: the answer reaches the one task that was begun.
func TestQuestionElsewhere(t *testing.T) {
	t.Parallel()
	needsCommands(t)
	far := newInstallation(t, curiousAgent, "MOOREBUS_TOKEN="+farToken)
	near := newInstallation(t, fmt.Sprintf(nearAgent, far.address), "FAR_TOKEN="+farToken)
	run := near.begin()
	api := newAPI(t, "http://"+near.address)
	api.awaitState(t.Context(), run, "waiting_for_human")
	near.process.kill()
	near.start()
	far.process.kill()
	far.start()
	_, now := near.call("GET", "/v1/runs/"+run, nil, "")
	asked := now["memory"].(map[string]any)["pending_approval"].(map[string]any)["requests"].([]any)[0].(map[string]any)
	require.Contains(t, asked["reason"], "Which colour?")
	status, answer := near.call("POST", "/v1/runs/"+run+"/decisions", map[string]any{
		"call_id": asked["call_id"], "decision": "modified", "arguments": map[string]any{"task": "Dig here.", "answer": "Red"}, "by": "ada",
	}, "")
	require.Equal(t, http.StatusOK, status, answer)
	events := near.events(run)
	require.Contains(t, events, "The far agent says: Painted it: Red")
	require.NotContains(t, events, farToken)
	_, tasks := far.call("GET", "/v1/a2a/far/tasks?includeArtifacts=true", nil, farToken)
	require.EqualValues(t, 1, tasks["totalSize"], tasks)
}

// TestPushAfterRestart kills an installation between two notifications of a task: the client, which
// asked once, is told how the task ends.
func TestPushAfterRestart(t *testing.T) {
	t.Parallel()
	needsCommands(t)
	states := make(chan string, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var update struct {
			Task struct {
				Status struct{ State string }
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&update)
		states <- update.Task.Status.State
	}))
	t.Cleanup(receiver.Close)
	await := func(want string) {
		for state := ""; state != want; {
			select {
			case state = <-states:
			case <-time.After(time.Minute):
				require.FailNow(t, "no notification", want)
			}
		}
	}
	far := newInstallation(t, curiousAgent)
	say := func(id, task, text string) map[string]any {
		status, sent := far.call("POST", "/v1/a2a/far/message:send", map[string]any{
			"message":       map[string]any{"messageId": id, "taskId": task, "role": "ROLE_USER", "parts": []map[string]string{{"text": text}}},
			"configuration": map[string]any{"taskPushNotificationConfig": map[string]string{"id": "mine", "url": receiver.URL}},
		}, "")
		require.Equal(t, http.StatusOK, status, sent)
		return sent["task"].(map[string]any)
	}
	newAPI(t, "http://"+far.address).awaitTools([]string{"ask_human"})
	id := say("m-1", "", "Paint it.")["id"].(string)
	await("TASK_STATE_INPUT_REQUIRED")
	far.process.kill()
	far.start()
	say("m-2", id, "Red")
	await("TASK_STATE_COMPLETED")
}
