package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/commandtest"
)

// aside starts a command that has a data directory of its own beside a bus that is
// named and not there.
func aside(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "moorebus", args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME=", "USER=ann", "NATS_URL=nats://127.0.0.1:1")
	return cmd
}

// until reads a command's stderr up to a line that has text, or to its end.
func until(lines *bufio.Scanner, text string) string {
	var said strings.Builder
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if text != "" && strings.Contains(lines.Text(), text) {
			break
		}
	}
	return said.String()
}

// Ctrl-C leaves a run as it is that waits for a person, and here it is the run of an
// agent that it called which does. What stderr says then brings it to its end.
func TestInterruptLeavesARunThatWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	home := t.TempDir()
	agent := filepath.Join(home, "agents of mine.yaml")
	require.NoError(t, os.WriteFile(agent, []byte(`
name: boss
task: Pay it.
llm:
  provider: scripted
  script:
    - {calls: [{name: payer, arguments: {task: Compute.}}]}
    - {text: "Done: {{observation -1}}"}
tools: [payer]
---
name: payer
llm:
  provider: scripted
  script:
    - {calls: [{id: c1, name: calculator, arguments: {expression: "40 + 2"}}]}
    - {text: "It is {{observation -1}}."}
tools: [calculator]
approval: {policy: always}
---
tools: [{builtin: calculator}, {agent: payer, description: Pays.}]
`), 0o600))

	run := aside(t, home, "run", "--agent", agent)
	stderr, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	lines := bufio.NewScanner(stderr)
	said := until(lines, "Ctrl-C leaves the run waiting")
	require.Contains(t, said, "agent payer, in a sub-run: calculator waits for a human")
	require.NoError(t, run.Process.Signal(os.Interrupt))
	said += until(lines, "")
	require.Error(t, run.Wait())
	require.Equal(t, 130, run.ProcessState.ExitCode(), said)
	require.NotContains(t, said, "cancelled\n")

	_, after, _ := strings.Cut(said, "To continue:\n")
	commands := regexp.MustCompile(`(?m)^  moorebus (.*)$`).FindAllStringSubmatch(after, -1)
	require.Len(t, commands, 3, said)
	words := func(i int) []string { // the agent's file is the only word that is quoted
		var all []string
		for _, w := range strings.Fields(strings.ReplaceAll(commands[i][1], "'"+agent+"'", "FILE")) {
			all = append(all, strings.ReplaceAll(w, "FILE", agent))
		}
		return all
	}
	out, err := aside(t, home, words(0)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "the run continues when `moorebus dev` does")

	dev := aside(t, home, append(words(1), "--listen", "127.0.0.1:0")...)
	stderr, err = dev.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, dev.Start())
	lines = bufio.NewScanner(stderr)
	require.Contains(t, until(lines, "moorebus is up"), "moorebus is up")
	out, err = aside(t, home, words(2)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Done: It is 42.")
	require.NoError(t, dev.Process.Signal(os.Interrupt))
	until(lines, "")
	require.NoError(t, dev.Wait())
}

// A conversation that waits for its user's next message waits for a person too.
func TestInterruptLeavesAConversation(t *testing.T) {
	home := t.TempDir()
	agent := filepath.Join(home, "chat.yaml")
	require.NoError(t, os.WriteFile(agent, []byte("{name: chat, mode: chat, task: Hello., llm: {provider: scripted, script: [{text: First.}, {text: Second.}]}}\n"), 0o600))
	run := aside(t, home, "run", "--agent", agent)
	stdin, err := run.StdinPipe() // nobody says anything
	require.NoError(t, err)
	defer func() { _ = stdin.Close() }()
	stderr, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	lines := bufio.NewScanner(stderr)
	said := until(lines, "planning → waiting_for_user")
	require.NoError(t, run.Process.Signal(os.Interrupt))
	said += until(lines, "")
	require.Error(t, run.Wait())
	require.Equal(t, 130, run.ProcessState.ExitCode(), said)
	require.Regexp(t, `(?m)^  moorebus send [0-9a-f-]{36} MESSAGE --data `+regexp.QuoteMeta(home), said)
}

// A run that waits for its tool is interrupted: it is cancelled by an event, the
// tool's process is gone, and the exit code says what happened.
func TestInterruptCancelsTheRun(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	dir := t.TempDir()
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	agent := filepath.Join(dir, "agent.yaml")
	require.NoError(t, os.WriteFile(agent, []byte(`
name: waits
task: Wait.
llm: {provider: scripted, script: [{calls: [{name: wait, arguments: {}}]}, {text: never said}]}
tools: [wait]
---
tools:
  - {name: wait, description: Waits., exec: {command: [sleep, "600"]}, effect: pure, timeout: 10m}
`), 0o600))

	run := exec.Command(filepath.Join(bin, "moorebus"), "run", "--data", filepath.Join(dir, "data"), "--agent", agent)
	stderr, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	var shown strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		shown.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "LlmToolCall") {
			require.NoError(t, run.Process.Signal(os.Interrupt))
		}
	}
	err = run.Wait()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), shown.String())
	require.Equal(t, cli.ExitRunCancelled, exit.ExitCode(), shown.String())
	require.Contains(t, shown.String(), "acting → cancelled")
	require.Contains(t, shown.String(), "see the run with: "+filepath.Join(bin, "moorebus")+" show")
	require.False(t, exit.Sys().(syscall.WaitStatus).Signaled())
}

// A run that somebody paused is left as it is, too.
func TestInterruptLeavesAPausedRun(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: the run takes seconds to pause
	}
	t.Parallel()
	home := t.TempDir()
	agent := filepath.Join(home, "agent.yaml")
	require.NoError(t, os.WriteFile(agent, []byte(`
name: waits
task: Wait.
llm: {provider: scripted, script: [{calls: [{name: wait, arguments: {}}]}, {text: never said}]}
tools: [wait]
---
tools:
  - {name: wait, description: Waits., exec: {command: [sleep, "600"]}, effect: pure, timeout: 10m}
`), 0o600))
	run := aside(t, home, "run", "--agent", agent)
	stderr, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	lines := bufio.NewScanner(stderr)
	id := regexp.MustCompile(`(?m)^run (\S+)$`).FindStringSubmatch(until(lines, "LlmToolCall"))[1]
	data := filepath.Join(home, ".local", "share", "moorebus")
	out, err := aside(t, home, "pause", id, "--data", data).CombinedOutput()
	require.NoError(t, err, "%s", out)
	said := until(lines, "Ctrl-C leaves it as it is")
	require.NoError(t, run.Process.Signal(os.Interrupt))
	said += until(lines, "")
	require.Error(t, run.Wait())
	require.Equal(t, 130, run.ProcessState.ExitCode(), said)
	require.Contains(t, said, "\n  moorebus resume "+id+" --data "+data+"\n")
}

// With a process on the data directory, a run is started there and left.
func TestDetach(t *testing.T) {
	home := t.TempDir()
	agent, data := filepath.Join(home, "agent.yaml"), filepath.Join(home, "data")
	require.NoError(t, os.WriteFile(agent, []byte("{name: quick, task: Hello., llm: {provider: scripted, script: [{text: First.}]}}\n"), 0o600))
	dev := aside(t, home, "dev", "--data", data, "--listen", "127.0.0.1:0")
	stderr, err := dev.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, dev.Start())
	lines := bufio.NewScanner(stderr)
	require.Contains(t, until(lines, "moorebus is up"), "moorebus is up")
	run := aside(t, home, "run", "--detach", "--agent", agent, "--data", data)
	var said strings.Builder
	run.Stderr = &said
	out, err := run.Output()
	require.NoError(t, err, said.String())
	id := strings.TrimSpace(string(out))
	follow := strings.Fields(strings.SplitN(said.String(), "\n", 2)[0])
	require.Equal(t, []string{"moorebus", "tap", "--run", id, "--from", "1", "--data", data}, follow[3:])
	out, err = aside(t, home, follow[4:]...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "planning → done")
	require.NoError(t, dev.Process.Signal(os.Interrupt))
	until(lines, "")
	require.NoError(t, dev.Wait())
}
