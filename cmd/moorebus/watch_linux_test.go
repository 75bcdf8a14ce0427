package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/events"
)

// A person follows a run on a terminal, approves its call there, goes back in it, and leaves.
func TestWatch(t *testing.T) {
	b := testBus(t)
	t.Run("bus", func(t *testing.T) { b.watched(t, "--nats", b.url) })
	t.Run("gateway", func(t *testing.T) { b.watched(t, "--url", b.gateway, "--token", testToken) })
}

func (b *bus) watched(t *testing.T, where ...string) {
	agent, err := agentfile.ParseAgent([]byte(`{"name": "asker", "llm": {"provider": "scripted", "script": [
		{"calls": [{"name": "calculator", "arguments": {"expression": "40 + 2"}}]}, {"text": "It is \u001b]0;owned\u0007 42."}]},
		"tools": ["calculator"], "approval": {"policy": "always"}}`), agentfile.JSON, agentfile.Options{CheckScript: script.Check})
	require.NoError(t, err)
	id, err := b.start(agent, "How much?", events.WaitingForHuman)
	require.NoError(t, err)

	screen, keyboard := newTerminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	cmd := exec.Command("moorebus", append([]string{"watch", id[:30], "--by", "ada"}, where...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = keyboard, keyboard, keyboard
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1", "HOME="+t.TempDir())
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	require.NoError(t, keyboard.Close())
	pieces := make(chan string, 1000)
	go func() {
		defer close(pieces)
		for buffer := make([]byte, 4096); ; {
			n, err := screen.Read(buffer)
			if n > 0 {
				pieces <- string(buffer[:n])
			}
			if err != nil {
				return // EIO once nobody has the other end
			}
		}
	}()
	all := ""
	shows := func(want string) {
		t.Helper()
		got := ""
		for timeout := time.After(time.Minute); !strings.Contains(got, want); {
			select {
			case piece, more := <-pieces:
				require.True(t, more, "it ended without %q: %q", want, got)
				got, all = got+piece, all+piece
			case <-timeout:
				require.Fail(t, "the screen does not show "+want, "%q", got)
			}
		}
	}
	press := func(keys string) {
		t.Helper()
		_, err := screen.WriteString(keys)
		require.NoError(t, err)
	}
	shows("waits for you: y approves")
	press("y")
	shows("approve calculator")
	press("y")
	shows("LlmFinalAnswer")
	press("?")
	shows("the run continues")
	press("?")
	press("\x1b[H") // Home
	shows(" 1/6")
	require.NoError(t, unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 16, Col: 60}))
	require.NoError(t, cmd.Process.Signal(syscall.SIGWINCH)) // the terminal is not that of its session
	shows(" 1/6 stands")
	press("q")
	shows("\x1b[?1049l") // the screen is as it was before
	for piece := range pieces {
		all += piece
	}
	require.NoError(t, cmd.Wait())
	require.NotContains(t, all, "\x1b]0;owned")
	require.NoError(t, b.await(id, func(s runs.RunState) bool { return s.State == events.Done }))
	require.NoError(t, screen.Close())
}
