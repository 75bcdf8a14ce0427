package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newTerminal returns both ends of a terminal.
func newTerminal(t *testing.T) (screen, keyboard *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("reason: there are no terminals here: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	keyboard, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return screen, keyboard
}

// onTerminal runs a command with a terminal for its stdin, stdout and stderr, and
// returns what the terminal got.
func onTerminal(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	screen, keyboard := newTerminal(t)
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = keyboard, keyboard, keyboard
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=", "HOME="+t.TempDir())
	require.NoError(t, cmd.Start())
	require.NoError(t, keyboard.Close())
	read := make(chan []byte)
	go func() {
		data, _ := io.ReadAll(screen) // EIO once nobody has the other end
		read <- data
	}()
	err := cmd.Wait()
	data := <-read
	require.NoError(t, screen.Close())
	require.NoError(t, err, "%q", data)
	return data
}

// What a model says controls no terminal, whichever command shows it, and a pipe
// gets it as it is.
func TestNoRunControlsTheTerminal(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	const said = "It is \x1b]0;owned\x07\x1b[2J\u009b31m\u202e\u2028 100 %\r50 %"
	dir := t.TempDir()
	agent, data := filepath.Join(dir, "agent.yaml"), filepath.Join(dir, "data")
	require.NoError(t, os.WriteFile(agent, []byte(`
name: injector
task: "Count \e]0;owned\a\e[2J."
tools: [calculator]
llm:
  provider: scripted
  script:
    - calls: [{name: calculator, arguments: {expression: "\e]0;owned\a\e[2J\x9b31m\u202E"}}]
    - {text: "It is \e]0;owned\a\e[2J\x9b31m\u202E\u2028 100 %\r50 %"}
`), 0o600))

	shown := onTerminal(t, "moorebus", "run", "--data", data, "--agent", agent)
	require.Contains(t, string(shown), "\x1b[", "it is a terminal, and styled")
	require.Contains(t, string(shown), `It is \x1b]0;owned\x07\x1b[2J\u009b31m\u202e\u2028 100 %\x0d50 %`)
	requireHarmless(t, shown)

	ids, err := exec.Command("moorebus", "runs", "--data", data, "-o", "json").Output()
	require.NoError(t, err)
	_, rest, _ := bytes.Cut(ids, []byte(`"run_id": "`))
	id := string(rest[:36])
	for _, args := range [][]string{
		{"show", id}, {"show", id, "-o", "json"}, {"show", id, "-o", "yaml"}, {"show", id, "--memory"},
		{"trace", id}, {"trace", id, "-o", "json"}, {"runs"}, {"runs", "-o", "json"}, {"tap", "--run", id, "--from", "1"},
		{"tap", "--run", id, "--from", "1", "-o", "json"}, {"tap", "--run", id, "--from", "1", "--outputs"}, {"export", id}, {"diff", id, id},
	} {
		requireHarmless(t, onTerminal(t, "moorebus", append(args, "--data", data)...))
	}

	piped, err := exec.Command("moorebus", "run", "--data", data, "--agent", agent).Output()
	require.NoError(t, err)
	require.Equal(t, said+"\n", string(piped))
	piped, err = exec.Command("moorebus", "show", id, "--data", data).Output()
	require.NoError(t, err)
	require.Contains(t, string(piped), said)
}

// requireHarmless accepts nothing that controls a terminal but styles and what
// erases a line.
func requireHarmless(t *testing.T, shown []byte) {
	t.Helper()
	rest := shown
	for _, own := range []string{"\r\n", "\r\x1b[K"} { // the terminal itself makes the first of a line feed
		rest = bytes.ReplaceAll(rest, []byte(own), nil)
	}
	for _, style := range []string{"0", "1", "2", "31", "32", "33", "36", "91", "92", "93"} {
		rest = bytes.ReplaceAll(rest, []byte("\x1b["+style+"m"), nil)
	}
	for _, c := range []string{"\x1b", "\x07", "\r", "\u009b", "\u202e", "\u2028"} {
		require.NotContains(t, string(rest), c, "%q", shown)
	}
}
