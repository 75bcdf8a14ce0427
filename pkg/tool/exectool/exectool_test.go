package exectool

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

// inMode makes a tool of this test binary.
func inMode(t *testing.T, mode string, opts Options) tool.Tool {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	opts.Command = []string{self}
	opts.Env = append(opts.Env, modeEnv+"="+mode, fastExit)
	made, err := New(tool.Definition{Name: "cmd"}, opts)
	require.NoError(t, err)
	return made
}

func run(t *testing.T, mode string, opts Options) (string, error) {
	t.Helper()
	return inMode(t, mode, opts).Run(t.Context(), tool.Call{Run: "r", ID: "c", Name: "cmd", Arguments: `{"a":1.50}`, TraceParent: "00-trace"})
}

// mark is a file that commands which hang write to, and hold a lock on as long as
// they live: their process ids say nothing outside of their sandbox.
type mark string

func newMark(t *testing.T) mark {
	t.Helper()
	name := filepath.Join(t.TempDir(), "mark")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	return mark(name)
}

// options let a command find the mark, and write there.
func (m mark) options() Options {
	return Options{Dir: filepath.Dir(string(m)), Env: []string{"MARK=" + string(m)}}
}

func (m mark) started(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if content, err := os.ReadFile(string(m)); err != nil || len(content) > 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// quiet tells whether all of them are gone.
func (m mark) quiet() bool {
	file, err := os.Open(string(m))
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func suite(hangMode string, base Options) tooltest.Suite {
	with := func(t *testing.T, mode string, opts Options) tooltest.Case {
		return tooltest.Case{Tool: inMode(t, mode, opts), Arguments: `{"n":12345678901234567890}`}
	}
	return tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			c := with(t, "echo", base)
			c.Want = c.Arguments
			return c
		},
		Failure: func(t *testing.T) tooltest.Case {
			c := with(t, "fail", base)
			c.Code, c.Want = tool.CodeExitStatus, "exit status 3: no such \uFFFDcity"
			return c
		},
		Hangs: func(t *testing.T) tooltest.Hang {
			m := newMark(t)
			opts := m.options()
			opts.Sandbox, opts.flat = base.Sandbox, base.flat
			return tooltest.Hang{Case: with(t, hangMode, opts), Started: m.started, Quiet: m.quiet}
		},
		ShowsKey: func(t *testing.T) tooltest.Case { return with(t, "key", base) },
	}
}

func TestSuite(t *testing.T) { suite("hang", Options{}).Run(t) }

func TestSuiteWithoutSandbox(t *testing.T) { suite("hang", Options{Sandbox: Off}).Run(t) }

// The one that hangs is a grandchild, which holds the pipes open.
func TestSuiteWithGrandchild(t *testing.T) { suite("parent", Options{}).Run(t) }

func TestSuiteWithGrandchildWithoutSandbox(t *testing.T) {
	suite("parent", Options{Sandbox: Off}).Run(t)
}

func TestLeftBehindProcessIsKilled(t *testing.T) {
	for _, sandbox := range []Sandbox{Strict, Off} {
		m := newMark(t)
		opts := m.options()
		opts.Sandbox = sandbox
		got, err := run(t, "leaver", opts)
		require.NoError(t, err)
		require.Equal(t, "started", got)
		require.Eventually(t, m.quiet, 30*time.Second, 10*time.Millisecond)
	}
}

func TestEnvironmentIsNotInherited(t *testing.T) {
	t.Setenv("EXECTOOL_SECRET", "s3cret")
	t.Setenv("EXECTOOL_LISTED", "listed value")
	got, err := run(t, "env", Options{Env: []string{"EXECTOOL_LISTED", "EXECTOOL_MISSING", "FIXED=a=b"}})
	require.NoError(t, err)
	got = regexp.MustCompile(`(?m)^TMPDIR=.*\n`).ReplaceAllString(got, "")
	require.ElementsMatch(t, []string{
		"PATH=" + defaultPath, "EXECTOOL_LISTED=listed value", "FIXED=a=b", modeEnv + "=env", fastExit,
		"MOOREBUS_RUN=r", "MOOREBUS_CALL=c", "MOOREBUS_IDEMPOTENCY_KEY=r/c", "TRACEPARENT=00-trace",
	}, strings.Split(got, "\n"))
	got, err = run(t, "env", Options{Env: []string{"PATH=/only"}})
	require.NoError(t, err)
	require.Contains(t, got, "PATH=/only\n")
	require.NotContains(t, got, defaultPath)
}

func TestWorkingFolder(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	got, err := run(t, "dir", Options{Dir: dir})
	require.NoError(t, err)
	require.Equal(t, dir, got)
}

func TestOutputIsCut(t *testing.T) {
	got, err := run(t, "big", Options{MaxOutput: 1000})
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("0123456789", 100)+"\n[moorebus: output cut at 1000 bytes of 5000000]", got)
	got, err = run(t, "big", Options{})
	require.NoError(t, err)
	require.Len(t, got, 5_000_000)
}

func TestFailuresSayWhy(t *testing.T) {
	for mode, want := range map[string]string{
		"fail-stdout": "exit status 4: said on stdout",
		"signal":      "signal: terminated",
	} {
		_, err := run(t, mode, Options{})
		require.ErrorContains(t, err, want)
		var f *tool.Failure
		require.ErrorAs(t, err, &f)
		require.Equal(t, tool.CodeExitStatus, f.Code)
		require.False(t, f.NotSent)
	}
	_, err := run(t, "fail-long", Options{})
	require.ErrorContains(t, err, "exit status 1: [moorebus: output cut, these are the last 8192 bytes of 1048583]\na")
	require.True(t, strings.HasSuffix(err.Error(), "the end"))
	require.Less(t, len(err.Error()), 10_000)
}

func TestCommandThatDoesNotReadItsInput(t *testing.T) {
	made := inMode(t, "deaf", Options{})
	got, err := made.Run(t.Context(), tool.Call{Arguments: `"` + strings.Repeat("x", 5_000_000) + `"`})
	require.NoError(t, err)
	require.Equal(t, "did not listen", got)
}

func TestEmptyArguments(t *testing.T) {
	got, err := inMode(t, "echo", Options{}).Run(t.Context(), tool.Call{})
	require.NoError(t, err)
	require.Equal(t, "{}", got)
}

func TestCommandThatIsNotThere(t *testing.T) {
	made, err := New(tool.Definition{Name: "x"}, Options{Command: []string{"no-such-command-anywhere"}})
	require.NoError(t, err)
	_, err = made.Run(t.Context(), tool.Call{})
	var f *tool.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, tool.CodeFailed, f.Code)
	require.True(t, f.NotSent)
	require.Contains(t, f.Message, `"no-such-command-anywhere" cannot be started`)
}

func TestNewRefuses(t *testing.T) {
	for want, opts := range map[string]Options{
		"command is missing": {},
		"NUL":                {Command: []string{"a\x00"}},
		"no name":            {Command: []string{"a"}, Env: []string{"=b"}},
	} {
		_, err := New(tool.Definition{Name: "x"}, opts)
		require.ErrorContains(t, err, want)
	}
	_, err := New(tool.Definition{Name: "bad name"}, Options{Command: []string{"a"}})
	require.ErrorContains(t, err, "bad name")
}

func TestTailKeepsTheEnd(t *testing.T) {
	keep := &tail{max: 5}
	for _, part := range []string{"ab", "cdefghijklmnop", "q", "r", "s", "t"} {
		_, err := keep.Write([]byte(part))
		require.NoError(t, err)
	}
	require.Equal(t, "[moorebus: output cut, these are the last 5 bytes of 20]\npqrst", keep.String())
}

// A command whose actor is killed right after it was started reads all of its
// input: it is in the pipe before there is a command.
func TestInputIsWholeBeforeTheStart(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"a":1}`: `{"a":1}`, "": "{}", strings.Repeat("x", pipeHolds): strings.Repeat("x", pipeHolds),
	} {
		r, err := input(arguments)
		require.NoError(t, err)
		file, ok := r.(*os.File)
		require.True(t, ok, "nothing has to go on writing")
		got, err := io.ReadAll(file) // to its end: nobody holds the other end open
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		require.NoError(t, file.Close())
	}
}

// Longer input than a pipe holds arrives too.
func TestLongInput(t *testing.T) {
	long := strings.Repeat("0123456789", 100_000)
	made, err := New(tool.Definition{Name: "count"}, Options{Command: []string{"wc", "-c"}})
	require.NoError(t, err)
	got, err := made.Run(t.Context(), tool.Call{Run: "r", ID: "c", Name: "count", Arguments: long})
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(len(long)), strings.TrimSpace(got))
}
