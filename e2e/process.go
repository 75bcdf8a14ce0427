package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/stretchr/testify/require"
)

// stopTime is how long a process may take to end after SIGTERM.
const stopTime = 30 * time.Second

// bin is the directory of the commands under test.
var bin string

// needsCommands skips a short test: all of these start the commands as processes.
func needsCommands(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: the commands take long to build and start
	}
}

// process is a command that runs, or ran.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *tail
	// done is closed when the process has ended.
	done <-chan struct{}

	mu sync.Mutex
	// sent are the start and the signals, with their times.
	sent []string
}

// note remembers what was done to the process, and when.
func (p *process) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, what+" at "+time.Now().UTC().Format("15:04:05.000"))
}

// history is what was done to the process.
func (p *process) history() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.sent, ", ")
}

// launch starts a command of bin with exactly the environment given. The caller
// sees to it that it is reaped at the end of the test.
func launch(t *testing.T, name string, env []string, command string, args ...string) *process {
	t.Helper()
	needsCommands(t)
	cmd := exec.Command(filepath.Join(bin, command), args...)
	cmd.Env = env
	return startProcess(t, name, cmd)
}

func startProcess(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, log: &tail{begun: make(chan struct{})}}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	var err error
	p.done, err = commandtest.Start(cmd)
	require.NoError(t, err, name)
	p.note("started")
	return p
}

// kill ends the process as a power cut would (kill -9), and waits for it.
func (p *process) kill() {
	p.note("SIGKILL")
	_ = p.cmd.Process.Kill() // it may be over already
	<-p.done
}

// reap kills the process if it still runs, and shows its log if the test failed.
func (p *process) reap(t *testing.T) {
	history := p.history()
	p.kill()
	if t.Failed() {
		t.Logf("--- log of %s (%s; %s)\n%s", p.name, p.cmd.ProcessState, history, p.log)
	}
}

// terminate asks the process to end and reports how that went: it has to end in
// time, with exit code 0.
func (p *process) terminate() error {
	code, err := p.end()
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %s: %s", p.name, p.cmd.ProcessState, p.history())
	}
	return err
}

// end asks the process to end and returns its exit code. That it does not end
// in time is an error. Until a program has begun, SIGTERM kills it. So it waits for the first
// line of the log, which may be late if the process was just started.
func (p *process) end() (code int, err error) {
	select {
	case <-p.log.begun:
	case <-p.done:
	case <-time.After(startTime):
		return 0, fmt.Errorf("%s has said nothing within %s: %s", p.name, startTime, p.history())
	}
	p.note("SIGTERM")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, fmt.Errorf("%s had ended by itself with %s: %s", p.name, p.cmd.ProcessState, p.history())
	}
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(stopTime):
		p.kill()
		return 0, fmt.Errorf("%s did not end within %s: %s", p.name, stopTime, p.history())
	}
}

// terminateAll asks all processes at once.
func terminateAll(t *testing.T, all []*process) {
	t.Helper()
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, p := range all {
		wait.Go(func() { errs[i] = p.terminate() })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// output is what a command that ended by itself left.
type output struct {
	code           int
	stdout, stderr string
}

// run runs a command of bin to its end, a minute at most.
func run(t *testing.T, env []string, command string, args ...string) output {
	t.Helper()
	return runOf(t, bin, env, command, args...)
}

// runOf is run with the commands of a directory.
func runOf(t *testing.T, dir string, env []string, command string, args ...string) output {
	t.Helper()
	needsCommands(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, command), args...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err, command)
	}
	return output{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// environment is what a process under test sees: nothing of this machine but
// the path, its own home, and the pairs given.
func environment(home string, pairs ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir()}, pairs...)
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	return freeAddresses(t, 1)[0]
}

// freeAddresses returns n different ones.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	all, err := freeport.Addresses(n)
	require.NoError(t, err)
	return all
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
	// begun is closed at the first write.
	begun chan struct{}
}

const tailSize = 16 << 10

func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.text) == 0 {
		close(l.begun)
	}
	l.text = append(l.text, p...)
	if over := len(l.text) - tailSize; over > tailSize {
		l.text = append(l.text[:0], l.text[over:]...)
	}
	return len(p), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ToValidUTF8(string(l.text[max(0, len(l.text)-tailSize):]), "?")
}
