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

// The kinds of sandboxes. Strict is the default. Bwrap and Runsc are those of other programs, Bubblewrap
// and gVisor, which must be installed.
const (
	Strict Sandbox = "strict"
	Bwrap  Sandbox = "bwrap"
	Runsc  Sandbox = "runsc"
	Off    Sandbox = "off"
)

// sandboxes lists the kinds.
var sandboxes = []Sandbox{Strict, Bwrap, Runsc, Off}

// Network says what a command in a sandbox may reach of the network.
type Network string

// The kinds of network: none, which is the default, and that of the system.
const (
	None Network = "none"
	Host Network = "host"
)

// What holds a command in a sandbox, as [Options].Require and [State].Held name it: namespaces of
// processes, of shared memory and queues, of the network and of mounts, with a file system view of
// its own; Landlock, for files; seccomp, for system calls; a control group, for memory and processes.
const (
	holdsProcesses = "pidns"
	holdsIPC       = "ipcns"
	holdsNetwork   = "netns"
	holdsView      = "mountns"
	holdsFiles     = "landlock"
	holdsCalls     = "seccomp"
	holdsBounds    = "cgroup"
)

// holds lists what a sandbox can have.
var holds = []string{holdsProcesses, holdsIPC, holdsNetwork, holdsView, holdsFiles, holdsCalls, holdsBounds}

// State is what held a command, and what did not, with the reasons.
type State struct {
	Held, Missing []string
	// Unbounded says why memory and number of processes have no bound; empty if they have one.
	Unbounded string
}

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

// Try runs a command in a sandbox and returns what of it this system has. The error says
// that commands cannot be run in it at all: the program cannot be started a second time, the other
// program is not installed, or there is no temporary folder.
func Try(ctx context.Context, kind Sandbox, network Network) (State, error) {
	if runtime.GOOS != "linux" {
		return State{Missing: []string{"everything: only Linux has it"}}, nil
	}
	t, err := New(tool.Definition{Name: "sandbox"}, Options{Command: []string{"true"}, Sandbox: kind, Network: network})
	if err != nil {
		return State{}, err
	}
	is, _, err := t.(*execTool).run(ctx, tool.Call{})
	if err != nil {
		return State{}, fmt.Errorf("the sandbox for commands (%s) does not work: %w", kind, err)
	}
	return is, nil
}
