package exectool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/moorebus/moorebus/pkg/tool"
)

// Kernels that lack a part of the sandbox: the same kernel behind a filter that refuses the calls for
// it, and others, as programs (User-mode Linux).

func init() { commands["blind"] = blind }

// filterOf refuses the system calls of a part of the sandbox.
var filterOf = map[string][]bpf.Instruction{
	"landlock": {
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_LANDLOCK_CREATE_RULESET, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	},
	"mount_setattr": {
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_MOUNT_SETATTR, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	},
	"seccomp": {
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PRCTL, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PR_SET_SECCOMP, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)},
	},
	"namespaces": {
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: unix.CLONE_NEWPID, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	},
}

// tryRoot is what a command tries as root: to open what sets up the kernel, and to change the mode of a file
// outside, to what it is.
const tryRoot = `touch started
for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger /proc/irq/default_smp_affinity; do (: >> $f) && touch opened; done
chmod 644 /etc/passwd && touch changed
true`

// blind puts itself behind the filters that LACKS names, starts itself again, and says what a sandbox
// has there, and what comes of a command that requires REQUIRE.
func blind() int {
	if lacks := os.Getenv("LACKS"); lacks != "" {
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		for _, part := range strings.Split(lacks, ",") {
			raw, _ := bpf.Assemble(append(filterOf[part], bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
			filter := make([]unix.SockFilter, len(raw))
			for i, in := range raw {
				filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
			}
			if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})), 0, 0); err != nil {
				fmt.Println("no filter:", err)
				return 1
			}
		}
		self, _ := os.Executable()
		_ = os.Unsetenv("LACKS")
		fmt.Println(unix.Exec(self, []string{self}, os.Environ()))
		return 1
	}
	is, err := Try(context.Background(), Strict, None)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	made, err := New(tool.Definition{Name: "cmd"}, Options{Command: []string{"sh", "-c", tryRoot}, Require: strings.Fields(os.Getenv("REQUIRE"))})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	_, err = made.Run(context.Background(), tool.Call{})
	said := struct {
		State
		Failed string
	}{State: is}
	if err != nil {
		said.Failed = err.Error()
	}
	if json.NewEncoder(os.Stdout).Encode(said) != nil {
		return 1
	}
	return 0
}

// What a kernel lacks is said, and a command that requires it is not started.
func TestKernelsThatLackAPart(t *testing.T) {
	needsAll(t)
	for lacks, want := range map[string]struct {
		gone    []string
		missing string
	}{
		"landlock":                    {[]string{holdsFiles}, "files, TCP, signals and sockets of its own alone (landlock: function not implemented)"},
		"seccomp":                     {[]string{holdsCalls}, "system calls that lead out of the sandbox are refused (seccomp: invalid argument)"},
		"mount_setattr":               {nil, ""},
		"mount_setattr,landlock":      {[]string{holdsFiles}, "files, TCP, signals and sockets of its own alone (landlock: function not implemented)"},
		"namespaces":                  {[]string{holdsProcesses, holdsIPC, holdsNetwork, holdsView}, "a process namespace of its own"},
		"namespaces,landlock,seccomp": {holds[:len(holds)-1], "a process namespace of its own"},
	} {
		t.Run(lacks, func(t *testing.T) {
			for _, require := range append([]string{""}, want.gone...) {
				lacksPart(t, lacks, require, want.gone, want.missing)
			}
		})
	}
}

func lacksPart(t *testing.T, lacks, requires string, gone []string, missing string) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), modeEnv+"=blind", fastExit, "LACKS="+lacks, "REQUIRE="+requires)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	var is struct {
		State
		Failed string
	}
	require.NoError(t, json.Unmarshal(out, &is), string(out))
	for _, name := range gone {
		if name == "" {
			continue
		}
		require.NotContains(t, is.Held, name)
	}
	require.Contains(t, strings.Join(is.Missing, "\n"), missing)
	started := filepath.Join(cmd.Dir, "started")
	if requires == "" {
		require.Empty(t, is.Failed)
		require.FileExists(t, started, "it works without")
		if slices.Contains(is.Held, holdsView) {
			require.NoFileExists(t, filepath.Join(cmd.Dir, "opened"), "it set up the kernel")
			require.NoFileExists(t, filepath.Join(cmd.Dir, "changed"), "it changed a file outside")
		}
		return
	}
	require.Contains(t, is.Failed, "the tool requires "+requires)
	require.NoFileExists(t, started)
}

// onKernel runs tests of this binary in User-mode Linux 6.1, whose kernel has control groups, no
// Landlock, and lets programs type for the user of their terminal. As a user that is not root; prepare is what
// root does before.
func onKernel(t *testing.T, prepare, tests string) {
	t.Helper()
	if testing.Short() {
		t.Skip("reason: it starts a kernel")
	}
	kernel, err := exec.LookPath("linux.uml")
	if err != nil {
		t.Skip("reason: User-mode Linux is not installed here (apt-get install user-mode-linux)")
	}
	dir := t.TempDir()
	self := filepath.Join(t.TempDir(), "exectool.test") // the race detector does not start on that kernel
	built, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", self, ".").CombinedOutput()
	require.NoError(t, err, "%s", built)
	script := `#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/nonexistent
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /run; mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mkdir -p /dev/pts /dev/shm /run/self; mount -t devpts devpts /dev/pts; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; chmod 666 /dev/ptmx /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty
mount --bind ` + filepath.Dir(self) + ` /run/self; mount -t tmpfs -o mode=1777 tmpfs /tmp
[ ! -e /usr/bin/runsc ] || mount --bind /dev/null /usr/bin/runsc # which does not start on this kernel
mount -t cgroup2 none /sys/fs/cgroup; echo '+memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/unit; cd /tmp
user='setpriv --reuid 65534 --regid 65534 --clear-groups'
` + prepare + `
(echo 0 > /sys/fs/cgroup/unit/cgroup.procs 2>/dev/null; ` + fastExit + ` exec setsid $user /run/self/` + filepath.Base(self) + ` -test.v -test.run '` + tests + `' < /dev/null 2>&1)
echo "ended $?"
echo o > /proc/sysrq-trigger
read never
`
	start := filepath.Join(dir, "start")
	require.NoError(t, os.WriteFile(start, []byte(script), 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, kernel, "mem=768M", "rootfstype=hostfs", "rw", "quiet", "init="+start, "con=null", "con0=null,fd:1")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR=/dev/shm")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it has processes for those in it
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	t.Log(out.String())
	require.NoError(t, err)
	for text, want := range map[string]bool{"ended 0": true, "--- PASS": true, "--- SKIP": false} {
		require.Equal(t, want, strings.Contains(out.String(), text), text)
	}
}

// delegate gives the tests a control group, as systemd does with Delegate=.
const delegate = "chown -R 65534 /sys/fs/cgroup/unit"

func TestOnAKernelWithoutLandlock(t *testing.T) {
	onKernel(t, delegate, "^(TestBoundsOfASandbox|TestASecondProcessInTheGroup|TestASandboxHasNoTerminal|TestWhatASandboxLeavesBehindIsKilled)$")
}

func TestOnAKernelWithoutUserNamespaces(t *testing.T) {
	onKernel(t, "echo 0 > /proc/sys/user/max_user_namespaces", "^TestWithoutUserNamespaces$")
}

// Where there are neither namespaces nor Landlock, that is said, and what requires them does not start.
func TestWithoutUserNamespaces(t *testing.T) {
	if most, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || string(most) != "0\n" || os.Geteuid() == 0 {
		t.Skip("reason: this system has user namespaces; TestOnAKernelWithoutUserNamespaces runs it elsewhere")
	}
	for _, name := range []string{"", holdsProcesses, holdsIPC, holdsNetwork, holdsView, holdsFiles, holdsBounds} {
		lacksPart(t, "", name, []string{name}, "a process namespace of its own")
	}
}
