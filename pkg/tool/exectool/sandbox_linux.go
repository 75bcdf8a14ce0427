package exectool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/tool"
	"golang.org/x/sys/unix"
)

// sandbox is the actor's side of one command in a sandbox: the command is started
// by a keeper, which is this program once more, see keeper_linux.go.
type sandbox struct {
	tmp string
	// words is what the keeper writes its report on, says the end that is read.
	says, words *os.File
	// first is what was read of it, and gate lets the keeper continue, see [sandbox.admit]. wait is the
	// keeper's end of it. Both are nil if it need not wait.
	first      []byte
	gate, wait *os.File
	// bound is the call's control group, nil without one, and bundle what runsc gets.
	bound  *bound
	bundle string
}

// shortfall says why a sandbox has no namespaces, and no control group; nil: it has.
type shortfall struct{ namespaces, bounds error }

// more leaves out what may be why a sandbox could not be started. It reports whether there is
// something. A control group may be forbidden alone, so it is tried without it first.
func (f *shortfall) more(s *sandbox, kind Sandbox, err error) bool {
	switch {
	case s.bound != nil:
		f.bounds = err
	case kind == Strict && f.namespaces == nil:
		*f = shortfall{namespaces: err}
	default:
		return false
	}
	return true
}

// enclose makes a command that was not started yet one in a sandbox, with separate namespaces and
// its own control group unless without says why there are none.
func enclose(cmd *exec.Cmd, opts *Options, without shortfall) (*sandbox, error) {
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
	g, err := grant(opts.Dir, opts.home, tmp, cmd.Path, cmd.Args[1:], opts.Read, opts.before)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	o := order{Inside: without.namespaces == nil, Network: opts.Network == Host, Require: opts.Require, Grants: g, Path: cmd.Path, Args: cmd.Args}
	if err := s.setBounds(cmd, &o, opts, without.bounds); err != nil {
		return nil, errors.Join(err, s.close())
	}
	cmd.Env = append([]string{"TMPDIR=" + tmp}, cmd.Env...)
	cmd.ExtraFiles = []*os.File{s.words}
	switch {
	case opts.Sandbox == Bwrap:
		err = underBwrap(cmd, &o)
	case opts.Sandbox == Runsc:
		s.bundle, err = underRunsc(cmd, &o)
	case without.namespaces == nil:
		if ownNamespaces(cmd, o.Network) {
			o.Waits = true
			s.wait, s.gate, err = os.Pipe()
			cmd.ExtraFiles = append(cmd.ExtraFiles, s.wait)
		}
	default:
		o.lacks("a process namespace of its own", without.namespaces)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	if opts.Sandbox != Bwrap {
		cmd.Path, cmd.Args = selfPath, o.arguments()
	}
	if !o.Inside { // the end of a namespace's first process is everybody's
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it kills the rest
	}
	cmd.WaitDelay = 2 * sweepTime
	return s, nil
}

// setBounds gives the call its own control group, in which it is started. why says why there is
// none.
func (s *sandbox) setBounds(cmd *exec.Cmd, o *order, opts *Options, why error) error {
	if why == nil {
		s.bound, why = newBound(opts.Memory, opts.Processes)
	}
	switch {
	case retry.Short(why):
		return why
	case why == nil:
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(s.bound.files.Fd())
		o.Bound = true
	case opts.asked:
		o.lacks("the bounds memory and processes", why)
	}
	if why != nil {
		o.Unbounded = why.Error()
	}
	return nil
}

// ownNamespaces has the command start in its own namespaces, also of the network unless it has
// the system's. A process that is not root needs one of users for that; users then says that its user must be mapped.
func ownNamespaces(cmd *exec.Cmd, network bool) (users bool) {
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC
	if !network {
		a.Cloneflags |= syscall.CLONE_NEWNET
	}
	if os.Geteuid() == 0 {
		return false
	}
	a.Cloneflags |= syscall.CLONE_NEWUSER
	a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN} // to mount, and for the loopback interface
	return true
}

// started is called once the keeper has its ends of the pipes, or was not started.
func (s *sandbox) started() {
	_ = s.words.Close()
	if s.wait != nil {
		_ = s.wait.Close()
	}
}

// admit maps the user of a keeper that was started in a user namespace, and lets it continue. [os/exec]
// would do so before the keeper's program runs. Until then the keeper is a copy of this process, and if
// that hides its memory, the files in /proc belong to root. So it waits for the keeper's
// first words.
func (s *sandbox) admit(cmd *exec.Cmd) error {
	if s.gate == nil {
		return nil
	}
	s.first = make([]byte, 4<<10) // one write to a pipe, as long as it may be in one piece
	n, err := s.says.Read(s.first)
	if s.first = s.first[:n]; err != nil { // for no such reason a command gets a weaker sandbox
		err = &notStarted{reason: fmt.Sprintf("its sandbox ended before it was made: %v", err)}
	} else if err = mapUser(cmd.Process.Pid); err == nil {
		_, err = s.gate.WriteString("go")
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	return err
}

// mapUser gives a process in its own user namespace the user and the group of this one.
func mapUser(pid int) error {
	uid, gid := os.Geteuid(), os.Getegid()
	for _, file := range []struct{ name, text string }{
		{"setgroups", "deny"}, {"uid_map", fmt.Sprintf("%d %d 1", uid, uid)}, {"gid_map", fmt.Sprintf("%d %d 1", gid, gid)},
	} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, file.name), []byte(file.text), 0); err != nil {
			return fmt.Errorf("its user namespace: %w", err)
		}
	}
	return nil
}

// verdict returns what the keeper reported, and how the command ended: nil for
// success, a [*notStarted], an [*exited], or a [*tool.Failure] if that is not known. waited is what waiting for the keeper
// came to, and printed what there is on standard error.
func (s *sandbox) verdict(waited error, printed string) (is State, err error) {
	rest, err := io.ReadAll(s.says)
	said := append(s.first, rest...)
	var r report
	if err == nil && len(said) == 0 {
		return is, &notStarted{reason: fmt.Sprintf("its sandbox was not made (%v): %s", waited, strings.TrimSpace(printed))}
	}
	for reports := json.NewDecoder(bytes.NewReader(said)); err == nil && !r.Ended; {
		err = reports.Decode(&r) // the first one says that there is a keeper
	}
	is = State{Held: r.Held, Missing: r.Missing, Unbounded: r.Unbounded}
	switch {
	case err != nil && waited != nil:
		return is, tool.Failf(tool.CodeUnreachable, "the sandbox of the command broke, how it ended is not known: %v", waited)
	case err != nil:
		return is, tool.Failf(tool.CodeUnreachable, "the sandbox of the command ended without a report, how it ended is not known")
	case r.Error != "":
		return is, &notStarted{r.Error, r.Errno}
	case r.Wait != 0:
		return is, s.end(syscall.WaitStatus(r.Wait), r.Log)
	}
	return is, nil
}

// end is how a command ended that did not succeed.
func (s *sandbox) end(w syscall.WaitStatus, log string) error {
	e := &exited{state: stateOf(w)}
	if s.bound != nil && s.bound.overMemory() {
		e.state += ": it had more memory than its tool allows (memory: in the tool file)"
		return e
	}
	if s.bundle != "" {
		if err := runscVerdict(log, w); err != nil {
			return err
		}
	}
	return e
}

// close removes what the sandbox took.
func (s *sandbox) close() error {
	var errs []error
	for _, f := range []*os.File{s.says, s.words, s.gate, s.wait} {
		if f != nil {
			_ = f.Close() // some are closed already
		}
	}
	if s.bound != nil {
		errs = append(errs, s.bound.close())
	}
	if s.bundle != "" {
		errs = append(errs, os.RemoveAll(s.bundle))
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

// order is what the keeper is to do, as its arguments.
type order struct {
	// By is whose sandbox it is, if it is not the keeper's. Inside says that the keeper has namespaces
	// of its own, Waits that it has no user there before it is let go on, and Bound that it has a control
	// group, Unbounded why not.
	By        Sandbox `json:",omitempty"`
	Inside    bool
	Waits     bool
	Bound     bool
	Unbounded string
	// Network says that the command has the system's network. Require is what must hold.
	Network bool
	Require []string
	// Held is what holds, Missing what does not work, as far as is known.
	Held, Missing []string
	// Grants is what the command may reach. The keeper removes its temporary folder.
	Grants grants
	// Bundle is what runsc gets, which the keeper removes, too.
	Bundle string   `json:",omitempty"`
	Path   string   `json:"-"`
	Args   []string `json:"-"`
}

// keeperName is the keeper's own name, by which it knows that it is one, or its first argument if it
// was started by an open file.
const keeperName = "moorebus-sandbox"

// openFiles is where a program finds its open files.
const openFiles = "/proc/self/fd/"

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
	Unbounded     string
	Error         string
	// Errno is what the system said, 0 if the error is another one.
	Errno syscall.Errno
	Wait  uint32
	// Log is what runsc said.
	Log string `json:",omitempty"`
	// Ended is false in the first report, by which a keeper says that there is one.
	Ended bool
}

// failed is the report of a command that could not be started.
func failed(err error, o *order) report {
	r := report{Error: err.Error(), Held: o.Held, Missing: o.Missing, Unbounded: o.Unbounded}
	errors.As(err, &r.Errno)
	return r
}
