package a2atool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/pkg/tool"
)

// hostile is an agent that answers as a test says. other is a server that nobody may ask.
type hostile struct {
	url, other string
	asked      atomic.Int64 // requests to other
	mu         sync.Mutex
	paths      []string
	sent       http.HandlerFunc // what a message is answered with
	looked     http.HandlerFunc // what a look at a task is answered with
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { h.asked.Add(1) }))
	t.Cleanup(elsewhere.Close)
	mine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.paths = append(h.paths, r.URL.EscapedPath())
		h.mu.Unlock()
		switch {
		case r.URL.Path == cardPath:
			answer(w, map[string]any{"name": "x", "supportedInterfaces": []map[string]string{{"url": "http://" + r.Host + "/a2a", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}}})
		case strings.HasSuffix(r.URL.Path, "/message:send"):
			h.sent(w, r)
		default:
			h.looked(w, r)
		}
	}))
	t.Cleanup(mine.Close)
	h.url, h.other = mine.URL, elsewhere.URL
	return h
}

func (h *hostile) tool(t *testing.T) tool.Tool {
	t.Helper()
	return toolOf(t, Options{URL: h.url, Headers: map[string]string{"Authorization": "Bearer a-key-of-this-agent"}})
}

func says(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { answer(w, v) }
}

func leads(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusTemporaryRedirect) }
}

func completed(id string, parts ...map[string]any) map[string]any {
	return map[string]any{"id": id, "status": map[string]any{"state": "TASK_STATE_COMPLETED"}, "artifacts": []map[string]any{{"parts": parts}}}
}

// An agent sends nobody elsewhere, neither with a key nor without: not by a redirect of a message,
// of a look or of a file, and not by the address of a file.
func TestAnAgentLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	working := map[string]any{"id": "t", "status": map[string]any{"state": "TASK_STATE_WORKING"}}
	files := completed("t", map[string]any{"url": h.other + "/a"}, map[string]any{"url": strings.Replace(h.other, "127.0.0.1", "127.0.0.1.nip.io", 1)},
		map[string]any{"url": "file:///etc/passwd"}, map[string]any{"url": "//" + strings.TrimPrefix(h.other, "http://")}, map[string]any{"url": h.url + "/moved"})
	for name, c := range map[string]struct{ sent, looked http.HandlerFunc }{
		"a message": {leads(h.other), nil},
		"a look":    {says(map[string]any{"task": working}), leads(h.other)},
		"files":     {says(map[string]any{"task": files}), leads(h.other)},
	} {
		h.sent, h.looked = c.sent, c.looked
		said, err := h.tool(t).Run(callctx.WithStore(t.Context(), func(context.Context, string, []byte) (string, error) { return "kept", nil }), call("go"))
		if name == "files" {
			require.NoError(t, err)
			require.NotContains(t, said, "kept")
			require.NotContains(t, said, "root:")
		} else {
			require.Error(t, err, name)
		}
		require.Zero(t, h.asked.Load(), name)
	}
}

// A task that never ends, asks without end or says too much ends with the call's time, or with an
// error: nothing of it is remembered.
func TestTasksThatDoNotBehave(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status, says string
		code         string
	}{
		"an unknown state":         {"TASK_STATE_FOREVER", "", tool.CodeTimeout},
		"no state":                 {"", "", tool.CodeTimeout},
		"an id that cannot be":     {"TASK_STATE_INPUT_REQUIRED", "long", tool.CodeFailed},
		"an answer without an end": {"TASK_STATE_WORKING", "flood", tool.CodeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHostile(t)
			task := map[string]any{"id": "t", "status": map[string]any{"state": c.status}}
			if c.says == "long" {
				task["id"] = strings.Repeat("x", 1<<20)
			}
			h.sent, h.looked = says(map[string]any{"task": task}), says(task)
			if c.says == "flood" {
				h.looked = func(w http.ResponseWriter, r *http.Request) {
					for r.Context().Err() == nil {
						if _, err := fmt.Fprint(w, `{"x":"`+strings.Repeat("x", 1<<20)); err != nil {
							return
						}
					}
				}
			}
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			if c.code == tool.CodeTimeout {
				ctx, stop = context.WithTimeout(t.Context(), 500*time.Millisecond)
			}
			defer stop()
			_, err := h.tool(t).Run(ctx, call("go"))
			require.Error(t, err)
			if c.code == tool.CodeTimeout {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				return
			}
			var f *tool.Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, c.code, f.Code)
			require.Less(t, len(f.Message), 1000)
		})
	}
}

// The id of a task is no path: neither a model nor an agent has requests with the agent's key go
// elsewhere on its server.
func TestTheIDOfATaskIsNoPath(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"..", ".", "../../admin", "a/../../admin", "%2e%2e", "..%2f..%2fadmin", "t?admin=1", "t#x", "t:cancel"} {
		h := newHostile(t)
		h.sent, h.looked = says(map[string]any{"task": map[string]any{"id": id, "status": map[string]any{"state": "TASK_STATE_WORKING"}}}), says(completed(id))
		made := h.tool(t)
		arguments, err := json.Marshal(map[string]string{"task": "go", "task_id": id})
		require.NoError(t, err)
		for _, arguments := range []string{string(arguments), task1("go")} {
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			_, _ = made.Run(ctx, tool.Call{Run: "run-1", ID: "call_1", Name: "ask", Arguments: arguments})
			stop()
		}
		h.mu.Lock()
		for _, path := range h.paths {
			if path != cardPath && path != "/a2a/message:send" {
				rest, within := strings.CutPrefix(path, "/a2a/tasks/")
				require.True(t, within, "%q: %s", id, path)
				require.NotContains(t, rest, "/", id)
				require.NotContains(t, []string{"", ".", ".."}, rest, id)
			}
		}
		h.mu.Unlock()
	}
}
