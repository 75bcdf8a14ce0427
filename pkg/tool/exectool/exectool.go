// Package exectool makes tools of commands.
//
// The command's standard input is the model's arguments, byte for byte (`{}` for empty
// arguments). It need not read them. Up to 4 KiB are available before the command starts.
// Longer arguments follow as it reads, and end early if this process is killed meanwhile.
// So a command that acts on part of its input, such as a shell that reads lines, must check
// that the object is complete.
//
// The result is the command's standard output, verbatim. An exit status other than 0 is a
// failure exit_status with the end of standard error, or of standard output if standard
// error is empty. Output beyond the limit is read to its end and cut, and the result says so.
//
// # Sandbox
//
// On Linux the command runs in a sandbox unless [Options].Sandbox is [Off]. [Bwrap] and [Runsc] hold
// it with other programs; the following is [Strict]:
//
//   - It can write only below its working directory ([Options].Dir, else this process's
//     directory), and in its own temporary folders: TMPDIR, on the disk, and /tmp, /var/tmp and
//     /dev/shm, in memory, of 256 MiB each. They are removed after the call. Without Dir, if this
//     process works in / or in a folder that holds its user's home, TMPDIR is the working directory.
//   - It can read its working directory, programs, libraries and certificates of the system, the
//     program with its libraries, the files that its arguments name, and [Options].Read. Of all that
//     it cannot read or change what [Hide] names.
//   - It has no terminal, no devices but /dev/null and the like, and no files of this process.
//   - It has no network, unless [Options].Network is [Host]. Even then it reaches no local sockets of
//     other programs.
//   - It cannot read the environment or memory of outside processes, nor signal or trace
//     them. If the kernel allows it, it does not see them at all.
//   - It gains no privileges: setuid programs have no effect. Root keeps only its power
//     over files, users and ports. System calls that lead out of sandboxes are refused.
//   - A file may have 1 GiB, and 4096 files may be open. There are no core dumps. All processes of a
//     call together have at most [Options].Memory and [Options].Processes, if a control group is
//     delegated to this process. Otherwise they are at most 1024 in a user namespace.
//   - When the call is over, everything that the command started is killed, including
//     processes in their own sessions.
//
// Features that the kernel lacks are omitted, and [Options].Logger gets one message about
// it, unless [Options].Require names them: then the command is not started. Without namespaces
// /tmp, /var/tmp and /dev/shm are refused, a command without network has no sockets at all, one with
// the network reaches local sockets, and a folder in which something is hidden can be changed only
// in its subfolders without hidden files. For the sandbox this program is started a second time (as moorebus-sandbox), and this
// package's init takes over. Package initialisation that runs earlier happens again, so it
// must be harmless.
//
// Without a sandbox, and on other systems, the command runs in its own session,
// which is killed when the call is over. Only processes that left the group survive. On
// systems without process groups, only the command itself is killed.
//
// # Environment
//
// The environment is not inherited. The command gets [defaultPath] as PATH, MOOREBUS_RUN,
// MOOREBUS_CALL and MOOREBUS_IDEMPOTENCY_KEY (`<run>/<call id>`), TRACEPARENT if the call has a
// W3C trace context, and [Options].Env. The
// command itself is looked up in the PATH of this process, at every call.
package exectool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// defaultMaxOutput bounds a result: 8 MiB.
	defaultMaxOutput = 8 << 20
	// defaultPath is the PATH of a command where Env sets none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// The bounds of a call where its tool has none, and the least of each.
const (
	defaultMemory    = 2 << 30
	minMemory        = 16 << 20
	defaultProcesses = 1024
	minProcesses     = 1
)

// maxErrorOutput is how much of the end of standard error a failure shows.
const maxErrorOutput = 8 << 10

// pipeGrace is how long output may still come once the command itself is gone.
const pipeGrace = 200 * time.Millisecond

// Options say what is run.
type Options struct {
	// Command is the program and its arguments; no shell is involved. Required.
	Command []string
	// Env lists what the command gets of the environment: NAME passes this
	// process's own value on, where there is one; NAME=value sets it.
	Env []string
	// Dir is the working folder. Default: this process's own.
	Dir string
	// MaxOutput bounds the result in bytes. Default [defaultMaxOutput], at most 2 GiB.
	MaxOutput int64
	// Sandbox is [Strict] or [Off]. Default [Strict].
	Sandbox Sandbox
	// Network is [None] or [Host]. Default [None]. Without a sandbox it is always that of the host.
	Network Network
	// Read lists files and folders that the command may read in addition to those that every command
	// may read. A relative path begins at Dir.
	Read []string
	// Require lists what the sandbox must have: pidns, ipcns, netns, mountns, landlock, seccomp,
	// cgroup. Where the system lacks one of them, the command is not started.
	Require []string
	// Memory bounds what all processes of a call have in memory together, in bytes, with files in
	// /tmp. Processes bounds their number, from 1 on. Both need a control group that was
	// delegated to this process. Default: 2 GiB and 1024.
	Memory    int64
	Processes int
	// Logger hears once of what the sandbox lacks here, unless the definition's Sandbox says so already.
	// Default: nobody does.
	Logger *slog.Logger

	// asked says that Memory or Processes is not the default.
	asked bool
	// home is where Dir led when the tool was made, and before where the paths led that it names.
	home   string
	before map[string]string
	// flat leaves out the namespaces, as a kernel may that has none.
	flat bool
}

// execTool runs one command.
type execTool struct {
	def  tool.Definition
	opts Options
	said sync.Once
}

var _ tool.Tool = (*execTool)(nil)

// New makes a tool of a command. Whether the command is there is seen when it is
// called. The error names every wrong setting.
func New(def tool.Definition, opts Options) (tool.Tool, error) {
	def = def.WithDefaults()
	errs := []error{def.Validate()}
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		errs = append(errs, fmt.Errorf("tool %q: the command is missing; write command: [program, argument, ...]", def.Name))
	}
	for _, text := range slices.Concat(opts.Command, opts.Env, []string{opts.Dir}) {
		if strings.Contains(text, "\x00") {
			errs = append(errs, fmt.Errorf("tool %q: command, env and dir must not contain NUL", def.Name))
			break
		}
	}
	for _, entry := range opts.Env {
		if name, _, _ := strings.Cut(entry, "="); name == "" {
			errs = append(errs, fmt.Errorf("tool %q: an entry of env has no name; write NAME or NAME=value", def.Name))
		}
	}
	if opts.Sandbox == "" {
		opts.Sandbox = Strict
	}
	if !slices.Contains(sandboxes, opts.Sandbox) {
		errs = append(errs, fmt.Errorf("tool %q: sandbox %q is not known; use one of %v", def.Name, opts.Sandbox, sandboxes))
	}
	errs = append(errs, opts.checkSandbox(def.Name)...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MaxOutput <= 0 {
		opts.MaxOutput = defaultMaxOutput
	}
	opts.MaxOutput = min(opts.MaxOutput, math.MaxInt32)
	if home, err := realDir(opts.Dir); err == nil {
		opts.home, opts.before = home, leadsTo(home, append(paths(opts.Command), opts.Read...))
		if opts.Dir != "" || !everything(home) {
			worksIn(home)
		}
	}
	opts.asked = opts.Memory != 0 || opts.Processes != 0
	opts.Memory, opts.Processes = cmp.Or(opts.Memory, defaultMemory), cmp.Or(opts.Processes, defaultProcesses)
	opts.Command, opts.Env = slices.Clone(opts.Command), slices.Clone(opts.Env)
	return &execTool{def: def, opts: opts}, nil
}

func (o *Options) checkSandbox(name string) (errs []error) {
	if o.Network == "" {
		o.Network = None
	}
	if o.Network != None && o.Network != Host {
		errs = append(errs, fmt.Errorf("tool %q: network %q is not known; use %s or %s", name, o.Network, None, Host))
	}
	for _, hold := range o.Require {
		switch {
		case !slices.Contains(holds, hold):
			errs = append(errs, fmt.Errorf("tool %q: require: %q is not known; use some of %s", name, hold, strings.Join(holds, ", ")))
		case o.Sandbox == Off:
			errs = append(errs, fmt.Errorf("tool %q: require: there is no sandbox; remove sandbox: off", name))
		case hold == holdsNetwork && o.Network == Host:
			errs = append(errs, fmt.Errorf("tool %q: require: %s contradicts network: host", name, hold))
		case o.Sandbox == Runsc && (hold == holdsFiles || hold == holdsCalls):
			errs = append(errs, fmt.Errorf("tool %q: require: sandbox: runsc runs the command on its own kernel, so %s, a part of the system's kernel, does not apply; remove it", name, hold))
		}
	}
	if o.Sandbox == Off && (o.Memory != 0 || o.Processes != 0) {
		errs = append(errs, fmt.Errorf("tool %q: memory and processes are bounds of a sandbox; remove them, or sandbox: off", name))
	}
	if o.Memory != 0 && o.Memory < minMemory {
		errs = append(errs, fmt.Errorf("tool %q: memory: %d bytes are too few; at least 16MiB are needed", name, o.Memory))
	}
	if o.Processes != 0 && o.Processes < minProcesses {
		errs = append(errs, fmt.Errorf("tool %q: processes: must be at least %d, is %d", name, minProcesses, o.Processes))
	}
	if o.Sandbox == Off && len(o.Read) > 0 {
		errs = append(errs, fmt.Errorf("tool %q: read: without a sandbox the command can read everything; remove it, or sandbox: off", name))
	}
	return errs
}

func (t *execTool) Definition() tool.Definition { return t.def }

// Run runs the command and returns its standard output. When ctx ends the command
// is killed, with what it started.
func (t *execTool) Run(ctx context.Context, call tool.Call) (string, error) {
	is, result, err := t.run(ctx, call)
	if t.opts.Sandbox == Off || runtime.GOOS != "linux" {
		is.Held = []string{string(Off)}
	}
	if len(is.Held) > 0 {
		callctx.NoteSandbox(ctx, is.Held)
	}
	if missing := is.Missing; len(missing) > 0 && !slices.Equal(is.Held, t.def.Sandbox) {
		t.said.Do(func() {
			t.opts.Logger.Warn("the sandbox of a command lacks something here", "tool", t.def.Name, "missing", missing)
		})
	}
	return result, err
}

// run is Run, and says what the sandbox had.
func (t *execTool) run(ctx context.Context, call tool.Call) (is State, result string, err error) {
	stdout := &head{max: t.opts.MaxOutput}
	stderr := &tail{max: maxErrorOutput}
	cmd, box, out, err := t.start(ctx, call, stdout, stderr)
	if box != nil {
		defer func() { _ = box.close() }() // what stays is in the temporary directory
	}
	if err != nil {
		return is, "", t.startFailure(ctx, err)
	}
	err = cmd.Wait()
	out.end(cmd.WaitDelay)
	killGroup(cmd)
	if ctx.Err() != nil && err != nil {
		return is, "", fmt.Errorf("the command was stopped: %w", ctx.Err())
	}
	if box != nil {
		is, err = box.verdict(err, stderr.String())
	}
	var none *notStarted
	var unknown *tool.Failure
	switch {
	case errors.As(err, &unknown):
		return is, "", unknown
	case errors.As(err, &none):
		return is, "", t.startFailure(ctx, err)
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		// What the command left behind had its output open: it is gone now, and the
		// command's own end is what counts.
		return is, stdout.String(), nil
	}
	return is, "", t.endFailure(err, stdout, stderr)
}

// errFlat is why a test has no namespaces.
var errFlat = errors.New("left out")

// start starts the command, in its sandbox if it is to have one. If the system denies
// it namespaces, the sandbox works without them. The sandbox is to be closed
// also if it fails. If it does not fail, the output is to be ended.
func (t *execTool) start(ctx context.Context, call tool.Call, stdout, stderr io.Writer) (*exec.Cmd, *sandbox, *output, error) {
	var without shortfall
	if t.opts.flat {
		without.namespaces = errFlat
	}
	if err := t.opts.sameDir(); err != nil {
		return nil, nil, nil, err
	}
	for {
		cmd := t.command(ctx, call)
		if t.opts.Sandbox == Off || runtime.GOOS != "linux" || cmd.Err != nil {
			out, err := feed(cmd, call.Arguments, stdout, stderr)
			return cmd, nil, out, err
		}
		box, err := enclose(cmd, &t.opts, without)
		if err != nil {
			return nil, nil, nil, err
		}
		out, err := feed(cmd, call.Arguments, stdout, stderr)
		box.started()
		if err == nil {
			if err = box.admit(cmd); err != nil {
				out.end(0) // the command is gone
			}
		}
		var ended *notStarted
		if err == nil || ctx.Err() != nil || retry.Short(err) || errors.As(err, &ended) || !without.more(box, t.opts.Sandbox, err) { // for a shortage nobody gets a weaker sandbox
			return cmd, box, out, err
		}
		if err := box.close(); err != nil {
			return nil, nil, nil, err
		}
	}
}

// sameDir reports whether Dir still leads where it did when the tool was made. Another tool's command
// that may write next to it could have put a link in its place.
func (o *Options) sameDir() error {
	if o.Dir == "" {
		return nil // this process's own, wherever that is
	}
	now, err := realDir(o.Dir)
	if err == nil && now != o.home {
		err = fmt.Errorf("its working directory %s is %s now, and was %s when the tool was loaded; restart this process if that is meant", o.Dir, now, o.home)
	}
	return err
}

// feed starts a command with its input, and reads its output.
func feed(cmd *exec.Cmd, arguments string, stdout, stderr io.Writer) (*output, error) {
	stdin, err := input(arguments)
	if err != nil {
		return nil, err
	}
	if file, ok := stdin.(*os.File); ok {
		defer func() { _ = file.Close() }() // the command has its own
	}
	cmd.Stdin = stdin
	out, err := attach(cmd, stdout, stderr)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		out.close(cmd)
		return nil, err
	}
	out.begin(cmd)
	return out, nil
}

func (t *execTool) command(ctx context.Context, call tool.Call) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.opts.Command[0], t.opts.Command[1:]...)
	cmd.Dir = t.opts.Dir
	cmd.Env = t.environment(call)
	cmd.WaitDelay = pipeGrace
	ownGroup(cmd)
	return cmd
}

// pipeHolds is what a pipe that nobody reads yet takes on every system.
const pipeHolds = 4 << 10

// input is a command's standard input: a pipe that has everything, so that the
// end of this process takes nothing away, unless that is too much for one. A file
// is the caller's to close.
func input(arguments string) (io.Reader, error) {
	if arguments == "" {
		arguments = "{}"
	}
	if len(arguments) > pipeHolds {
		return strings.NewReader(arguments), nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(arguments)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// environment is built from nothing; the last entry of a name counts.
func (t *execTool) environment(call tool.Call) []string {
	env := []string{"PATH=" + defaultPath}
	for _, entry := range t.opts.Env {
		if strings.Contains(entry, "=") {
			env = append(env, entry)
		} else if value, ok := os.LookupEnv(entry); ok {
			env = append(env, entry+"="+value)
		}
	}
	if call.TraceParent != "" {
		env = append(env, "TRACEPARENT="+call.TraceParent)
	}
	return append(env,
		"MOOREBUS_RUN="+call.Run,
		"MOOREBUS_CALL="+call.ID,
		"MOOREBUS_IDEMPOTENCY_KEY="+call.IdempotencyKey())
}

// startFailure is the failure of a command that never ran.
func (t *execTool) startFailure(ctx context.Context, err error) error {
	f := tool.Failf(tool.CodeFailed, "the command %q cannot be started: %v", t.opts.Command[0], err)
	if ctx.Err() != nil {
		f.Code = codes.Cancelled
	}
	f.NotSent, f.Err = true, err
	return f
}

// endFailure is the classifier of what Wait says.
func (t *execTool) endFailure(err error, stdout *head, stderr *tail) error {
	var exit *exec.ExitError
	var inside *exited
	var f *tool.Failure
	switch {
	case errors.As(err, &inside):
		f = tool.Failf(tool.CodeExitStatus, "%v", inside)
	case errors.As(err, &exit):
		f = tool.Failf(tool.CodeExitStatus, "%v", exit.ProcessState)
	default:
		return tool.Failf(tool.CodeFailed, "running the command %q: %v", t.opts.Command[0], err)
	}
	said := strings.TrimSpace(stderr.String())
	if said == "" {
		said = strings.TrimSpace(stdout.lastBytes(maxErrorOutput))
	}
	if said != "" {
		f.Message += ": " + said
	}
	return f
}

// head keeps the first max bytes that are written, and one more by which
// [tool.Cut] sees that there was more, and counts the rest.
type head struct {
	max   int64
	kept  []byte
	total int64
}

// Write never fails, so that the command never blocks on a full pipe.
func (h *head) Write(p []byte) (int, error) {
	h.total += int64(len(p))
	if room := h.max + 1 - int64(len(h.kept)); room > 0 {
		h.kept = append(h.kept, p[:min(room, int64(len(p)))]...)
	}
	return len(p), nil
}

// String returns what was kept, with a marker where something was not.
func (h *head) String() string { return truncate.Result(string(h.kept), h.max, h.total) }

// lastBytes returns the last n bytes that were kept.
func (h *head) lastBytes(n int) string {
	t := &tail{max: n}
	_, _ = t.Write(h.kept) // a tail's Write never fails
	return t.String()
}

// tail keeps the last max bytes that are written and counts the rest.
type tail struct {
	max   int
	kept  []byte
	total int64
}

// Write never fails. It lets what is kept grow to twice the bound before it
// cuts, so that many small writes stay cheap.
func (t *tail) Write(p []byte) (int, error) {
	t.total += int64(len(p))
	t.kept = append(t.kept, p[max(0, len(p)-t.max):]...)
	if len(t.kept) > 2*t.max {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-t.max:]...)
	}
	return len(p), nil
}

// String returns the last bytes, after a marker where there were more.
func (t *tail) String() string {
	if t.total <= int64(t.max) {
		return string(t.kept)
	}
	text := t.kept[max(0, len(t.kept)-t.max):]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return fmt.Sprintf("[moorebus: output cut, these are the last %d bytes of %d]\n%s", len(text), t.total, text)
}
