package mcptool

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The reference servers, in the versions that are tested.
const (
	everything = "@modelcontextprotocol/server-everything@2026.8.31"
	filesystem = "@modelcontextprotocol/server-filesystem@2026.8.31"
)

// npm installs packages into a folder and returns where their commands are.
func npm(t *testing.T, packages ...string) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("node and npm are not here: the reference servers of npm are not tested") // reason: the package runs against the go-sdk's own server in any case
	}
	dir := t.TempDir()
	ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, "npm", append([]string{"install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts"}, packages...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	away := ctx.Err() != nil
	for _, code := range []string{"ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH", "E403", "E503"} {
		away = away || strings.Contains(string(out), code)
	}
	if err != nil && away {
		t.Skipf("npm's registry is not reachable: the reference servers of npm are not tested: %s", out) // reason: no network; the go-sdk's own server is tested in any case
	}
	require.NoError(t, err, string(out))
	return filepath.Join(dir, "node_modules", ".bin")
}

func TestNpmEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts a server of npm
	}
	t.Parallel()
	bin := npm(t, everything)
	r := start(t, Options{Name: "srv", Command: []string{filepath.Join(bin, "mcp-server-everything"), "stdio"}})
	require.True(t, r.has("echo"), r.log.String())
	require.Equal(t, "Echo: hi", r.call(t, "echo", `{"message":"hi"}`).Result)
	require.Contains(t, r.call(t, "get-sum", `{"a":19,"b":23}`).Result, "42")

	keeper := &shelf{}
	out := r.Execute(callctx.WithStore(t.Context(), keeper.Keep), tool.Call{Name: "srv.get-tiny-image", Arguments: "{}"})
	require.Nil(t, out.Failure)
	require.Contains(t, out.Result, "[image image/png, ")
	require.Contains(t, out.Result, "kept as bucket/1]")
	require.True(t, strings.HasPrefix(keeper.kept[0], "\x89PNG"))

	out = r.call(t, "get-structured-content", `{"location":"New York"}`)
	require.Nil(t, out.Failure)
	require.True(t, json.Valid([]byte(out.Result)), out.Result)
	f := r.call(t, "get-sum", `{"a":"nineteen"}`).Failure
	require.NotNil(t, f)
	require.Equal(t, tool.CodeFailed, f.Code)
	// This tool can only be called as a task, which takes some seconds.
	out = r.call(t, "simulate-research-query", `{"topic":"tides"}`)
	require.Nil(t, out.Failure)
	require.Contains(t, out.Result, "tides")
	for _, d := range r.Definitions() {
		require.NoError(t, d.Validate())
	}
	log := r.log.String()
	require.NotContains(t, log, "is left out")
}

func TestNpmFilesystem(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts a server of npm
	}
	t.Parallel()
	bin := npm(t, filesystem)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	r := start(t, Options{Name: "srv", Command: []string{filepath.Join(bin, "mcp-server-filesystem"), dir}, TrustHints: true})
	require.True(t, r.has("read_text_file"), r.log.String())
	file := filepath.Join(dir, "a.txt")
	arguments, err := json.Marshal(map[string]string{"path": file, "content": "written by a tool"})
	require.NoError(t, err)
	require.Nil(t, r.call(t, "write_file", string(arguments)).Failure)
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "written by a tool", string(written))
	arguments, err = json.Marshal(map[string]string{"path": file})
	require.NoError(t, err)
	require.Equal(t, "written by a tool", r.call(t, "read_text_file", string(arguments)).Result)
	f := r.call(t, "read_text_file", `{"path":"/etc/hostname"}`).Failure
	require.NotNil(t, f)
	require.Contains(t, f.Message, "denied")

	read, _ := r.Lookup("srv.read_text_file")
	require.Equal(t, tool.Low, read.Definition().Risk)
	require.True(t, read.Definition().Effect.Repeatable())
	write, _ := r.Lookup("srv.write_file")
	require.Equal(t, tool.High, write.Definition().Risk)
}
