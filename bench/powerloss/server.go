package powerloss

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// server is a moorebus process with all roles.
type server struct {
	cmd     *exec.Cmd
	ended   <-chan struct{}
	url     string
	logPath string
}

// stopTime is how long the process may take to end after SIGTERM.
const stopTime = 30 * time.Second

// startServer starts `moorebus dev` on the data directory and waits until it serves. The store of runs, which
// is made of the log and may be lost, is elsewhere: the model does not know the mappings of its file.
func startServer(ctx context.Context, program, data, fsync, tools, log string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the process has its own
	s := &server{url: "http://" + address, logPath: log}
	s.cmd = exec.Command(program, "dev", "--data", data, "--listen", address, "--tools", tools, "--fsync", fsync, "--views", log+".views.db")
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "TMPDIR=" + os.TempDir()}
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if s.ended, err = commandtest.Start(s.cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if err = request(ctx, http.DefaultClient, http.MethodGet, s.url+"/readyz", "", nil); err == nil {
			return s, nil
		}
		select {
		case <-s.ended:
			return nil, fmt.Errorf("moorebus dev ended: %s\n%s", s.cmd.ProcessState, s.log())
		case <-ctx.Done():
			return nil, fmt.Errorf("moorebus dev does not become ready: %w\n%s", err, s.log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the process, and waits. kill is SIGKILL.
func (s *server) stop(kill bool) error {
	select {
	case <-s.ended:
		return fmt.Errorf("moorebus dev ended by itself: %s\n%s", s.cmd.ProcessState, s.log())
	default:
	}
	if kill {
		_ = s.cmd.Process.Kill()
		<-s.ended
		return nil
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(stopTime):
		_ = s.cmd.Process.Kill()
		<-s.ended
		return fmt.Errorf("moorebus dev did not end within %s", stopTime)
	}
	if !s.cmd.ProcessState.Success() {
		return fmt.Errorf("moorebus dev: %s\n%s", s.cmd.ProcessState, s.log())
	}
	return nil
}

// log is the end of what the process said.
func (s *server) log() string {
	text, err := os.ReadFile(s.logPath)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
