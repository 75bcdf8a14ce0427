package exectool

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/conceal"
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

func init() {
	for _, other := range []Sandbox{Bwrap, Runsc} {
		if _, err := exec.LookPath(string(other)); err == nil {
			kinds[string(other)] = Options{Sandbox: other}
		}
	}
}

// needsAll skips a test on a system that does not have the whole sandbox.
func needsAll(t *testing.T) {
	t.Helper()
	if testing.Short() {
		delete(kinds, string(Runsc)) // reason: each of its commands takes half a second to start
	}
	is, err := Try(t.Context(), Strict, None)
	require.NoError(t, err)
	if len(is.Missing) > 0 {
		t.Skip("reason: this system lacks ", is.Missing)
	}
}

func TestTry(t *testing.T) {
	is, err := Try(t.Context(), Strict, None)
	require.NoError(t, err)
	t.Log("here: ", is)
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
				if opts.flat {
					require.ErrorContains(t, err, "ermission denied", script)
				}
				require.NoFileExists(t, outside, "it may be there for the command, in a /tmp of its own")
			}
			opts.Dir = ""
			t.Chdir(dir)
			_, err = sh(t, opts, "echo c > own")
			require.NoError(t, err, "where this process works, and so the command")
			for _, everything := range []string{"/", base} {
				t.Setenv("HOME", base)
				t.Chdir(everything)
				_, _ = sh(t, opts, "echo c > "+outside)
				require.NoFileExists(t, outside, "that is everything, or all that the user has")
				_, err = sh(t, opts, "cat "+filepath.Join(dir, "own"))
				require.Error(t, err)
			}
			opts.Sandbox = Off
			_, err = sh(t, opts, "echo c > "+outside)
			require.NoError(t, err)
			require.FileExists(t, outside)
		})
	}
}

// A command reads programs, its folder, what its arguments name and what Read names.
func TestASandboxReadsWhatItsToolNames(t *testing.T) {
	needsAll(t)
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			dir, other := t.TempDir(), t.TempDir()
			secret, named := filepath.Join(other, "secret"), filepath.Join(other, "named")
			require.NoError(t, os.WriteFile(secret, []byte("the secret"), 0o600))
			require.NoError(t, os.WriteFile(named, []byte("cat '"+secret+"' || echo no"), 0o600))
			opts.Dir = dir
			for _, path := range []string{secret, "/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/root", "/home", "/var/lib", "/boot"} {
				got, err := sh(t, opts, "ls -la "+path+" && cat "+path)
				require.Error(t, err, "%s: %s", path, got)
			}
			opts.Command = []string{"sh", named}
			made, err := New(tool.Definition{Name: "cmd"}, opts)
			require.NoError(t, err)
			got, err := made.Run(t.Context(), tool.Call{})
			require.NoError(t, err)
			require.Equal(t, "no\n", got, "the argument is read, and what lies beside it is not")
			opts.Read = []string{other}
			got, err = sh(t, opts, "cat "+secret)
			require.NoError(t, err)
			require.Equal(t, "the secret", got)
			_, err = sh(t, opts, "echo > "+secret)
			require.Error(t, err, "it may not write it")
			kept, err := os.ReadFile(secret)
			require.NoError(t, err)
			require.Equal(t, "the secret", string(kept))
		})
	}
}

// What is hidden is hidden in the working folder too, and cannot be removed or replaced.
func TestASandboxDoesNotSeeWhatIsHidden(t *testing.T) {
	needsAll(t)
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			keys, deep := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "sub", "data")
			require.NoError(t, os.MkdirAll(deep, 0o700))
			for file, text := range map[string]string{keys: "secret", filepath.Join(deep, "log"): "secret", filepath.Join(dir, "open"): "seen", filepath.Join(dir, "sub", "open"): "seen"} {
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			}
			link := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(keys, link))
			t.Chdir(dir)
			Hide(link, deep, "", filepath.Join(dir, "later"))
			opts.Dir = dir
			got, err := sh(t, opts, "cat keys.yaml sub/data/log; ls sub/data; cat open sub/open; true")
			require.NoError(t, err)
			require.Equal(t, "seenseen", strings.ReplaceAll(got, "log\n", ""))
			_, _ = sh(t, opts, "rm -rf keys.yaml sub; mv keys.yaml k; mv sub s; echo x > keys.yaml; echo x > sub/data/log; ln keys.yaml copy; ln sub/data/log copy; mv sub/data d; true")
			for _, file := range []string{keys, filepath.Join(deep, "log")} {
				kept, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, "secret", string(kept))
			}
			opts.Read = []string{keys, "sub/data"}
			got, err = sh(t, opts, "cat keys.yaml sub/data/log; true")
			require.NoError(t, err)
			require.Empty(t, got, "not even if the tool names it")
		})
	}
}

// Two calls share no files, and neither sees those of the system's /tmp.
func TestASandboxSharesNoTemporaryFiles(t *testing.T) {
	needsAll(t)
	outside, err := os.CreateTemp("", "outside")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(outside.Name()) })
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			opts.Dir = t.TempDir()
			got, err := sh(t, opts, "cat "+outside.Name()+" && echo seen; for d in /tmp /var/tmp /dev/shm $TMPDIR; do ls $d/mine 2>/dev/null; echo x > $d/mine; done; true")
			require.NoError(t, err)
			require.NotContains(t, got, "mine", "left by a call before")
			require.NotContains(t, got, "seen")
			_, err = sh(t, opts, "for d in /tmp /var/tmp /dev/shm $TMPDIR; do [ ! -e $d/mine ] || exit 1; done")
			require.NoError(t, err)
		})
	}
}

func TestNetworkOfASandbox(t *testing.T) {
	needsAll(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	abstract, err := net.Listen("unix", fmt.Sprintf("@exectool-test-%d", os.Getpid()))
	require.NoError(t, err)
	folder, err := os.MkdirTemp("/run", "exectool-test")
	if err != nil {
		folder = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	file, err := net.Listen("unix", filepath.Join(folder, "socket"))
	require.NoError(t, err)
	var came atomic.Int64
	for _, l := range []net.Listener{listener, abstract, file} {
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				came.Add(1)
				_ = conn.Close()
			}
		}()
	}
	env := []string{"TCP=" + listener.Addr().String(), "ABSTRACT=" + abstract.Addr().String(), "SOCKET=" + file.Addr().String()}
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			opts.Env = env
			got, err := run(t, "dial", opts)
			require.NoError(t, err)
			require.NotContains(t, got, "connected", "by default there is no network")
			require.Zero(t, came.Load())
			opts.Network = Host
			got, err = run(t, "dial", opts)
			require.NoError(t, err)
			require.Contains(t, got, "TCP: connected")
			require.NotContains(t, got, "ABSTRACT: connected")
			if !opts.flat {
				require.NotContains(t, got, "SOCKET: connected")
			}
			came.Store(0)
		})
	}
}

// The system calls by which programs have left sandboxes are refused.
func TestSystemCallsOfASandbox(t *testing.T) {
	needsAll(t)
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			if opts.Sandbox == Runsc {
				return // they are calls of its kernel, not of the system's
			}
			got, err := run(t, "calls", opts)
			require.NoError(t, err)
			require.NotContains(t, got, "done")
			require.Equal(t, len(dangerous), strings.Count(got, "refused"), got)
			_, err = sh(t, opts, "unshare -U true || unshare -m true")
			require.Error(t, err)
			opts.Network = Host
			got, err = run(t, "calls", opts)
			require.NoError(t, err)
			require.NotContains(t, got, "done")
		})
	}
}

// A command has no terminal, and no way to another one.
func TestASandboxHasNoTerminal(t *testing.T) {
	screen, keyboard := newTerminal(t)
	is, _, err := inKind(t, Options{flat: true}).run(t.Context(), tool.Call{})
	require.NoError(t, err)
	for _, mode := range []string{"own processes", "flat", "off"} {
		if mode == "flat" && !slices.Contains(is.Held, holdsFiles) {
			continue // nothing keeps it from files, and terminals are files
		}
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), modeEnv+"=shell", fastExit, "KIND="+mode, "PTS="+keyboard.Name())
		cmd.Stdin = keyboard
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		got, err := cmd.Output()
		require.NoError(t, err, mode)
		require.Contains(t, string(got), "/dev/tty: refused", mode)
		require.Contains(t, string(got), "own: there", "the test has one: %s", mode)
		if mode != "off" {
			require.NotContains(t, string(got), "done", mode)
		}
	}
	require.NoError(t, keyboard.Close())
	typed, _ := io.ReadAll(screen) // EIO once nobody has the other end
	require.NotContains(t, string(typed), "typed by a tool")
}

// Files that this process got from who started it are not passed on.
func TestACommandHasNoFilesOfOthers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.WriteFile(name, []byte("secret"), 0o600))
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0) // as a shell leaves it open
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	for kind, opts := range kinds {
		_, err := sh(t, opts, fmt.Sprintf("cat <&%d", fd))
		require.Error(t, err, kind)
	}
	require.NoError(t, conceal.Process())
	_, err = sh(t, Options{Sandbox: Off}, fmt.Sprintf("cat <&%d", fd))
	require.Error(t, err)
}

// What is required and does not hold keeps the command from starting.
func TestRequire(t *testing.T) {
	needsAll(t)
	started := filepath.Join(t.TempDir(), "started")
	opts := Options{Dir: filepath.Dir(started), Require: []string{holdsFiles, holdsNetwork}}
	_, err := sh(t, opts, "echo > started")
	require.NoError(t, err)
	require.NoError(t, os.Remove(started))
	opts.flat = true
	_, err = sh(t, opts, "echo > started")
	var f *tool.Failure
	require.ErrorAs(t, err, &f)
	require.True(t, f.NotSent)
	require.Contains(t, f.Message, "requires netns")
	require.NoFileExists(t, started)
	for wrong, opts := range map[string]Options{
		"require: \"apparmor\" is not known":     {Require: []string{"apparmor"}},
		"remove sandbox: off":                    {Require: []string{holdsFiles}, Sandbox: Off},
		"contradicts network: host":              {Require: []string{holdsNetwork}, Network: Host},
		"network \"some\" is not known":          {Network: "some"},
		"without a sandbox the command can read": {Sandbox: Off, Read: []string{"/srv"}},
	} {
		opts.Command = []string{"true"}
		_, err := New(tool.Definition{Name: "cmd"}, opts)
		require.ErrorContains(t, err, wrong)
	}
}

func TestASandboxDoesNotReachThisProcess(t *testing.T) {
	needsAll(t)
	pid := strconv.Itoa(os.Getpid())
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			for _, script := range []string{"cat /proc/" + pid + "/environ", "cat /proc/" + pid + "/mem", "kill -CONT " + pid, "kill -CONT $PPID"} {
				if opts.Sandbox == Runsc && strings.Contains(script, "PPID") {
					continue // the first process has none
				}
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
				opts.flat, opts.Sandbox = base.flat, base.Sandbox
				made := inMode(t, mode, opts)
				registry, err := toolset.New(made)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var watched sync.WaitGroup
				watched.Go(func() {
					if m.started(ctx) == nil && wait {
						cancel()
					}
				})
				out := registry.Execute(ctx, tool.Call{Run: "r", ID: "c", Name: "cmd", Arguments: "{}"})
				watched.Wait()
				if wait {
					require.NotNil(t, out.Failure)
					require.Equal(t, codes.Cancelled, out.Failure.Code)
				} else {
					require.Nil(t, out.Failure)
					require.Equal(t, "started", out.Result)
				}
				require.Eventually(t, m.quiet, 30*time.Second, 10*time.Millisecond, "a session of its own outlived the call")
			})
		}
	}
}

func init() { commands["waits"] = waits }

// waits runs a tool until a file is there.
func waits() int {
	made, err := New(tool.Definition{Name: "cmd"}, Options{
		Command: []string{"sh", "-c", "echo > $TMPDIR/kept; echo > started; while [ ! -e go ]; do sleep .05; done"}, Env: []string{"SECRET=secret"}, Dir: os.Getenv("DIR"), Sandbox: Sandbox(os.Getenv("KIND")),
	})
	if err == nil {
		_, err = made.Run(context.Background(), tool.Call{})
	}
	fmt.Println(err)
	return 1
}

// What a call has in temporary folders goes with its command if the actor is killed. With runsc, the
// command's environment is there.
func TestTemporaryFilesOfAnActorThatIsKilled(t *testing.T) {
	for name, opts := range kinds {
		if opts.flat {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir, temp := t.TempDir(), t.TempDir()
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), modeEnv+"=waits", fastExit, "DIR="+dir, "TMPDIR="+temp, "KIND="+string(opts.Sandbox))
			require.NoError(t, cmd.Start())
			there := func() bool { _, err := os.Stat(filepath.Join(dir, "started")); return err == nil }
			require.Eventually(t, there, time.Minute, 5*time.Millisecond)
			left := func() (files []string) { // empty folders may stay: they are mounted in the command's view
				_ = filepath.WalkDir(temp, func(path string, d fs.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						files = append(files, path)
					}
					return nil
				})
				return files
			}
			require.NotEmpty(t, left())
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
			require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
			require.Eventually(t, func() bool { return len(left()) == 0 }, time.Minute, 5*time.Millisecond)
		})
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
			if opts.Sandbox == Runsc {
				require.ErrorContains(t, err, "exit status 139", "runsc has no other way to say it")
			} else {
				require.ErrorContains(t, err, "signal: segmentation fault")
			}
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
