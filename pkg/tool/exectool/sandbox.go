package exectool

import (
	"context"
	"fmt"
	"runtime"
	"syscall"

	"github.com/moorebus/moorebus/pkg/tool"
)

// Sandbox says how a command is kept in.
type Sandbox string

// The kinds of sandboxes. Strict is the default.
const (
	Strict Sandbox = "strict"
	Off    Sandbox = "off"
)

// exited is the end of a command that was no success.
type exited struct{ state string }

// Error says how it ended.
func (e *exited) Error() string { return e.state }

// notStarted says why a command could not be started, and what the system said.
type notStarted struct {
	reason string
	errno  syscall.Errno
}

func (e *notStarted) Error() string { return e.reason }

func (e *notStarted) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// Missing tries the strict sandbox and returns what of it this system does not
// have, empty if nothing. The error says that commands cannot be run in it at all:
// the program cannot be started a second time, or there is no temporary folder.
func Missing(ctx context.Context) ([]string, error) {
	if runtime.GOOS != "linux" {
		return []string{"everything: only Linux has it"}, nil
	}
	t, err := New(tool.Definition{Name: "sandbox"}, Options{Command: []string{"true"}})
	if err != nil {
		return nil, err
	}
	missing, _, err := t.(*execTool).run(ctx, tool.Call{})
	if err != nil {
		return nil, fmt.Errorf("the sandbox for commands does not work: %w", err)
	}
	return missing, nil
}
