package agentfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/tool"
)

func variables(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := values[name]; return v, ok }
}

// A file as other programs have them, with keys that mean nothing here.
const mcpFile = `{
  "$schema": "https://example.org/mcp.json",
  "inputs": [],
  "mcpServers": {
    "web": {"type": "http", "url": "https://${HOST:-example.org}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 5000},
    "old": {"command": "x", "disabled": true},
    "fs": {"type": "stdio", "command": "${RUNNER:-npx}", "args": ["-y", "${PACKAGE}@1", "."], "env": {"ROOT": "${DIR:-/srv}", "PRICE": "$${5}"},
           "cwd": "${DIR:-sub}", "autoApprove": ["read"], "alwaysAllow": []},
    "cursor": {"url": "http://localhost:1"}
  }
}`

func TestMCPFile(t *testing.T) {
	t.Parallel()
	servers, notes, err := agentfile.ParseMCP([]byte(mcpFile), variables(map[string]string{"TOKEN": "t0ken", "PACKAGE": "pkg"}))
	require.NoError(t, err)
	require.Equal(t, []agentfile.MCPServer{
		{Name: "cursor", URL: "http://localhost:1"},
		{Name: "fs", Command: []string{"npx", "-y", "pkg@1", "."}, Env: map[string]string{"ROOT": "/srv", "PRICE": "${5}"}, Dir: "sub", Filled: []string{"pkg"}},
		{Name: "web", URL: "https://example.org/mcp", Headers: map[string]string{"Authorization": "Bearer t0ken"}, Filled: []string{"t0ken"}},
	}, servers)
	require.ElementsMatch(t, []string{
		"$schema means nothing here", "inputs means nothing here", "mcpServers.web.timeout means nothing here", "mcpServers.old is disabled",
		"mcpServers.fs.autoApprove means nothing here", "mcpServers.fs.alwaysAllow means nothing here",
	}, notes)
}

func TestMCPFilesThatCannotBe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		``:                          {"not valid JSON"},
		`{"servers": {}}`:           {"mcpServers", "is missing"},
		`{"mcpServers": []}`:        {"mcpServers", "is missing"},
		`{"mcpServers": {"a": 1}}`:  {"mcpServers.a", "want a mapping"},
		`{"mcpServers": {"a": {}}}`: {"mcpServers.a.command", "is missing"},
		"{\"mcpServers\": {\n\"a\": {\"type\": \"sse\", \"url\": \"http://h\"}}}": {"line 2", "mcpServers.a.type", "streamable HTTP replaced"},
		`{"mcpServers": {"a": {"type": "carrier pigeon"}}}`:                       {"mcpServers.a.type", "not known"},
		`{"mcpServers": {"a": {"type": "http"}}}`:                                 {"mcpServers.a.url", "is missing"},
		`{"mcpServers": {"a": {"type": "stdio", "command": "x", "url": "y"}}}`:    {"mcpServers.a.url", "belongs to"},
		`{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}`:              {"mcpServers.a.command", "not both"},
		`{"mcpServers": {"a": {"url": "ftp://h"}}}`:                               {"mcpServers.a.url", "absolute http"},
		`{"mcpServers": {"a": {"command": "x", "args": [1]}}}`:                    {"mcpServers.a.args[0]", "want a string"},
		`{"mcpServers": {"a": {"command": "x", "env": {"PORT": 80}}}}`:            {"mcpServers.a.env.PORT", "put it in quotes"},
		`{"mcpServers": {"a": {"command": "x", "command": "y"}}}`:                 {"command"},
		`{"mcpServers": {"a": {"command": "${NOPE}"}}}`:                           {"mcpServers.a.command", "NOPE is not set"},
		`{"mcpServers": {"a": {"command": "x", "args": ["${NOPE}"]}}}`:            {"mcpServers.a.args[0]", "NOPE is not set"},
		`{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOPE}"}}}}`:        {"mcpServers.a.env.K", "NOPE is not set"},
		`{"mcpServers": {"a": {"url": "http://${NOPE}"}}}`:                        {"mcpServers.a.url", "NOPE is not set"},
		`{"mcpServers": {"a": {"url": "http://h", "headers": {"K": "${NOPE}"}}}}`: {"mcpServers.a.headers.K", "NOPE is not set"},
		`{"mcpServers": {"a": {"command": "${NOPE"}}}`:                            {"mcpServers.a.command", "without }"},
	} {
		_, _, err := agentfile.ParseMCP([]byte(text), variables(nil))
		require.Error(t, err, text)
		for _, part := range want {
			require.ErrorContains(t, err, part, text)
		}
	}
	_, _, err := agentfile.ParseMCP(make([]byte, agentfile.MaxSize+1), variables(nil))
	require.ErrorIs(t, err, agentfile.ErrTooLarge)
}

func TestToolFileWithMCP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	file := write("tools.yaml", "mcp: .mcp.json\n")
	write(".mcp.json", `{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "cwd": "sub"}, "c": {"command": "x", "cwd": "/abs"}}}`)
	tools, err := agentfile.ReadTools(file)
	require.NoError(t, err)
	require.Equal(t, &agentfile.MCP{File: filepath.Join(dir, ".mcp.json")}, tools.MCP)
	servers, notes, err := agentfile.ReadMCP(tools.MCP.File, variables(nil))
	require.NoError(t, err)
	require.Empty(t, notes)
	require.Equal(t, []string{dir, filepath.Join(dir, "sub"), "/abs"}, []string{servers[0].Dir, servers[1].Dir, servers[2].Dir})

	docs, err := agentfile.ReadFile(write("both.yaml", `
name: a
llm: {provider: openai}
---
tools: [{builtin: calculator}]
mcp:
  file: /etc/mcp.json
  servers: {a: {pool: web, risk: low, effect: pure, timeout: 5s, tools: [read]}}
`), agentfile.Options{})
	require.NoError(t, err)
	require.Equal(t, "/etc/mcp.json", docs.Tools.MCP.File)
	a := docs.Tools.MCP.Servers["a"]
	require.Equal(t, agentfile.MCPTools{Pool: "web", Risk: tool.Low, Effect: tool.Pure, Timeout: a.Timeout, Tools: []string{"read"}}, a)
	_, _, err = agentfile.ReadMCP(filepath.Join(dir, "none"), variables(nil))
	require.ErrorContains(t, err, "none")
	_, _, err = agentfile.ReadMCP(write("bad.json", "{"), variables(nil))
	require.ErrorContains(t, err, "bad.json")
}
