package main

import (
	"io"
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
	free, err := freeport.Addresses(5)
	require.NoError(t, err)
	roles := [][]string{{"planner"}, {"actor"}, {"observer"}, {"gateway", "--listen", free[4]}}
	for i, args := range roles {
		cmd := exec.Command("moorebus", append(args, "--metrics-listen", free[i], "--nats", server.ClientURL(), "--log-level", "error")...)
		cmd.Env, cmd.Stderr = append(os.Environ(), "HOME="+t.TempDir(), "GORACE="+noSleep), os.Stderr
		ended, err := commandtest.Start(cmd)
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended
			require.Zero(t, cmd.ProcessState.ExitCode(), args)
		})
	}
	url := "http://" + free[4]
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
	for i, counted := range []string{
		`moorebus_transitions_total{from="planning",to="done",type="LlmFinalAnswer"} 1`,
		`moorebus_tool_call_duration_seconds_count{outcome="ok",pool="default",tool="calculator"} 1`,
		`moorebus_transitions_total{from="observing",to="planning",type="Continue"} 1`,
		`moorebus_transitions_total{from="idle",to="planning",type="Start"} 1`,
	} {
		require.Contains(t, read(t, "http://"+free[i]+"/metrics"), counted, roles[i])
		require.Contains(t, read(t, "http://"+free[i]+"/readyz"), "ready", roles[i])
		require.Contains(t, read(t, "http://"+free[i]+"/healthz"), "ok", roles[i])
	}
	verified := moorebus(t, "", "replay", "verify", "@last", "--nats", server.ClientURL())
	require.Zero(t, verified.code, verified.err)
}

// read returns the body of an answer 200.
func read(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode, string(body))
	return string(body)
}
