package toolfile_test

import (
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/mcppins"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

// mcpTools writes a tool file and one of MCP servers beside it.
func mcpTools(t *testing.T, tools, servers string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".mcp.json"), []byte(servers), 0o600))
	file := filepath.Join(dir, "tools.yaml")
	require.NoError(t, os.WriteFile(file, []byte(tools), 0o600))
	return file
}

func TestMCPServersBesideOtherTools(t *testing.T) {
	t.Setenv("WIRE_TEST_TOKEN", "a very secret token")
	t.Setenv("WIRE_TEST_PATH", "path-secret")
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	for _, name := range []string{"one", "two"} {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}, nil)
	}
	handler := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		if !strings.HasSuffix(r.Header.Get("Authorization"), "token") {
			return nil
		}
		return server
	}, nil)
	web := httptest.NewServer(handler)
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	file := mcpTools(t, `
tools: [{builtin: calculator}]
mcp: {file: .mcp.json, servers: {web: {pool: remote, risk: critical, tools: [one]}}}
`, `{"mcpServers": {"web": {"type": "http", "url": "`+web.URL+`/${WIRE_TEST_PATH}?k=query/literal", "headers": {"Authorization": "Bearer ${WIRE_TEST_TOKEN}"}}}}`)
	registry, secrets, err := toolfile.ActorTools(file, []string{"remote"}, false)
	require.NoError(t, err)
	require.Subset(t, secrets, []string{"Bearer a very secret token", "a very secret token", "path-secret", "query/literal", "query%2Fliteral"})
	require.Equal(t, []string{"default", "remote"}, registry.Pools(), "before the server is there")
	read, err := agentfile.ReadTools(file)
	require.NoError(t, err)
	local, _, err := toolfile.LocalTools(read)
	require.NoError(t, err)
	for _, r := range []*toolset.Registry{registry, local} {
		stop := r.Start(t.Context(), slog.New(slog.DiscardHandler))
		r.Ready(t.Context())
		one, ok := r.Lookup("web.one")
		require.True(t, ok)
		require.Equal(t, tool.Critical, one.Definition().Risk)
		_, ok = r.Lookup("web.two")
		require.False(t, ok)
		stop()
		_, ok = r.Lookup("web.one")
		require.False(t, ok)
	}
}

// Without the file of pins nothing starts.
func TestPinsThatAreNotThere(t *testing.T) {
	file := mcpTools(t, "mcp: {file: .mcp.json, pinned: pins.json}", `{"mcpServers": {"a": {"command": "x"}}}`)
	_, _, err := toolfile.ActorTools(file, nil, false)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "mcp.pinned: ")
	require.ErrorContains(t, err, "moorebus mcp pin")
	pins := filepath.Join(filepath.Dir(file), "pins.json")
	require.NoError(t, os.WriteFile(pins, []byte(`{"version": 2}`), 0o600))
	_, _, err = toolfile.ActorTools(file, nil, false)
	require.ErrorContains(t, err, "version: 2 is not known")
	require.NoError(t, mcppins.New().Write(pins))
	_, _, err = toolfile.ActorTools(file, nil, false)
	require.NoError(t, err)
}

func TestMCPServersThatCannotBe(t *testing.T) {
	for want, c := range map[string][2]string{
		"mcp.servers.b: ": {"mcp: {file: .mcp.json, servers: {b: {risk: low}}}", `{"mcpServers": {"a": {"command": "x"}}}`},
		"NOPE is not set": {"mcp: .mcp.json", `{"mcpServers": {"a": {"command": "${NOPE}"}}}`},
		`MCP server "…"`:  {"mcp: .mcp.json", `{"mcpServers": {"…": {"command": "x"}}}`},
		"tools of \"a\" and of \"a.b\" could have the same names": {"mcp: .mcp.json", `{"mcpServers": {"a": {"command": "x"}, "a.b": {"command": "x"}}}`},
		"tools of \"c d\" and of \"c_d\" could":                   {"mcp: .mcp.json", `{"mcpServers": {"c d": {"command": "x"}, "c_d": {"command": "x"}, "c": {"command": "x"}}}`},
		"streamable HTTP replaced":                                {"mcp: .mcp.json", `{"mcpServers": {"a": {"command": "x", "type": "sse"}}}`},
	} {
		_, _, err := toolfile.ActorTools(mcpTools(t, c[0], c[1]), nil, false)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, ".mcp.json")
	}
}

// What variables put into a server is taken out of results, but not the folders that
// it works in.
func TestVariablesOfMCPServersAreSecrets(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("WIRE_TEST_ARG", "argument-secret")
	t.Setenv("WIRE_TEST_FOLDER", folder)
	t.Setenv("WIRE_TEST_PROGRAM", "some-program")
	file := mcpTools(t, "mcp: .mcp.json", `{"mcpServers": {"a": {"command": "${WIRE_TEST_PROGRAM}", "args": ["--key=${WIRE_TEST_ARG}", "${WIRE_TEST_FOLDER}"]}}}`)
	_, secrets, err := toolfile.ActorTools(file, nil, false)
	require.NoError(t, err)
	require.Equal(t, []string{"argument-secret"}, secrets)
}
