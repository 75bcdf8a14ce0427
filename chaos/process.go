package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// process is one place in the fleet: a command that is started again and again.
// It is safe for concurrent use.
type process struct {
	name, kind string
	command    string
	args, env  []string
	logPath    string
	// metrics is where it serves them; empty: nowhere.
	metrics string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done <-chan struct{}
	// began is when the command was started last.
	began time.Time
	// over says that nothing is started any more.
	over bool
	// busy says that a fault is at work on it.
	busy bool
}

// start starts the command; its output is added to its log. It does nothing once
// the process was ended for good.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	_, _ = fmt.Fprintf(log, "--- started %s\n", time.Now().UTC().Format(time.RFC3339Nano))
	cmd := exec.Command(p.command, p.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, log, log
	p.began = time.Now()
	done, err := commandtest.Start(cmd)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.cmd, p.done = cmd, done
	return nil
}

// running returns the command and what is closed at its end; nil if none runs.
func (p *process) running() (*exec.Cmd, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.done
}

// life tells one start of the command from another, by its time.
func (p *process) life() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.began
}

// alive reports whether the command runs, and otherwise how it ended.
func (p *process) alive() (bool, string) {
	cmd, done := p.running()
	if cmd == nil {
		return false, "never started"
	}
	select {
	case <-done:
		return false, cmd.ProcessState.String()
	default:
		return true, ""
	}
}

// kill ends the command as a power cut would, and waits for its end.
func (p *process) kill() {
	cmd, done := p.running()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill() // it may be over already
	<-done
}

// claim takes the process for one fault; false if another one has it.
func (p *process) claim() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.over {
		return false
	}
	p.busy = true
	return true
}

func (p *process) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = false
}

// stopTime is how long a process may take to end after SIGTERM.
const stopTime = 10 * time.Second

// end ends the process for good: as asked, and if it does not, by force, which
// is an error.
func (p *process) end() error {
	p.mu.Lock()
	p.over = true
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	return p.await(cmd, done)
}

// leave ends the process as asked, to be started again.
func (p *process) leave() error {
	cmd, done := p.running()
	if cmd == nil {
		return nil
	}
	return p.await(cmd, done)
}

// await asks the command to end and waits for that, by force if need be, which is an
// error.
func (p *process) await(cmd *exec.Cmd, done <-chan struct{}) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s had ended by itself: %s", p.name, cmd.ProcessState)
	}
	select {
	case <-done:
		// 143 is a process that was still looking for the bus, and one that the signal
		// itself ended had not begun to listen for it.
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if code := cmd.ProcessState.ExitCode(); code != 0 && code != 143 && status.Signal() != syscall.SIGTERM {
			return fmt.Errorf("%s ended after SIGTERM with %s", p.name, cmd.ProcessState)
		}
		return nil
	case <-time.After(stopTime):
		p.kill()
		return errors.New(p.name + " did not end within " + stopTime.String() + " of SIGTERM")
	}
}

// runGo runs the go command.
func runGo(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

// environment is what a process sees: nothing of this machine but the path, a
// home of its own, and the pairs given.
func environment(home string, pairs ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir()}, pairs...)
}

// output runs a command of bin to its end, and returns what it said and its exit
// code.
func (f *fleet) output(ctx context.Context, command string, args ...string) (string, int, error) {
	return f.outputWith(ctx, nil, command, args...)
}

// outputWith is output with more of an environment.
func (f *fleet) outputWith(ctx context.Context, env []string, command string, args ...string) (string, int, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(f.o.bin, command), args...)
	cmd.Env = f.env(env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return string(out), -1, err
	}
	return string(out), cmd.ProcessState.ExitCode(), nil
}
