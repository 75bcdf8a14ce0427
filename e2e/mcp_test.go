package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMCPToolsOverProcesses lets an actor's process use the tools of an MCP server
// that it starts, and again after it was killed: the server is another one then,
// which has lost its notes.
func TestMCPToolsOverProcesses(t *testing.T) {
	t.Parallel()
	servers, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"notes": map[string]any{"command": filepath.Join(bin, "server")}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), ".mcp.json")
	require.NoError(t, os.WriteFile(file, servers, 0o600))
	c := startCluster(t, setup{ackWait: quickAckWait, entries: []string{"{builtin: calculator}"}, mcp: file})
	c.api.awaitTools([]string{"notes.add_note", "notes.find_notes", "calculator"})
	s := c.stage()
	run := s.begin(t, script{
		asks("n-1", "notes_add_note", `{"text": "the kettle is descaled"}`),
		asks("n-2", "notes_find_notes", `{"word": "kettle"}`),
		asks("n-3", "calculator", `{"expression": "6 * 7"}`),
		says("It is noted."),
	}, "notes.add_note", "notes.find_notes", "calculator")
	end, view := s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Equal(t, "noted", view.Memory.ToolCalls["n-1"].text())
	require.Equal(t, "notes.add_note", view.Memory.ToolCalls["n-1"].Name)
	require.Equal(t, "the kettle is descaled", view.Memory.ToolCalls["n-2"].text())
	require.Equal(t, "42", view.Memory.ToolCalls["n-3"].text())

	c.replace("actor", 0)
	run = s.begin(t, script{asks("n-1", "notes_find_notes", `{"word": "kettle"}`), says("It is gone.")}, "notes.find_notes")
	end, view = s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Contains(t, view.Memory.ToolCalls["n-1"].text(), `no note contains "kettle"`)
	c.verifyAll()
}
