package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// witness plays a script and keeps the messages that it is asked with.
type witness struct {
	script

	mu   sync.Mutex
	seen []string
}

func (w *witness) reply(r *chatRequest) (modelReply, error) {
	w.mu.Lock()
	w.seen = append(w.seen, string(r.Raw))
	w.mu.Unlock()
	return w.script.reply(r)
}

// requests are the messages of each request so far.
func (w *witness) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// artist is an MCP server whose one tool draws. Its file is returned.
func artist(t *testing.T, drawing []byte) string {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "art", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "draw", Description: "Draws.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{
				&mcp.TextContent{Text: "a drawing:"}, &mcp.ImageContent{MIMEType: "image/png", Data: drawing},
			}}, nil, nil
		})
	endpoint := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(endpoint.Close)
	t.Cleanup(endpoint.CloseClientConnections)
	file := filepath.Join(t.TempDir(), ".mcp.json")
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"art": map[string]any{"type": "http", "url": endpoint.URL}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, config, 0o600))
	return file
}

// TestImagesReachTheModel sends images over HTTP and has an MCP server and an HTTP tool
// return more. The gateway and the actor store them, and the planner sends all of them to
// the model with each request.
func TestImagesReachTheModel(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	photo, drawing, chart := "\x89PNG"+strings.Repeat("photo", 20_000), "\x89PNG drawing", "\x89PNG chart"
	c := startCluster(t, setup{mcp: artist(t, []byte(drawing)), tools: []string{"chart"}})
	c.tools.handle("chart", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/png")
		_, _ = w.Write([]byte(chart))
	})
	c.api.awaitTools([]string{"art.draw", "chart"})
	run := newRunID()
	model := &witness{script: script{asks("c-1", "art_draw", "{}"), asks("c-2", "chart", "{}"), says("Three pictures.")}}
	c.model.play("images", model)
	data := base64.StdEncoding.EncodeToString([]byte(photo))
	require.NoError(t, c.api.call(t.Context(), http.MethodPost, "/v1/runs", map[string]any{
		"run_id": run, "agent": map[string]any{
			"name": "artist", "llm": map[string]any{"provider": "openai"}, "models": map[string]any{"default": "images"}, "tools": []string{"art.draw", "chart"},
		},
		"task": []map[string]any{{"type": "text", "text": "What is this?"}, {"type": "image", "media_type": "image/png", "data": data}},
	}, nil))
	end, view := c.stage().finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Equal(t, "What is this?", view.Memory.Messages[0].Content)
	require.Contains(t, view.Memory.ToolCalls["c-1"].text(), "a drawing:\n[image image/png, 12 bytes, kept as results_default/")

	requests := model.requests()
	require.Len(t, requests, 3)
	inline := func(image string) string {
		return "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(image))
	}
	for i, want := range [][]string{{photo}, {photo, drawing}, {photo, drawing, chart}} {
		for _, image := range want {
			require.Contains(t, requests[i], inline(image), "request %d", i)
		}
	}
	require.NotContains(t, requests[1], inline(chart))
	c.verifyAll()
}
