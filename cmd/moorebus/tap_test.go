package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/events"
)

// tapping is a tap in a process of its own.
type tapping struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr *bytes.Buffer
}

func startTap(t *testing.T, b *bus, args ...string) *tapping {
	t.Helper()
	return startTapAt(t, []string{"--nats", b.url}, args...)
}

// startTapAt is startTap with flags that name a place.
func startTapAt(t *testing.T, place []string, args ...string) *tapping {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p := &tapping{cmd: exec.CommandContext(ctx, "moorebus", append(append([]string{"tap"}, place...), args...)...), stderr: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GORACE="+noSleep)
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewScanner(out)
	require.NoError(t, p.cmd.Start())
	return p
}

// next returns the next line that holds a text.
func (p *tapping) next(t *testing.T, text string) {
	t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), text) {
			return
		}
	}
	t.Fatalf("the tap ended without %q: %s", text, p.stderr)
}

// interrupt ends the tap as Ctrl-C does and returns the --from that it names.
func (p *tapping) interrupt(t *testing.T) string {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	for p.lines.Scan() {
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 128+int(syscall.SIGINT), exit.ExitCode(), p.stderr)
	found := regexp.MustCompile(`continue with: moorebus tap .*--from (\S+)\n$`).FindStringSubmatch(p.stderr.String())
	require.Len(t, found, 2, p.stderr)
	return found[1]
}

func chatAgent(t *testing.T) events.Agent {
	t.Helper()
	a, err := agentfile.ParseAgent([]byte(`{"name": "talker", "mode": "chat", "llm": {"provider": "scripted", "script": [{"text": "Hello."}, {"text": "Fine."}]}}`),
		agentfile.JSON, agentfile.Options{CheckScript: script.Check})
	require.NoError(t, err)
	return a
}

// A tap that was interrupted continues where it was, over all runs.
func TestTapIsResumed(t *testing.T) {
	b := testBus(t)
	id, err := b.start(chatAgent(t), "Hello?", events.WaitingForUser)
	require.NoError(t, err)
	first := startTap(t, b, "--from", "0:0")
	first.next(t, id+"     2  ")
	from := first.interrupt(t)
	require.Regexp(t, `^0:\d+,1:\d+$`, from)

	second, err := b.start(chatAgent(t), "Again?", events.WaitingForUser)
	require.NoError(t, err)
	resumed := startTap(t, b, "--from", from)
	require.True(t, resumed.lines.Scan())
	require.Contains(t, resumed.lines.Text(), second+"     1  ", "nothing twice, nothing missed")
	resumed.interrupt(t)
}

// A tap of one run shows what happens while it looks, and ends with the run.
func TestTapOfOneRun(t *testing.T) {
	b := testBus(t)
	id, err := b.start(chatAgent(t), "Hello?", events.WaitingForUser)
	require.NoError(t, err)
	interrupted := startTap(t, b, "--run", id, "--from", "1")
	interrupted.next(t, "LlmMessageComplete")
	require.Equal(t, "3", interrupted.interrupt(t))

	live := startTap(t, b, "--run", id, "--from", "2", "-o", "json")
	live.next(t, `"type":"LlmMessageComplete"`)
	_, err = b.host.Gateway().Cancel(context.Background(), "", id, events.By{Reason: "enough"})
	require.NoError(t, err)
	live.next(t, `"type":"Cancelled"`)
	require.False(t, live.lines.Scan())
	require.NoError(t, live.cmd.Wait(), "the run has ended, and so has the tap: %s", live.stderr)
}
