package powerloss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/moorebus/moorebus/internal/commandtest"
)

// ErrNoTrace is returned where processes cannot be traced: there is no strace, or it
// is not allowed to.
var ErrNoTrace = errors.New("strace is missing or may not trace here")

// record has the load carried out under strace and returns the trace and the file's
// path of the marks. The data directory holds afterwards what the processes left.
func record(ctx context.Context, dir string, o LoadOptions) ([]step, error) {
	if out, err := exec.CommandContext(ctx, "strace", "-f", "--seccomp-bpf", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %w %s", ErrNoTrace, err, out)
	}
	for _, sub := range []string{o.Data, o.Dir} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	told := filepath.Join(dir, "load.json")
	if err := os.WriteFile(told, text, 0o600); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	trace := filepath.Join(dir, "trace")
	cmd := exec.Command("strace", "-f", "-qq", "--seccomp-bpf", "-e", "signal=none", "-s", "16777216", "-o", trace, "-e", "trace="+tracedCalls, "--", self, LoadCommand, told)
	log, err := os.Create(filepath.Join(dir, "load.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := commandtest.Start(cmd)
	if err != nil {
		return nil, err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-ended
		return nil, ctx.Err()
	}
	if !cmd.ProcessState.Success() {
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("the load ended with %s\n%s", cmd.ProcessState, said)
	}
	file, err := os.Open(trace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return parseTrace(file)
}
