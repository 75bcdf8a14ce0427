package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool/exectool"
)

// An actor whose key is in its environment alone says once which tools act as its user, so do doctor and
// tools, and those tools find no key.
func TestToolsWithoutASandboxAreSaid(t *testing.T) {
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	public, err := user.PublicKey()
	require.NoError(t, err)
	srv := natstest.Start(t, natstest.Options{More: fmt.Sprintf("authorization { users: [{nkey: %s}] }", public)})
	for name, value := range map[string]string{"NATS_NKEY_SEED": string(seed), "NATS_NKEY": "", "NATS_URL": srv.URL, "HOME": t.TempDir()} {
		t.Setenv(name, value)
	}
	done := moorebus(t, "", "init")
	require.Zero(t, done.code, done.err)
	dir := t.TempDir()
	file := "tools:\n- {name: held, description: Is held., exec: {command: [\"true\"]}}\n- {name: heldtoo, description: Is held., exec: {command: [\"true\"]}}\n"
	file += "- {name: near, description: Is held., exec: {command: [\"true\"]}, network: host}\n"
	for i := range 10 {
		file += fmt.Sprintf("- {name: free%d, description: Is free., exec: {command: [\"true\"]}, sandbox: off}\n", i)
	}
	tools, log := filepath.Join(dir, "tools.yaml"), filepath.Join(dir, "log")
	require.NoError(t, os.WriteFile(tools, []byte(file), 0o600))
	plain := func(args ...string) *exec.Cmd { // as a user who may look into their own processes only
		if os.Geteuid() == 0 {
			args = append([]string{"setpriv", "--bounding-set", "-all"}, args...)
		}
		return exec.Command(args[0], args[1:]...)
	}
	cmd := plain("moorebus", "actor", "--tools", tools)
	cmd.Env, cmd.Dir = append(os.Environ(), "GORACE="+noSleep), dir
	said, err := os.Create(log)
	require.NoError(t, err)
	cmd.Stderr = said
	ended, err := commandtest.Start(cmd)
	require.NoError(t, err)
	defer func() { _ = said.Close() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	var listed []struct {
		Name    string
		Sandbox []string
	}
	require.Eventually(t, func() bool {
		got := moorebus(t, "", "tools", "-o", "json")
		return got.code == 0 && json.Unmarshal([]byte(got.out), &listed) == nil && len(listed) == 13
	}, time.Minute, 20*time.Millisecond)
	for _, l := range listed {
		if strings.HasPrefix(l.Name, "free") {
			require.Equal(t, []string{"off"}, l.Sandbox)
		} else {
			require.NotEmpty(t, l.Sandbox)
			require.NotContains(t, l.Sandbox, "off")
		}
	}
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "act as the user"), string(text))
	require.Contains(t, string(text), "free0, free1, free2, free3, free4, free5, free6, free7 and 2 more")
	require.LessOrEqual(t, strings.Count(string(text), "no bound"), 1, string(text))
	require.NotContains(t, string(text), string(seed))
	look := moorebus(t, "", "doctor")
	require.Contains(t, look.out, "these tools have no sandbox and act as the user of their actor: default/free0, ")
	require.NotContains(t, look.out, string(seed))
	require.Equal(t, 1, strings.Count(string(text), "reach every listener"), string(text))
	require.Regexp(t, "reach every listener.* tools=near\n", string(text))
	require.Regexp(t, "may reach every listener there, on loopback too: (default/held, default/heldtoo, )?default/near\n", look.out)

	out, err := plain("cat", fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid)).CombinedOutput()
	require.Error(t, err, string(out))
	require.Contains(t, string(out), "ermission denied")
}

// An actor that is not root holds commands as it says, and its environment is hidden while it does: a keeper
// in a user namespace is started by a process whose files in /proc belong to root.
func TestTheSandboxOfAnActorThatIsNotRoot(t *testing.T) {
	b, stop, err := startBus(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(stop)
	program, err := exec.LookPath("moorebus")
	require.NoError(t, err)
	dir := t.TempDir()
	cmd := exec.Command("moorebus", "actor", "--tools", filepath.Join(dir, "tools.yaml"))
	if os.Geteuid() == 0 {
		for _, folder := range []string{filepath.Dir(program), filepath.Dir(filepath.Dir(program)), filepath.Dir(dir)} {
			require.NoError(t, os.Chmod(folder, 0o755))
		}
		require.NoError(t, os.Chown(dir, 65534, 65534))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tools.yaml"), []byte("tools:\n- {name: held, description: Is held., schema: {type: object}, exec: {command: [id, -u]}}\n"), 0o644)) //nolint:gosec // for the actor's user
	cmd.Env, cmd.Dir = append(os.Environ(), "GORACE="+noSleep, "NATS_URL="+b.url, "HOME="+dir), dir
	var log bytes.Buffer
	cmd.Stderr = &log
	ended, err := commandtest.Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		t.Log(log.String())
	})
	id, err := b.start(agentOf(t, "name: looks\nllm: {provider: scripted, script: [{calls: [{name: held, arguments: {}}]}, {text: \"{{observation -1}}\"}]}\ntools: [held]\n"), "Look", events.Done)
	require.NoError(t, err)
	t.Setenv("NATS_URL", b.url)
	type announced struct {
		Name    string
		Sandbox []string
	}
	var listed []announced
	require.NoError(t, json.Unmarshal([]byte(moorebus(t, "", "tools", "-o", "json").out), &listed))
	at := slices.IndexFunc(listed, func(a announced) bool { return a.Name == "held" })
	require.NotEqual(t, -1, at)
	said, err := json.Marshal(listed[at].Sandbox)
	require.NoError(t, err)
	run := moorebus(t, "", "export", id).out
	require.Contains(t, run, `"sandbox":`+string(said), "an event has what the actor says")
	if os.Geteuid() == 0 {
		require.Contains(t, run, `65534\n`, "the command has the actor's user")
	}
	is, err := exectool.Try(t.Context(), exectool.Strict, exectool.None) // whose memory is not hidden
	require.NoError(t, err)
	if len(is.Missing) > 0 {
		t.Skip("reason: this system lacks ", is.Missing)
	}
	require.Equal(t, is.Held, listed[at].Sandbox)
}
