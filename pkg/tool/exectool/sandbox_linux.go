package exectool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moorebus/moorebus/pkg/tool"
	"golang.org/x/sys/unix"
)

// sandbox is the actor's side of one command in a sandbox: the command is started
// by a keeper, which is this program once more, see keeper_linux.go.
type sandbox struct {
	tmp string
	// words is what the keeper writes its report on, says the end that is read.
	says, words *os.File
}

// enclose makes a command that was not started yet one in a sandbox, in namespaces of
// its own unless without says why there are none.
func enclose(cmd *exec.Cmd, opts *Options, without error) (*sandbox, error) {
	tmp, err := os.MkdirTemp("", "moorebus-tool-")
	if err == nil {
		tmp, err = filepath.EvalSymlinks(tmp)
	}
	if err != nil {
		return nil, err
	}
	s := &sandbox{tmp: tmp}
	if s.says, s.words, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if cmd.Dir == "" && !filepath.IsAbs(cmd.Path) { // it may work in another folder
		if cmd.Path, err = filepath.Abs(cmd.Path); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	g, err := grant(cmd.Dir, tmp, cmd.Path, cmd.Args[1:], opts.Read)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	o := order{Inside: without == nil, Network: opts.Network == Host, Require: opts.Require, Grants: g, Path: cmd.Path, Args: cmd.Args}
	if without == nil {
		ownNamespaces(cmd, o.Network)
	} else {
		o.lacks("a process namespace of its own", without)
	}
	cmd.Path, cmd.Args = selfPath, o.arguments()
	cmd.Env = append([]string{"TMPDIR=" + tmp}, cmd.Env...)
	cmd.ExtraFiles = []*os.File{s.words}
	if !o.Inside { // the end of a namespace's first process is everybody's
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it kills the rest
	}
	cmd.WaitDelay = 2 * sweepTime
	return s, nil
}

// ownNamespaces has the command start in namespaces of its own, also of the network unless it has
// the system's. Who is not root needs one of users for that.
func ownNamespaces(cmd *exec.Cmd, network bool) {
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC
	if !network {
		a.Cloneflags |= syscall.CLONE_NEWNET
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN} // to mount, and for the loopback interface
	}
}

// started is called once the keeper has its end of the pipe, or was not started.
func (s *sandbox) started() { _ = s.words.Close() }

// verdict returns what the keeper reported, and how the command ended: nil for
// success, a [*notStarted], an [*exited], or a [*tool.Failure] if that is not known. waited is what waiting for the keeper
// came to.
func (s *sandbox) verdict(waited error) (is State, err error) {
	said, err := io.ReadAll(s.says)
	var r report
	if err == nil {
		err = json.Unmarshal(said, &r)
	}
	switch {
	case err != nil && waited != nil:
		return is, tool.Failf(tool.CodeUnreachable, "the sandbox of the command broke, how it ended is not known: %v", waited)
	case err != nil:
		return is, tool.Failf(tool.CodeUnreachable, "the sandbox of the command ended without a report, how it ended is not known")
	case r.Error != "":
		return State{r.Held, r.Missing}, &notStarted{r.Error, r.Errno}
	case r.Wait != 0:
		return State{r.Held, r.Missing}, &exited{state: stateOf(syscall.WaitStatus(r.Wait))}
	}
	return State{r.Held, r.Missing}, nil
}

// close removes what the sandbox took.
func (s *sandbox) close() error {
	var errs []error
	for _, f := range []*os.File{s.says, s.words} {
		if f != nil {
			_ = f.Close() // one is closed already
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.tmp))...)
}

// stateOf is how [os.ProcessState] says it.
func stateOf(w syscall.WaitStatus) string {
	if w.Signaled() {
		text := "signal: " + w.Signal().String()
		if w.CoreDump() {
			text += " (core dumped)"
		}
		return text
	}
	return fmt.Sprintf("exit status %d", w.ExitStatus())
}

// Conceal makes memory and environment of this process unreadable for other
// processes of the same user: for tools without a sandbox, and for MCP servers.
// It also means no core dumps, and debuggers for root only. What the shell that
// started this process left open is closed for the programs that it starts.
func Conceal() error {
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hiding the environment from tools: %w", err)
	}
	return nil
}

// order is what the keeper is to do, as its arguments.
type order struct {
	// Inside says that the keeper has namespaces of its own.
	Inside bool
	// Network says that the command has the system's network. Require is what must hold.
	Network bool
	Require []string
	// Held is what holds, Missing what does not work, as far as is known.
	Held, Missing []string
	// Grants is what the command may reach. The keeper removes its temporary folder.
	Grants grants
	Path   string   `json:"-"`
	Args   []string `json:"-"`
}

// keeperName is the keeper's own name, by which it knows that it is one.
const keeperName = "moorebus-sandbox"

// selfPath is this program, also after its file was replaced.
const selfPath = "/proc/self/exe"

func (o order) arguments() []string {
	text, err := json.Marshal(o)
	if err != nil {
		panic("an order cannot be written: " + err.Error()) // it holds texts only
	}
	return append([]string{keeperName, string(text), o.Path}, o.Args...)
}

func orderOf(args []string) (order, error) {
	var o order
	if len(args) < 4 {
		return o, errors.New("the order is missing")
	}
	err := json.NewDecoder(strings.NewReader(args[1])).Decode(&o)
	o.Path, o.Args = args[2], args[3:]
	return o, err
}

// report is what the keeper says when the command has ended, or could not be
// started.
type report struct {
	Held, Missing []string
	Error         string
	// Errno is what the system said, 0 if the error is another one.
	Errno syscall.Errno
	Wait  uint32
}

// failed is the report of a command that could not be started.
func failed(err error, o *order) report {
	r := report{Error: err.Error(), Held: o.Held, Missing: o.Missing}
	errors.As(err, &r.Errno)
	return r
}
