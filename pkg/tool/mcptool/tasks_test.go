package mcptool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/pkg/tool"
)

// tasker is a server of version 2025-11-25 whose tools can only be called as tasks. Each tool's
// task says what a list of answers has, one for each time that it is asked for its status.
type tasker struct {
	mu   sync.Mutex
	seen []string
	// states are what is answered to tasks/get, by task, and results to tasks/result.
	states  map[string][]string
	results map[string]string
	// polled gets a value for each status that was asked for.
	polled chan struct{}
}

func (s *tasker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name   string `json:"name"`
			TaskID string `json:"taskId"`
			Task   *struct {
				TTL int64 `json:"ttl"`
			} `json:"task"`
		} `json:"params"`
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&req) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if len(req.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	answer := s.answer(req.Method, req.Params.Name, req.Params.TaskID, req.Params.Task != nil && req.Params.Task.TTL > 0)
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, req.ID, answer)
}

func (s *tasker) answer(method, name, id string, asTask bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, method+" "+name+id)
	result := func(format string, args ...any) string { return `"result":` + fmt.Sprintf(format, args...) }
	const fault = `"error":{"code":%d,"message":%q}`
	switch method {
	case "initialize":
		return result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"tasker","version":"1"}}`)
	case "tools/list":
		tools := []map[string]any{{"name": "foreign", "inputSchema": map[string]any{"$ref": "https://example.org/schema.json"}}, {"name": "plain", "inputSchema": map[string]any{"type": "object"}, "execution": map[string]any{"taskSupport": "optional"}}}
		for name := range s.states {
			tools = append(tools, map[string]any{"name": name, "inputSchema": map[string]any{"type": "object"}, "execution": map[string]any{"taskSupport": "required"}})
		}
		text, _ := json.Marshal(map[string]any{"tools": tools}) // plain values
		return result("%s", text)
	case "tools/call":
		if asTask == (name == "plain") {
			return fmt.Sprintf(fault, -32601, "the other way")
		}
		if name == "plain" || name == "at_once" {
			return result(`{"content":[{"type":"text","text":"at once"}]}`)
		}
		return result(`{"task":{"taskId":%q,"status":"working","ttl":60000,"pollInterval":1}}`, name)
	case "tasks/get":
		select {
		case s.polled <- struct{}{}:
		default:
		}
		state := s.states[id][0]
		if len(s.states[id]) > 1 {
			s.states[id] = s.states[id][1:]
		}
		if state == "forgotten" {
			return fmt.Sprintf(fault, -32602, "there is no such task")
		}
		return result(`{"taskId":%q,"status":%q,"statusMessage":"because of rain","ttl":60000,"pollInterval":1}`, id, state)
	case "tasks/result":
		return s.results[id]
	case "tasks/cancel":
		return result(`{"taskId":%q,"status":"cancelled","ttl":60000}`, id)
	}
	return fmt.Sprintf(fault, -32601, "method not found")
}

func (s *tasker) saw(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.seen, what)
}

// A tool that can only be called as a task is: the status is asked for until the task ends, and
// its result is that of the call. A task whose result nobody reads is cancelled.
func TestTasks(t *testing.T) {
	t.Parallel()
	s := &tasker{
		states: map[string][]string{
			"slow": {"working", "working", "completed"}, "fails": {"working", "failed"}, "breaks": {"failed"}, "asks": {"input_required"},
			"cancelled": {"cancelled"}, "lost": {"working", "forgotten"}, "endless": {"working"}, "at_once": {"completed"},
		},
		results: map[string]string{
			"slow":   `"result":{"content":[],"structuredContent":{"sum":3}}`,
			"fails":  `"result":{"content":[{"type":"text","text":"no paper"}],"isError":true}`,
			"breaks": `"error":{"code":-32603,"message":"it broke"}`,
			"asks":   `"result":{"content":[{"type":"text","text":"answered"}]}`,
		},
		polled: make(chan struct{}, 1),
	}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	r := start(t, Options{Name: "srv", URL: web.URL})
	require.False(t, r.has("foreign"), "a schema that cannot be used does not stop the process")
	require.Contains(t, r.log.String(), "a schema may only refer to itself")
	for name, want := range map[string]string{"slow": `{"sum":3}`, "asks": "answered", "at_once": "at once", "plain": "at once"} {
		out := r.call(t, name, "{}")
		require.Nil(t, out.Failure, name)
		require.Equal(t, want, out.Result, name)
	}
	for name, want := range map[string]string{
		"fails": "no paper", "breaks": "it broke (MCP error -32603)", "lost": "there is no such task (MCP error -32602)",
		"cancelled": `the MCP server "srv" cancelled the task: because of rain`,
	} {
		f := r.call(t, name, "{}").Failure
		require.NotNil(t, f, name)
		require.Equal(t, tool.CodeFailed, f.Code, name)
		require.Equal(t, want, f.Message, name)
	}

	unwanted := fmt.Errorf("nobody wants it")
	for name, c := range map[string]struct {
		cause     error
		cancelled bool
	}{"the run was cancelled": {unwanted, true}, "the process ends": {context.Canceled, false}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		s.mu.Lock()
		s.seen = nil
		s.mu.Unlock()
		select {
		case <-s.polled:
		default:
		}
		go func() {
			<-s.polled
			cancel(c.cause)
		}()
		out := r.Execute(callctx.WithUnwanted(ctx, unwanted), tool.Call{Run: "run", ID: "c1", Name: "srv.endless", Arguments: "{}"})
		require.NotNil(t, out.Failure, name)
		require.Equal(t, c.cancelled, s.saw("tasks/cancel endless"), name)
	}
}

// The server says how often it wants to be asked, within bounds.
func TestPollingIsBounded(t *testing.T) {
	for interval, want := range map[int64]time.Duration{-5: leastPoll, 0: leastPoll, 1500: 1500 * time.Millisecond, 1 << 62: mostPoll} {
		require.Equal(t, want, (&task{Poll: &interval}).pause(), interval)
	}
	require.Equal(t, defaultPoll, (&task{}).pause())
}
