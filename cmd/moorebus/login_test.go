package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/oauth"
)

// A login takes what the file of MCP servers says, and flags go before it.
func TestLoginServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), ".mcp.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"mcpServers": {
		"local": {"command": "x"},
		"secret": {"url": "https://a.example/mcp", "oauth": {"client_id": "c", "client_secret": "s", "token_url": "https://a.example/token"}},
		"tracker": {"url": "https://t.example/mcp", "oauth": {"client_id": "c", "token_file": "token.json"}}
	}}`), 0o600))
	for name, says := range map[string]string{"nobody": "has no server", "local": "is a command", "secret": "has a client_secret"} {
		require.ErrorContains(t, loginServer(&oauth.LoginOptions{}, name, file), says)
	}
	require.Error(t, loginServer(&oauth.LoginOptions{}, "tracker", file+".missing"))
	var o oauth.LoginOptions
	require.NoError(t, loginServer(&o, "tracker", file))
	require.Equal(t, oauth.LoginOptions{URL: "https://t.example/mcp", ClientID: "c", TokenFile: filepath.Join(filepath.Dir(file), "token.json")}, o)
	o = oauth.LoginOptions{Document: "https://c.example/client.json", TokenFile: "mine"}
	require.NoError(t, loginServer(&o, "tracker", file))
	require.Empty(t, o.ClientID)
	require.Equal(t, "mine", o.TokenFile)
	o = oauth.LoginOptions{}
	require.NoError(t, loginServer(&o, "https://u.example/mcp", "no file"))
	require.Equal(t, oauth.LoginOptions{URL: "https://u.example/mcp"}, o)
}
