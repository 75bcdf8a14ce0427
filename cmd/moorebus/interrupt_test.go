package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/binaries"
	"github.com/moorebus/moorebus/internal/cli"
)

// A run that waits for its tool is interrupted: it is cancelled by an event, the
// tool's process is gone, and the exit code says what happened.
func TestInterruptCancelsTheRun(t *testing.T) {
	dir := t.TempDir()
	bin, err := binaries.Build("cmd", "./cmd/moorebus")
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
	require.Contains(t, shown.String(), "look at it with: moorebus show")
	require.False(t, exit.Sys().(syscall.WaitStatus).Signaled())
}
