package exectool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/moorebus/moorebus/pkg/tool"
)

// What this test binary does as a command that wants out of its sandbox.

func init() {
	commands["dial"], commands["calls"], commands["shell"], commands["type"] = dial, calls, shell, typeForUser
}

func outcome(what string, err error) {
	if err == nil {
		fmt.Println(what + ": done")
	} else {
		fmt.Printf("%s: refused: %v\n", what, err)
	}
}

// dial connects to what the environment names.
func dial() int {
	for name, network := range map[string]string{"TCP": "tcp", "ABSTRACT": "unix", "SOCKET": "unix"} {
		conn, err := net.DialTimeout(network, os.Getenv(name), 5*time.Second)
		if err != nil {
			fmt.Printf("%s: %v\n", name, err)
			continue
		}
		_ = conn.Close()
		fmt.Println(name + ": connected")
	}
	return 0
}

func raw(number uintptr, args ...uintptr) error {
	var all [6]uintptr
	copy(all[:], args)
	_, _, errno := syscall.Syscall6(number, all[0], all[1], all[2], all[3], all[4], all[5])
	if errno == 0 {
		return nil
	}
	return errno
}

// dangerous are system calls that a sandbox refuses with EPERM, or with ENOSYS, as if there were
// none, even for root.
var dangerous = map[string]func() error{
	"unshare users":   func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"unshare mounts":  func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWNS) },
	"clone users":     func() error { return raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)) },
	"clone3":          func() error { return raw(unix.SYS_CLONE3, 0, 0) },
	"mount":           func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") },
	"open_tree":       func() error { return raw(unix.SYS_OPEN_TREE, 0, 0, 0) },
	"ptrace":          func() error { return raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME) },
	"bpf":             func() error { return raw(unix.SYS_BPF, 0, 0, 0) },
	"io_uring":        func() error { return raw(unix.SYS_IO_URING_SETUP, 1, 0) },
	"keyctl":          func() error { return raw(unix.SYS_KEYCTL, 0, 0) },
	"perf":            func() error { return raw(unix.SYS_PERF_EVENT_OPEN, 0, 0) },
	"other memory":    func() error { return raw(unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid())) },
	"virtual sockets": func() error { return raw(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
	"raw sockets":     func() error { return raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"typing":          func() error { return raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&[]byte{'x'}[0]))) },
	"typing, upper half": func() error {
		return raw(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, uintptr(unsafe.Pointer(&[]byte{'x'}[0])))
	},
}

// calls tries the dangerous system calls.
func calls() int {
	for name, try := range dangerous {
		err := try()
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			fmt.Printf("%s: done, with %v\n", name, err) // the kernel looked at it
			continue
		}
		outcome(name, err)
	}
	return 0
}

// shell runs a tool as a program does that a user started on a terminal.
func shell() int {
	if own, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		fmt.Println("own: there")
		_ = own.Close()
	}
	self, _ := os.Executable()
	opts := Options{Command: []string{self}, Env: []string{modeEnv + "=type", fastExit, "PTS", "KIND"}, flat: os.Getenv("KIND") == "flat"}
	if os.Getenv("KIND") == "off" {
		opts.Sandbox = Off
	}
	made, err := New(tool.Definition{Name: "cmd"}, opts)
	if err != nil {
		return 1
	}
	got, err := made.Run(context.Background(), tool.Call{})
	fmt.Println(got, err)
	return 0
}

// typeForUser writes to the user's terminals, and types for the user.
func typeForUser() int {
	for _, name := range []string{"/dev/tty", "/dev/ptmx", "/dev/pts/ptmx", "/dev/console", os.Getenv("PTS")} {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		outcome(name, err)
		if err != nil || name == os.Getenv("PTS") && os.Getenv("KIND") == "off" {
			continue
		}
		for _, c := range []byte("typed by a tool") {
			_ = raw(unix.SYS_IOCTL, file.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
		}
		if os.Getenv("PTS") != name {
			_, _ = file.WriteString("typed by a tool")
		}
	}
	return 0
}

// newTerminal returns both ends of a terminal.
func newTerminal(t *testing.T) (screen, keyboard *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("reason: there are no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	keyboard, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return screen, keyboard
}

// bomb starts processes until it may not.
func bomb() int {
	for range 200 {
		if err := exec.Command("sleep", "infinity").Start(); err != nil {
			outcome("another process", err)
			return 0
		}
	}
	outcome("200 processes", nil)
	return 0
}

// memory tries to lift its bounds, and uses 400 MiB.
func memory() int {
	for pattern, value := range map[string]string{"memory.max": "max", "pids.max": "max", "cgroup.procs": "0"} {
		for _, depth := range []string{"", "*", "*/*", "*/*/*"} {
			files, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", depth, pattern))
			for _, file := range files {
				_ = os.WriteFile(file, []byte(value), 0)
			}
		}
	}
	var all [][]byte
	for range 25 {
		all = append(all, bytes.Repeat([]byte{1}, 16<<20))
	}
	fmt.Println("used all of it", len(all))
	return 0
}
