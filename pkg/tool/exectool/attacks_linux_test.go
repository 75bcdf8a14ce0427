package exectool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/moorebus/moorebus/pkg/tool"
)

func init() { commands["attack"] = attack }

// opens tries to open files; none may be there.
func opens(flags int, names ...string) map[string]func() error {
	all := map[string]func() error{}
	for _, name := range names {
		all["open "+name] = func() error {
			fd, err := unix.Open(name, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
	}
	return all
}

// attempts are what a command tries that wants out, by what it wants. Each fails.
func attempts() map[string]map[string]func() error {
	actor, secret := os.Getenv("ACTOR"), os.Getenv("SECRET")
	pid, _ := strconv.Atoi(actor)
	parent := strconv.Itoa(os.Getppid())
	sock := func(family, kind, protocol int) func() error {
		return func() error { return raw(unix.SYS_SOCKET, uintptr(family), uintptr(kind), uintptr(protocol)) }
	}
	at := func(path string) *byte { p, _ := unix.BytePtrFromString(path); return p }
	return map[string]map[string]func() error{
		"terminal": merge(opens(unix.O_RDWR|unix.O_NOCTTY, "/dev/tty", "/dev/ptmx", "/dev/pts/ptmx", "/dev/pts/0", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/vcs", "/dev/ttyS0", "/dev/kmsg", "/dev/uinput", "/dev/input/event0",
			"/proc/"+actor+"/fd/0", "/proc/"+parent+"/fd/0"), map[string]func() error{
			"make a terminal's node": func() error { return unix.Mknod("tty", unix.S_IFCHR|0o666, 5<<8) },
			"type on stdin":          func() error { return raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&[]byte{'x'}[0]))) },
			"paste":                  func() error { return raw(unix.SYS_IOCTL, 0, unix.TIOCLINUX, uintptr(unsafe.Pointer(&[]byte{3}[0]))) },
		}),
		"keys": merge(opens(unix.O_RDONLY, "/proc/"+actor+"/environ", "/proc/"+actor+"/mem", "/proc/"+actor+"/maps", "/proc/"+actor+"/auxv", "/proc/"+actor+"/cwd/.", "/proc/"+actor+"/root/etc/passwd", "/proc/"+actor+"/fd/3",
			"/proc/self/../"+actor+"/environ", "/proc/self/root/proc/"+actor+"/environ", "/proc/"+parent+"/mem", "/proc/kcore", "/dev/mem", "/dev/port", "/run/credentials"), map[string]func() error{
			"trace":           func() error { return raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid)) },
			"read memory":     func() error { return raw(unix.SYS_PROCESS_VM_READV, uintptr(pid), 0, 0, 0, 0) },
			"write memory":    func() error { return raw(unix.SYS_PROCESS_VM_WRITEV, uintptr(pid), 0, 0, 0, 0) },
			"get a file":      func() error { return raw(unix.SYS_PIDFD_GETFD, 0, 3, 0) },
			"compare":         func() error { return raw(unix.SYS_KCMP, uintptr(pid), uintptr(os.Getpid()), 0, 0, 0) },
			"signal":          func() error { return unix.Kill(pid, 0) },
			"signal a parent": func() error { return unix.Kill(os.Getppid(), unix.SIGCONT) },
			"limits":          func() error { return unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &unix.Rlimit{}) },
			"priority":        func() error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 5) },
			"priority of all": func() error { return unix.Setpriority(unix.PRIO_USER, os.Getuid(), 0) },
			"scheduler": func() error {
				return raw(unix.SYS_SCHED_SETSCHEDULER, uintptr(pid), 0, uintptr(unsafe.Pointer(&[]int32{0}[0])))
			},
			"scheduler's priority": func() error {
				return raw(unix.SYS_SCHED_SETPARAM, uintptr(pid), uintptr(unsafe.Pointer(&[]int32{0}[0])))
			},
			"scheduler's attributes": func() error { return unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0) },
			"priority of disk":       func() error { return raw(unix.SYS_IOPRIO_SET, 1, uintptr(pid), 3<<13) },
			"keys of sessions":       func() error { return raw(unix.SYS_KEYCTL, 0, 0, 0) },
		}),
		"files": merge(opens(unix.O_RDONLY, secret, filepath.Dir(secret)+"/../"+filepath.Base(filepath.Dir(secret))+"/"+filepath.Base(secret), "/proc/self/root"+secret, "/proc/self/cwd/../../../../../.."+secret,
			"/proc/1/root"+secret, "/proc/thread-self/root"+secret, "link", "deep/link"), map[string]func() error{
			"link":            func() error { return unix.Link(secret, "hard") },
			"link by a link":  func() error { return unix.Linkat(unix.AT_FDCWD, "link", unix.AT_FDCWD, "hard", unix.AT_SYMLINK_FOLLOW) },
			"rename":          func() error { return unix.Rename(secret, "renamed") },
			"exchange":        func() error { return unix.Renameat2(unix.AT_FDCWD, secret, unix.AT_FDCWD, "own", unix.RENAME_EXCHANGE) },
			"rename a folder": func() error { return unix.Rename(filepath.Dir(secret), "renamed") },
			"remove":          func() error { return unix.Unlink(secret) },
			"truncate":        func() error { return unix.Truncate(secret, 0) },
			"mode":            func() error { return unix.Chmod(secret, 0o666) },
			"owner":           func() error { return unix.Chown(secret, os.Getuid(), os.Getgid()) },
			"times":           func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, secret, []unix.Timespec{{}, {}}, 0) },
			"attribute":       func() error { return unix.Setxattr(secret, "user.x", []byte("x"), 0) },
			"handle": func() error {
				handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, ".", 0)
				if err != nil {
					return err
				}
				_, err = unix.OpenByHandleAt(mount, handle, unix.O_RDONLY)
				return err
			},
			"mount":          func() error { return unix.Mount("/", "deep", "", unix.MS_BIND, "") },
			"remount":        func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
			"share":          func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") },
			"unmount":        func() error { return unix.Unmount("/tmp", unix.MNT_DETACH) },
			"tree":           func() error { return raw(unix.SYS_OPEN_TREE, 0, uintptr(unsafe.Pointer(at("/"))), 1) },
			"attributes":     func() error { return raw(unix.SYS_MOUNT_SETATTR, 0, 0, 0, 0, 0) },
			"root":           func() error { return unix.Chroot("deep") },
			"pivot":          func() error { return unix.PivotRoot(".", "deep") },
			"accounting":     func() error { return unix.Acct("own") },
			"quota":          func() error { return raw(unix.SYS_QUOTACTL, 0, 0, 0, 0) },
			"watch files":    func() error { return raw(unix.SYS_FANOTIFY_INIT, 0, 0) },
			"block device":   func() error { return unix.Mknod("disk", unix.S_IFBLK|0o600, 8<<8) },
			"mode of null":   func() error { return unix.Chmod("/dev/null", 0o666) },
			"mode of hosts":  func() error { return unix.Chmod("/etc/passwd", 0o644) },
			"core pattern":   func() error { return os.WriteFile("/proc/sys/kernel/core_pattern", []byte("|/x"), 0) },
			"sysrq":          func() error { return os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0) },
			"module loader":  func() error { return os.WriteFile("/proc/sys/kernel/modprobe", []byte("/x"), 0) },
			"release agent":  func() error { return os.WriteFile("/sys/fs/cgroup/release_agent", []byte("/x"), 0) },
			"kernel modules": func() error { return raw(unix.SYS_FINIT_MODULE, 0, 0, 0) },
		}),
		"network": {
			"virtual machines": sock(unix.AF_VSOCK, unix.SOCK_STREAM, 0), "packets": sock(unix.AF_PACKET, unix.SOCK_RAW, 0), "ciphers": sock(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
			"bluetooth": sock(unix.AF_BLUETOOTH, unix.SOCK_RAW, 0), "keys": sock(unix.AF_KEY, unix.SOCK_RAW, 2), "xdp": sock(unix.AF_XDP, unix.SOCK_RAW, 0), "can": sock(unix.AF_CAN, unix.SOCK_RAW, 1),
			"tipc": sock(unix.AF_TIPC, unix.SOCK_STREAM, 0), "rds": sock(unix.AF_RDS, unix.SOCK_SEQPACKET, 0), "smc": sock(unix.AF_SMC, unix.SOCK_STREAM, 0), "infrared": sock(unix.AF_IRDA, unix.SOCK_STREAM, 0),
			"rings": func() error { return raw(unix.SYS_IO_URING_SETUP, 1, 0) }, "ring calls": func() error { return raw(unix.SYS_IO_URING_ENTER, 0) }, "ring buffers": func() error { return raw(unix.SYS_IO_URING_REGISTER, 0) },
			"other network": func() error { return raw(unix.SYS_SETNS, 0, unix.CLONE_NEWNET) },
		},
		"namespaces": {
			"users": func() error { return unix.Unshare(unix.CLONE_NEWUSER) }, "mounts": func() error { return unix.Unshare(unix.CLONE_NEWNS) }, "network": func() error { return unix.Unshare(unix.CLONE_NEWNET) },
			"processes": func() error { return unix.Unshare(unix.CLONE_NEWPID) }, "groups": func() error { return unix.Unshare(unix.CLONE_NEWCGROUP) }, "queues": func() error { return unix.Unshare(unix.CLONE_NEWIPC) },
			"names": func() error { return unix.Unshare(unix.CLONE_NEWUTS) }, "time": func() error { return unix.Unshare(unix.CLONE_NEWTIME) },
			"clone users": func() error {
				pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
				if errno != 0 {
					return errno
				}
				if pid == 0 {
					_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
				}
				return nil
			},
			"clone3":     func() error { return raw(unix.SYS_CLONE3, 0, 0) },
			"join users": func() error { return raw(unix.SYS_SETNS, 0, unix.CLONE_NEWUSER) },
			"host name":  func() error { return unix.Sethostname([]byte("x")) },
			"mapping":    func() error { return os.WriteFile("/proc/self/uid_map", []byte("0 0 1"), 0) },
			"bpf":        func() error { return raw(unix.SYS_BPF, 0, 0, 0) },
			"faults":     func() error { return raw(unix.SYS_USERFAULTFD, 0) },
		},
	}
}

func merge(all ...map[string]func() error) map[string]func() error {
	one := map[string]func() error{}
	for _, some := range all {
		for name, try := range some {
			one[name] = try
		}
	}
	return one
}

// attack makes all attempts.
func attack() int {
	secret, free := os.Getenv("SECRET"), os.Getenv("FREE") != ""
	called := strings.NewReplacer(secret, "SECRET", filepath.Dir(secret), "FOLDER", "/"+os.Getenv("ACTOR")+"/", "/ACTOR/", "/"+strconv.Itoa(os.Getppid())+"/", "/PARENT/")
	_ = os.Mkdir("deep", 0o755)
	_ = os.WriteFile("own", nil, 0o600)
	_ = os.Symlink(os.Getenv("SECRET"), "link")
	_ = os.Symlink(os.Getenv("SECRET"), "deep/link")
	for what, tries := range attempts() {
		for name, try := range tries {
			if free { // each has all of it
				for _, path := range []string{"hard", "renamed", "own"} {
					_ = os.RemoveAll(path)
				}
				_ = os.Mkdir(filepath.Dir(secret), 0o700)
				_ = os.WriteFile(secret, []byte("secret"), 0o600)
				_ = os.WriteFile("own", nil, 0o600)
			}
			name = called.Replace(name)
			err := try()
			var errno syscall.Errno
			switch {
			case err == nil:
				fmt.Println(what + ": " + name + " => done")
			case errors.As(err, &errno):
				fmt.Println(what+": "+name+" =>", errno)
			default:
				fmt.Println(what+": "+name+" =>", err)
			}
		}
	}
	for fd := 3; fd < 200; fd++ { // the runtime has its own, which are not files
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && !strings.HasPrefix(name, "anon_inode:") && !strings.HasPrefix(name, "pipe:") && !strings.HasPrefix(name, "/sys/fs/cgroup/") {
			fmt.Println("files: left open: " + name + " => done")
		}
	}
	return 0
}

// forRoot are attempts that need root, or a kernel with what they open, so that the control does not show
// that they can succeed.
var forRoot = []string{
	"terminal: make a terminal's node", "files: block device",
	"files: module loader", "files: sysrq", "files: core pattern", "files: release agent", "namespaces: mapping",
}

// freely returns how the attempts end without a sandbox, for a user who is not root and may do no harm.
func freely(t *testing.T) map[string]string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "free")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, secret := filepath.Join(dir, "program"), filepath.Join(dir, "data", "secret")
	text, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, text, 0o755)) //nolint:gosec // for another user
	require.NoError(t, os.Mkdir(filepath.Dir(secret), 0o700))
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	attr := &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		for _, path := range []string{dir, filepath.Dir(secret), secret} {
			require.NoError(t, os.Chown(path, 65534, 65534))
		}
	}
	actor := exec.Command("sleep", "infinity")
	actor.SysProcAttr = attr
	require.NoError(t, actor.Start())
	defer func() {
		_ = actor.Process.Kill()
		_ = actor.Wait() // it was killed
	}()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir, cmd.SysProcAttr = dir, attr
	cmd.Env = []string{modeEnv + "=attack", fastExit, "FREE=yes", "SECRET=" + secret, "ACTOR=" + strconv.Itoa(actor.Process.Pid)}
	got, err := cmd.Output()
	require.NoError(t, err)
	how := map[string]string{}
	for line := range strings.Lines(string(got)) {
		name, outcome, _ := strings.Cut(strings.TrimSpace(line), " => ")
		how[name] = outcome
	}
	return how
}

// A command that tries to leave its sandbox in a hundred ways stays in it.
func TestAttacks(t *testing.T) {
	needsAll(t)
	free := freely(t)
	for name, opts := range kinds {
		if opts.Sandbox == Runsc {
			continue // its kernel answers them, for what is in it
		}
		for _, network := range []Network{None, Host} {
			t.Run(name+" "+string(network), func(t *testing.T) {
				base := t.TempDir()
				secret := filepath.Join(base, "data", "secret")
				dir := filepath.Join(base, "work")
				for _, folder := range []string{filepath.Dir(secret), dir} {
					require.NoError(t, os.Mkdir(folder, 0o700))
				}
				require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
				fd, err := syscall.Open(secret, syscall.O_RDONLY, 0) // as a shell leaves it open
				require.NoError(t, err)
				defer func() { _ = syscall.Close(fd) }()
				before, err := os.Stat(secret)
				require.NoError(t, err)
				opts.Network, opts.Dir = network, dir
				opts.Env = []string{"SECRET=" + secret, "ACTOR=" + strconv.Itoa(os.Getpid())}
				got, err := run(t, "attack", opts)
				require.NoError(t, err)
				var done, unproven []string
				proven := 0
				for line := range strings.Lines(got) {
					name, how, _ := strings.Cut(strings.TrimSpace(line), " => ")
					switch {
					case how == "done" && (opts.flat && mayFlat(line) ||
						opts.Sandbox == Bwrap && os.Geteuid() == 0 && strings.HasPrefix(line, "files: mode of null")): // Bubblewrap shows root's own devices
					case how == "done":
						done = append(done, line)
					case free[name] == "done" || how == unix.EPERM.Error() && !strings.Contains(name, ": open ") || how == unix.ENOSYS.Error() || how == unix.EROFS.Error():
						proven++ // without the sandbox it is done, or the filter's answer is another one
					case strings.Contains(name, ": open ") || slices.Contains(forRoot, name): // a user who is not root may not either, or it is not there
					default:
						unproven = append(unproven, line+" without: "+free[name])
					}
				}
				require.Empty(t, done)
				require.Empty(t, unproven)
				require.Greater(t, proven, 70)
				if opts.flat {
					return // it may change mode and times
				}
				after, err := os.Stat(secret)
				require.NoError(t, err)
				require.Equal(t, before.Mode(), after.Mode())
				require.Equal(t, before.ModTime(), after.ModTime())
			})
		}
	}
}

// What a tool names in its working folder leads out of it only if it did before a command was there.
func TestASandboxDoesNotFollowNewLinks(t *testing.T) {
	needsAll(t)
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir, other := filepath.Join(base, "work"), filepath.Join(base, "other")
			for _, folder := range []string{dir, other} {
				require.NoError(t, os.Mkdir(folder, 0o700))
			}
			for file, text := range map[string]string{filepath.Join(other, "secret"): "secret", filepath.Join(other, "named"): "named", filepath.Join(dir, "conf"): "conf"} {
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			}
			require.NoError(t, os.Symlink(filepath.Join(other, "named"), filepath.Join(dir, "linked")))
			require.NoError(t, os.Symlink("../work/conf", filepath.Join(other, "away")))
			opts.Dir, opts.Read = dir, []string{"conf", "linked", filepath.Join(other, "away")}
			opts.Command = []string{"sh", "-c", "cat conf linked ./conf; rm -f conf linked; ln -s " + filepath.Join(other, "secret") + " conf; ln -s " + filepath.Join(other, "secret") + " linked", "./conf", "./linked"}
			made, err := New(tool.Definition{Name: "cmd"}, opts)
			require.NoError(t, err)
			got, err := made.Run(t.Context(), tool.Call{})
			require.NoError(t, err)
			require.Equal(t, "confnamedconf", got)
			got, err = made.Run(t.Context(), tool.Call{})
			require.NoError(t, err, "removing and linking again is allowed")
			require.Empty(t, got, "and leads nowhere")

			shown := filepath.Join(dir, "shown") // to another tool
			require.NoError(t, os.WriteFile(shown, []byte("shown"), 0o600))
			opts.Dir, opts.Read, opts.Command = t.TempDir(), []string{shown}, []string{"sh", "-c", "cat " + shown + "; true"}
			reader, err := New(tool.Definition{Name: "reader"}, opts)
			require.NoError(t, err)
			got, err = reader.Run(t.Context(), tool.Call{})
			require.NoError(t, err)
			require.Equal(t, "shown", got)
			opts.Dir, opts.Read = dir, nil
			_, err = sh(t, opts, "rm shown; ln -s "+filepath.Join(other, "secret")+" shown")
			require.NoError(t, err)
			got, err = reader.Run(t.Context(), tool.Call{})
			require.NoError(t, err)
			require.Empty(t, got)

			hide := filepath.Join(dir, ".env") // else each of the others is granted by itself
			require.NoError(t, os.WriteFile(hide, nil, 0o600))
			Hide(hide)
			opts.Dir, opts.Read = dir, nil
			require.NoError(t, os.Symlink(other, filepath.Join(dir, "away"))) // as a command could, without the hidden file
			got, err = sh(t, opts, "cat away/secret; cat "+filepath.Join(other, "secret")+"; true")
			require.NoError(t, err)
			require.Empty(t, got)
			require.NoError(t, os.Remove(hide))

			site := filepath.Join(dir, "site")
			later := filepath.Join(dir, "later") // which is not there yet
			require.NoError(t, os.Mkdir(site, 0o700))
			for _, inner := range []string{site, later} {
				opts.Dir, opts.Read, opts.Command = inner, nil, []string{"cat", "secret"}
				second, err := New(tool.Definition{Name: "second"}, opts)
				require.NoError(t, err)
				opts.Dir = dir
				_, err = sh(t, opts, "mv site moved; rm -f site later; ln -s "+other+" "+filepath.Base(inner))
				require.NoError(t, err)
				got, err = second.Run(t.Context(), tool.Call{})
				require.ErrorContains(t, err, inner+" is "+other+" now")
				require.Empty(t, got)
			}
		})
	}
}

// mayFlat says what a command may where there are no namespaces: Landlock does not cover mode, owner, times and attributes.
func mayFlat(line string) bool {
	for _, what := range []string{"mode", "owner", "times", "attribute", "mode of null", "mode of hosts"} {
		if strings.HasPrefix(line, "files: "+what) {
			return true
		}
	}
	return false
}
