package exectool

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

// sh runs a shell command as a tool.
func sh(t *testing.T, opts Options, script string) (string, error) {
	t.Helper()
	opts.Command = []string{"sh", "-c", script}
	made, err := New(tool.Definition{Name: "cmd"}, opts)
	require.NoError(t, err)
	return made.Run(t.Context(), tool.Call{Run: "r", ID: "c", Name: "cmd", Arguments: "{}"})
}

// kinds are the sandboxes of systems with and without namespaces.
var kinds = map[string]Options{"own processes": {}, "flat": {flat: true}}

// needsAll skips a test on a system that does not have the whole sandbox.
func needsAll(t *testing.T) {
	t.Helper()
	missing, err := Missing(t.Context())
	require.NoError(t, err)
	if len(missing) > 0 {
		t.Skip("reason: this system lacks ", missing)
	}
}

func TestMissing(t *testing.T) {
	missing, err := Missing(t.Context())
	require.NoError(t, err)
	t.Log("missing here: ", missing)
}

func TestASandboxWritesInItsFoldersOnly(t *testing.T) {
	needsAll(t)
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir, outside := filepath.Join(base, "dir"), filepath.Join(base, "outside")
			for _, folder := range []string{dir, filepath.Join(base, "tmp")} {
				require.NoError(t, os.Mkdir(folder, 0o700))
			}
			t.Setenv("TMPDIR", filepath.Join(base, "tmp"))
			opts.Dir = dir
			got, err := sh(t, opts, `echo a > in && mv in inside && mkdir d && mv inside d/ && echo b > "$TMPDIR/x" && cat "$TMPDIR/x" d/inside && echo gone > /dev/null && echo "$TMPDIR" >&2 && echo "$TMPDIR"`)
			require.NoError(t, err)
			require.Regexp(t, "^b\na\n/", got)
			require.NoDirExists(t, got[4:len(got)-1], "its temporary folder is removed")
			for _, script := range []string{"echo c > " + outside, "touch " + outside, "ln -s x " + outside, "mkdir " + outside, "mv d/inside " + outside} {
				_, err = sh(t, opts, script)
				require.ErrorContains(t, err, "ermission denied", script)
				require.NoFileExists(t, outside)
			}
			_, err = sh(t, opts, "echo t > "+filepath.Join(base, "tmp", "t"))
			require.NoError(t, err, "where temporary files are")
			opts.Dir = ""
			t.Chdir(dir)
			_, err = sh(t, opts, "echo c > own")
			require.NoError(t, err, "where this process works, and so the command")
			t.Chdir("/")
			_, err = sh(t, opts, "echo c > "+outside)
			require.ErrorContains(t, err, "ermission denied", "that is everywhere")
			opts.Sandbox = Off
			_, err = sh(t, opts, "echo c > "+outside)
			require.NoError(t, err)
			require.FileExists(t, outside)
		})
	}
}

func TestASandboxDoesNotReachThisProcess(t *testing.T) {
	needsAll(t)
	pid := strconv.Itoa(os.Getpid())
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			for _, script := range []string{"cat /proc/" + pid + "/environ", "cat /proc/" + pid + "/mem", "kill -CONT " + pid, "kill -CONT $PPID"} {
				got, err := sh(t, opts, script)
				require.Error(t, err, "%s: %q", script, got)
			}
		})
	}
	got, err := sh(t, Options{}, "ls /proc | grep -c '^[0-9]'")
	require.NoError(t, err)
	require.Less(t, len(got), 3, "it sees itself: %s", got)
}

func TestWhatASandboxLeavesBehindIsKilled(t *testing.T) {
	for name, base := range kinds {
		for mode, wait := range map[string]bool{"sessions": false, "spawner": true} {
			t.Run(name+" "+mode, func(t *testing.T) {
				m := newMark(t)
				opts := m.options()
				opts.flat = base.flat
				made := inMode(t, mode, opts)
				made.(*execTool).def.Timeout = time.Second
				registry, err := toolset.New(made)
				require.NoError(t, err)
				out := registry.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: "cmd", Arguments: "{}"})
				require.NoError(t, m.started(t.Context()))
				if wait {
					require.NotNil(t, out.Failure)
					require.Equal(t, tool.CodeOutcomeUnknown, out.Failure.Code)
				} else {
					require.Nil(t, out.Failure)
					require.Equal(t, "started", out.Result)
				}
				require.Eventually(t, m.quiet, 30*time.Second, 10*time.Millisecond, "a session of its own outlived the call")
			})
		}
	}
}

func TestLimitsOfASandbox(t *testing.T) {
	got, err := sh(t, Options{}, "ulimit -c; ulimit -f; [ $(ulimit -n) -le 4096 ] && echo few; grep NoNewPrivs /proc/self/status")
	require.NoError(t, err)
	require.Equal(t, "0\n2097152\nfew\nNoNewPrivs:\t1\n", got)
}

func TestEndsInASandbox(t *testing.T) {
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			_, err := sh(t, opts, "echo why >&2; exit 7")
			require.ErrorContains(t, err, "exit status 7: why")
			_, err = sh(t, opts, "kill -SEGV $$")
			require.ErrorContains(t, err, "signal: segmentation fault")
			opts.Command = []string{filepath.Join(t.TempDir(), "none")}
			made, err := New(tool.Definition{Name: "cmd"}, opts)
			require.NoError(t, err)
			_, err = made.Run(t.Context(), tool.Call{})
			var f *tool.Failure
			require.ErrorAs(t, err, &f)
			require.True(t, f.NotSent, f.Message)
		})
	}
}
