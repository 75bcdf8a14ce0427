package exectool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A call has its own control group (cgroup v2), next to the one of this process, below the group
// that the service manager delegated to it:
//
//	moorebus-actor@web.service   delegated: nobody else changes what is below
//	├── moorebus                 this process, as no process may be in a group with limited ones below it
//	└── call-123456              one call: memory.max, pids.max
//
// This process is started in the group moorebus (DelegateSubgroup= of systemd), or moves there.

const (
	leafName   = "moorebus"
	callPrefix = "call-"
	// keeperThreads are the keeper's own among the processes of a group.
	keeperThreads = 24
)

// controllers are those that bound a command.
var controllers = []string{"memory", "pids"}

// delegated returns the control group below which this process may make others. The error says why
// there is none. It is found, and what an earlier process left there removed, once.
var delegated = sync.OnceValues(func() (string, error) {
	dir, err := delegation()
	if err != nil {
		return "", fmt.Errorf("no control group is delegated to this process: %w", err)
	}
	removeEmpty(dir)
	return dir, nil
})

// removeEmpty removes the groups of calls that have no processes. Those with processes may be calls of
// another process that works here, and so may new ones.
func removeEmpty(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, callPrefix+"*")) // the pattern is valid
	for _, group := range left {
		if info, err := os.Stat(group); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(group) // the kernel keeps one with processes
		}
	}
}

func delegation() (dir string, err error) {
	own, err := ownGroupDir()
	if err != nil {
		return "", err
	}
	dir = own
	if filepath.Base(own) == leafName {
		dir = filepath.Dir(own)
	}
	if err := mayDivide(dir, dir == own); err != nil {
		return "", err
	}
	there, err := fields(dir, "cgroup.controllers")
	if err != nil {
		return "", err
	}
	for _, name := range controllers {
		if !slices.Contains(there, name) {
			return "", fmt.Errorf("%s has no controller %s", dir, name)
		}
	}
	if dir == own {
		leaf := filepath.Join(own, leafName)
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as the kernel's own
			return "", err
		}
		if err := set(leaf, "cgroup.procs", "0"); err != nil {
			return "", err
		}
	}
	return dir, set(dir, "cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
}

// mayDivide reports why this process may not make groups in a group: the service manager keeps it, or
// there are processes in it, but for this one if it is its own.
func mayDivide(group string, own bool) error {
	if _, err := os.Stat(filepath.Join(group, "cgroup.type")); err != nil {
		return errors.New("it is in the group of the entire system")
	}
	if os.Geteuid() == 0 { // who may write everywhere, although systemd owns it
		var mark [8]byte
		n, err := unix.Getxattr(group, "user.delegate", mark[:])
		if err != nil || string(mark[:n]) != "1" {
			return fmt.Errorf("%s is not marked as delegated (Delegate= of systemd)", group)
		}
	} else if err := unix.Access(filepath.Join(group, "cgroup.procs"), unix.W_OK); err != nil {
		return fmt.Errorf("%s belongs to another user (Delegate= of systemd gives it away): %w", group, err)
	}
	there, err := fields(group, "cgroup.procs")
	if err != nil {
		return err
	}
	var mine []string
	if own {
		mine = []string{strconv.Itoa(os.Getpid())}
	}
	if !slices.Equal(there, mine) {
		return fmt.Errorf("other processes are in %s", group)
	}
	return nil
}

// ownGroupDir returns the folder of this process's control group.
func ownGroupDir() (string, error) {
	is, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path, found := "", false
	for line := range strings.Lines(string(is)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			path, found = strings.TrimSuffix(rest, "\n"), true
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !found || len(f) < 5 || !strings.HasPrefix(after, "cgroup2 ") || !within(path, f[3]) {
			continue
		}
		return filepath.Join(f[4], strings.TrimPrefix(path, f[3])), nil
	}
	return "", errors.New("there is no cgroup v2 here")
}

// bound is the control group of one call.
type bound struct {
	dir   string
	files *os.File
}

// newBound makes a control group with limits for memory, in bytes, and the number of processes.
func newBound(memory int64, processes int) (*bound, error) {
	parent, err := delegated()
	if err != nil {
		return nil, err
	}
	b := &bound{}
	if b.dir, err = os.MkdirTemp(parent, callPrefix); err != nil {
		return nil, err
	}
	err = errors.Join(set(b.dir, "memory.max", strconv.FormatInt(memory, 10)), set(b.dir, "pids.max", strconv.Itoa(processes+keeperThreads)))
	if err == nil {
		if err = set(b.dir, "memory.swap.max", "0"); errors.Is(err, fs.ErrNotExist) {
			err = nil // there is no swap
		}
	}
	if err == nil {
		b.files, err = os.Open(b.dir)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// overMemory reports whether the kernel killed something for want of memory.
func (b *bound) overMemory() bool {
	counts, _ := fields(b.dir, "memory.events") // what cannot be read says nothing
	at := slices.Index(counts, "oom_kill")
	return at >= 0 && at+1 < len(counts) && counts[at+1] != "0"
}

// close kills what is left in the group, and removes it.
func (b *bound) close() error {
	if b.files != nil {
		_ = b.files.Close() // it was only a name
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if err := set(b.dir, "cgroup.kill", "1"); errors.Is(err, fs.ErrNotExist) { // Linux before 5.14
			left, _ := fields(b.dir, "cgroup.procs")
			for _, text := range left {
				if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
		err := os.Remove(b.dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Since(began) > sweepTime {
			return err
		}
	}
}

// set writes a setting of a control group.
func set(dir, name, value string) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// fields reads a setting of a control group.
func fields(dir, name string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	return strings.Fields(string(text)), err
}
