package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// payer is an agent whose call a person has to approve, with a tool that is not in a sandbox.
const payer = `name: payer
task: Pay.
llm: {provider: scripted, script: [{calls: [{name: pay, arguments: {}}]}, {text: paid}]}
approval: {policy: always}
tools: [pay]
---
tools:
- {name: pay, description: Pays., schema: {type: object}, exec: {command: ["true"]}, sandbox: off}
`

// stranger is a process that can read the data directory, and has none of the operator's tokens: a
// tool without a sandbox that runs in a container of its own, or another user's backup.
func stranger(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("moorebus", args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=", "MOOREBUS_TOKEN=", "NATS_TOKEN=", "USER=mallory", "GORACE="+noSleep)
	return cmd
}

// operates is a stranger with variables of the operator.
func operates(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := stranger(t, args...)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// TestOnlyTheOperatorDecides: a reader of the lock file of a data directory may watch its runs, and
// decides nothing. The operator's own token decides: that of the environment if there is one, else
// that of the user.
func TestOnlyTheOperatorDecides(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	for name, env := range map[string][]string{
		"a token for HTTP": {"MOOREBUS_TOKEN=of the environment"}, "a token for NATS": {"NATS_TOKEN=of the environment"},
		"the user": {"XDG_CONFIG_HOME=" + t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, file := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "agent.yaml")
			require.NoError(t, os.WriteFile(file, []byte(payer), 0o600))
			dev := operates(t, env, "dev", "--data", data, "--agent", file, "--listen", "127.0.0.1:0")
			stderr, err := dev.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, dev.Start())
			t.Cleanup(func() { _ = dev.Process.Kill(); _ = dev.Wait() })
			lines := bufio.NewScanner(stderr)
			up := until(lines, "moorebus is up")
			go until(lines, "what never comes")
			run := startRun(t, regexp.MustCompile(`http://\S+`).FindString(up), env)

			require.Eventually(t, func() bool {
				out, err := stranger(t, "show", run, "--data", data).CombinedOutput()
				return err == nil && strings.Contains(string(out), "waiting_for_human")
			}, time.Minute, 100*time.Millisecond, "a reader of the lock file may watch")
			for _, args := range [][]string{
				{"approve", run}, {"reject", run, "--reason", "no"}, {"cancel", run}, {"send", run, "hello"}, {"budget", run, "--max-total-tokens", "9"},
				{"fork", run, "--at", "1"}, {"agents", "put", file}, {"purge", run, "--yes"},
			} {
				out, err := stranger(t, append(args, "--data", data)...).CombinedOutput()
				require.Error(t, err, "%s: %s", args, out)
			}
			out, err := stranger(t, "approve", run, "--data", data).CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "can only watch")
			forgeWithTheLock(t, data, run)

			out, err = operates(t, env, "approve", run, "--data", data).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Eventually(t, func() bool {
				out, err := operates(t, env, "show", run, "--data", data).CombinedOutput()
				return err == nil && strings.Contains(string(out), "paid")
			}, time.Minute, 100*time.Millisecond)
		})
	}
}

// startRun starts a run over HTTP.
func startRun(t *testing.T, url string, env []string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.TrimRight(url, "/")+"/v1/runs", strings.NewReader(`{"agent": "payer", "task": "Pay."}`))
	require.NoError(t, err)
	if token, ok := strings.CutPrefix(env[0], "MOOREBUS_TOKEN="); ok {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var started struct {
		Run string `json:"run_id"`
	}
	require.NoError(t, json.NewDecoder(res.Body).Decode(&started))
	require.NotEmpty(t, started.Run, res.Status)
	return started.Run
}

// forgeWithTheLock uses the token of the lock file as a NATS client does.
func forgeWithTheLock(t *testing.T, data, run string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(data, "moorebus.lock"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "of the environment")
	var held struct{ URL, Token string }
	require.NoError(t, json.Unmarshal(text, &held))
	refused := make(chan error, 10)
	conn, err := nats.Connect(held.URL, nats.Token(held.Token), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(t, err)
	defer conn.Close()
	subject := "moore.0.default.waiting_for_human.acting.default." + run
	require.NoError(t, conn.Publish(subject, []byte("{}")))
	require.ErrorContains(t, <-refused, subject)
}
