package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a command of ours that runs.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	// ended is closed when it has; then failure says how.
	ended   chan struct{}
	failure error
}

// stopTime is how long a process may take to end after SIGTERM.
const stopTime = 15 * time.Second

// startProcess starts a command of bin, with its log in dir.
func startProcess(bin, dir, name string, args, env []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd = exec.Command(filepath.Join(bin, name), args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + os.TempDir()}, env...)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		p.failure = p.cmd.Wait()
	}()
	return p, nil
}

// end asks the process to end and waits; what does not is killed, which is an
// error. So is one that had ended by itself.
func (p *process) end() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %w\n%s", p.name, p.failure, p.tail())
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

// endAll ends processes, the last one first.
func endAll(all []*process) error {
	var errs error
	for i := len(all) - 1; i >= 0; i-- {
		errs = errors.Join(errs, all[i].end())
	}
	return errs
}

// buildCommands builds commands of the module into dir.
func buildCommands(ctx context.Context, dir string, names ...string) error {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for _, name := range names {
		args = append(args, "github.com/moorebus/moorebus/cmd/"+name)
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}
