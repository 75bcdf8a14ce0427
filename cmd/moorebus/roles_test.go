package main

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
)

// One binary is every role: moorebus alone carries out a run, and shows and verifies it.
func TestOneBinaryIsEveryRole(t *testing.T) {
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	free, err := freeport.Addresses(1)
	require.NoError(t, err)
	for _, args := range [][]string{{"planner"}, {"actor"}, {"observer"}, {"gateway", "--listen", free[0]}} {
		cmd := exec.Command("moorebus", append(args, "--nats", server.ClientURL(), "--log-level", "error")...)
		cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+t.TempDir(), "GORACE="+noSleep), os.Stderr
		ended, err := commandtest.Start(cmd)
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			require.Zero(t, cmd.ProcessState.ExitCode(), args)
		})
	}
	url := "http://" + free[0]
	const body = `{"agent": {"name": "adder", "llm": {"provider": "scripted", "script": [{"calls": [{"name": "calculator", "arguments": {"expression": "40 + 2"}}]}, {"text": "It is {{observation -1}}."}]}, "tools": ["calculator"]}, "task": "Add."}`
	require.Eventually(t, func() bool { // until all have announced what they do
		resp, err := http.Post(url+"/v1/runs", "application/json", strings.NewReader(body))
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusCreated
	}, time.Minute, 20*time.Millisecond)
	tapped := moorebus(t, "", "tap", "--run", "@last", "--from", "1", "--outputs", "--url", url)
	require.Zero(t, tapped.code, tapped.err)
	require.Contains(t, tapped.out, "It is 42.")
	verified := moorebus(t, "", "replay", "verify", "@last", "--nats", server.ClientURL())
	require.Zero(t, verified.code, verified.err)
}
