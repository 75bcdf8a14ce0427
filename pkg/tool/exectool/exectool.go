// Package exectool makes tools of commands.
//
// The model's arguments are the command's standard input, byte for byte (`{}`
// for empty arguments); a command need not read them. Up to 4 KiB are all there
// before it starts. Longer ones follow as it reads, and end early if this process
// is killed meanwhile: a command that acts on half of its input, such as a shell
// that reads lines, has to look for the end of the object. Its standard output is the
// result, verbatim. An exit status other than 0 is a failure exit_status with the
// end of standard error (of standard output where that is empty). Longer output
// than the limit is read to its end but cut, and says so.
//
// The command runs in a process group of its own, which is killed when the call
// is over, for whatever reason: a command leaves nothing running behind it but
// what made itself a group or session of its own. On systems without process
// groups only the command itself is killed.
//
// The environment is not inherited. The command gets [DefaultPath] as PATH,
// MOOREBUS_RUN, MOOREBUS_CALL and MOOREBUS_IDEMPOTENCY_KEY (`<run>/<call id>`),
// and what [Options].Env lists. The command itself is looked up in the PATH of
// this process, at every call.
package exectool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// DefaultMaxOutput bounds a result: 8 MiB.
	DefaultMaxOutput = 8 << 20
	// DefaultPath is the PATH of a command where Env sets none.
	DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
	// MaxOutput bounds the result in bytes. Default [DefaultMaxOutput], at most 2 GiB.
	MaxOutput int64
}

// Tool runs one command.
type Tool struct {
	def  tool.Definition
	opts Options
}

var _ tool.Tool = (*Tool)(nil)

// New makes a tool of a command. Whether the command is there is seen when it is
// called. The error names every wrong setting.
func New(def tool.Definition, opts Options) (*Tool, error) {
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
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if opts.MaxOutput <= 0 {
		opts.MaxOutput = DefaultMaxOutput
	}
	opts.MaxOutput = min(opts.MaxOutput, math.MaxInt32)
	opts.Command, opts.Env = slices.Clone(opts.Command), slices.Clone(opts.Env)
	return &Tool{def: def, opts: opts}, nil
}

// Definition returns the tool's definition, defaults applied.
func (t *Tool) Definition() tool.Definition { return t.def }

// Run runs the command and returns its standard output. When ctx ends the
// command's whole process group is killed.
func (t *Tool) Run(ctx context.Context, call tool.Call) (string, error) {
	stdout := &head{max: t.opts.MaxOutput}
	stderr := &tail{max: maxErrorOutput}
	cmd := t.command(ctx, call)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	stdin, err := input(call.Arguments)
	if err != nil {
		return "", t.startFailure(ctx, err)
	}
	cmd.Stdin = stdin
	err = cmd.Start()
	if file, ok := stdin.(*os.File); ok {
		_ = file.Close() // the command has its own
	}
	if err != nil {
		return "", t.startFailure(ctx, err)
	}
	err = cmd.Wait()
	killGroup(cmd)
	if ctx.Err() != nil && err != nil {
		return "", fmt.Errorf("the command was stopped: %w", ctx.Err())
	}
	// What the command left behind had its output open: it is gone now, and the
	// command's own end is what counts.
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return stdout.String(), nil
	}
	return "", t.endFailure(err, stdout, stderr)
}

func (t *Tool) command(ctx context.Context, call tool.Call) *exec.Cmd {
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
func (t *Tool) environment(call tool.Call) []string {
	env := []string{"PATH=" + DefaultPath}
	for _, entry := range t.opts.Env {
		if strings.Contains(entry, "=") {
			env = append(env, entry)
		} else if value, ok := os.LookupEnv(entry); ok {
			env = append(env, entry+"="+value)
		}
	}
	return append(env,
		"MOOREBUS_RUN="+call.Run,
		"MOOREBUS_CALL="+call.ID,
		"MOOREBUS_IDEMPOTENCY_KEY="+call.IdempotencyKey())
}

// startFailure is the failure of a command that never ran.
func (t *Tool) startFailure(ctx context.Context, err error) error {
	f := tool.Failf(tool.CodeFailed, "the command %q cannot be started: %v", t.opts.Command[0], err)
	if ctx.Err() != nil {
		f.Code = tool.CodeCancelled
	}
	f.NotSent = true
	return f
}

// endFailure is the classifier of what Wait says.
func (t *Tool) endFailure(err error, stdout *head, stderr *tail) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return tool.Failf(tool.CodeFailed, "running the command %q: %v", t.opts.Command[0], err)
	}
	f := tool.Failf(tool.CodeExitStatus, "%v", exit.ProcessState)
	said := strings.TrimSpace(stderr.String())
	if said == "" {
		said = strings.TrimSpace(stdout.end(maxErrorOutput))
	}
	if said != "" {
		f.Message += ": " + said
	}
	return f
}
