package exectool

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

// observed is a tool whose failed runs are reported.
type observed struct {
	tool.Tool
	failed func(err error)
	runs   int
}

func (o *observed) Run(ctx context.Context, call tool.Call) (string, error) {
	o.runs++
	result, err := o.Tool.Run(ctx, call)
	if err != nil {
		o.failed(err)
	}
	return result, err
}

// execute calls a command of class once, without retries, as an actor does.
func execute(t *testing.T, command []string, timeout time.Duration, sandbox Sandbox, failed func(error)) (*observed, toolset.Outcome) {
	t.Helper()
	made, err := New(tool.Definition{Name: "cmd", Effect: tool.Once, Timeout: timeout}, Options{Command: command, Sandbox: sandbox})
	require.NoError(t, err)
	o := &observed{Tool: made, failed: failed}
	r, err := toolset.NewWith(toolset.Options{Breakers: true}, o)
	require.NoError(t, err)
	return o, r.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: "cmd"})
}

// noFiles takes from this process the right to open files, and returns how it gets it back.
func noFiles(t *testing.T) (restore func()) {
	t.Helper()
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	restore = func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)) }
	t.Cleanup(restore)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: before.Max}))
	return restore
}

// A command that could not be started for want of files had no effect, so it is started when
// there are some, although its class is once and it has no retries.
func TestACommandWaitsForFiles(t *testing.T) {
	for _, sandbox := range []Sandbox{Strict, Off} {
		t.Run(string(sandbox), func(t *testing.T) {
			restore := noFiles(t)
			o, out := execute(t, []string{"echo", "started"}, time.Minute, sandbox, func(err error) {
				require.ErrorContains(t, err, "too many open files")
				restore()
			})
			require.Nil(t, out.Failure)
			require.Equal(t, "started\n", out.Result)
			require.Equal(t, 2, o.runs)
		})
	}
}

// The keeper of the sandbox starts the command, and says what the system said.
func TestACommandThatIsBeingWritten(t *testing.T) {
	for _, sandbox := range []Sandbox{Strict, Off} {
		t.Run(string(sandbox), func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "command")
			file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o700)
			require.NoError(t, err)
			_, err = file.WriteString("#!/bin/sh\necho written\n")
			require.NoError(t, err)
			o, out := execute(t, []string{name}, time.Minute, sandbox, func(err error) {
				require.ErrorIs(t, err, syscall.ETXTBSY)
				_ = file.Close()
			})
			require.Nil(t, out.Failure)
			require.Equal(t, "written\n", out.Result)
			require.Equal(t, 2, o.runs)
		})
	}
}

// A shortage that stays ends the call at its timeout. The outcome is known: nothing ran.
func TestACommandWaitsUntilItsTimeout(t *testing.T) {
	restore := noFiles(t)
	o, out := execute(t, []string{"echo"}, 250*time.Millisecond, Strict, func(error) {})
	restore()
	require.Equal(t, tool.CodeFailed, out.Failure.Code)
	require.True(t, out.Failure.NotSent)
	require.Contains(t, out.Failure.Message, "too many open files")
	require.Greater(t, o.runs, 1)
}

// What stays wrong is not tried again.
func TestACommandThatDoesNotExistIsTriedOnce(t *testing.T) {
	o, out := execute(t, []string{"/nonexistent"}, time.Minute, Strict, func(error) {})
	require.Equal(t, tool.CodeFailed, out.Failure.Code)
	require.Equal(t, 1, o.runs)
}
