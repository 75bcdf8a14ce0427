package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// process is a command of ours that runs, or ran.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	// ended is closed when it has; then cmd.ProcessState says how.
	ended <-chan struct{}
}

const (
	// readyTime is how long a process may take to be there, stopTime to end after
	// SIGTERM.
	readyTime = 20 * time.Second
	stopTime  = 15 * time.Second
)

// startProcess starts a command of bin, with its log in dir, where its name is the
// process's only. It has nothing of this process's environment but the path.
func startProcess(bin, dir, command, name string, args, env []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd = exec.Command(filepath.Join(bin, command), args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + os.TempDir()}, env...)
	if p.ended, err = commandtest.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// await waits until the process is as it should be.
func (p *process) await(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for !is() {
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s\n%s", p.name, p.cmd.ProcessState, p.tail())
		default:
		}
		if !idle(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s is not %s: %w\n%s", p.name, what, ctx.Err(), p.tail())
		}
	}
	return nil
}

// end asks the process to end and waits; what does not is killed, which is an
// error. So is one that had ended by itself.
func (p *process) end() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %s\n%s", p.name, p.cmd.ProcessState, p.tail())
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // if it is over by now, that shows below
	select {
	case <-p.ended:
	case <-time.After(stopTime):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.name, stopTime)
	}
	// 143 is a process that SIGTERM met while it still looked for the bus.
	if code := p.cmd.ProcessState.ExitCode(); code != 0 && code != 143 {
		return fmt.Errorf("%s: %s\n%s", p.name, p.cmd.ProcessState, p.tail())
	}
	return nil
}

// tail is the end of the process's log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// roleCommands are the commands that make an installation, each a process.
var roleCommands = []string{"gateway", "planner", "actor", "observer"}

// builtCommands returns a directory of the roles' commands: bin, or if that is
// empty one that they are built into and that remove removes.
func builtCommands(ctx context.Context, bin string) (dir string, remove func(), err error) {
	if bin != "" {
		return bin, func() {}, nil
	}
	if dir, err = os.MkdirTemp("", "moorebus-bench-bin-"); err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	args := []string{"build", "-o", dir + string(filepath.Separator), "github.com/moorebus/moorebus/cmd/moorebus", "github.com/nats-io/nats-server/v2"}
	for _, name := range roleCommands {
		args = append(args, "github.com/moorebus/moorebus/cmd/"+name)
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return dir, remove, nil
}

// idle pauses and reports whether the context is still there.
func idle(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
