package confine

import (
	"errors"
	"fmt"
	"os"
	"strings"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Landlock's rights. Whoever may read a program may start it.
const (
	mayRead      = ll.AccessFSReadFile | ll.AccessFSReadDir
	mayWriteFile = ll.AccessFSWriteFile | ll.AccessFSTruncate
	mayWrite     = mayWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg |
		ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym | ll.AccessFSRefer | mayRead
	// ofFiles are the rights that a rule for a file may have.
	ofFiles = mayWriteFile | ll.AccessFSReadFile
	handled = mayWrite | ll.AccessFSMakeChar | ll.AccessFSMakeBlock | ll.AccessFSIoctlDev
)

// The versions of Landlock's interface that brought something.
const (
	referV2, truncateV3, tcpV4, ioctlV5, scopesV6 = 2, 3, 4, 5, 6
)

// Rules say what remains.
type Rules struct {
	// System and Read may be read, Write be read and written, with all that is in them. Devices may be
	// read and written as files. What does not exist is omitted. Links are followed in System alone: in
	// other places somebody may just have made one.
	System, Read, Write, Devices []string
	// TCP says that connections and listeners remain.
	TCP bool
}

// Restrict confines this thread, and what it starts, to the rules, and to processes and abstract
// sockets that were started under them. The thread must be locked to its goroutine and have given
// up new privileges. The error says that nothing, or if held is true, that not all of that is in
// force.
func Restrict(r Rules) (held bool, err error) {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return false, fmt.Errorf("landlock: %w", err)
	}
	attr := ll.RulesetAttr{HandledAccessFS: handled}
	for _, right := range []struct {
		since  int
		access uint64
	}{{referV2, ll.AccessFSRefer}, {truncateV3, ll.AccessFSTruncate}, {ioctlV5, ll.AccessFSIoctlDev}} {
		if version < right.since {
			attr.HandledAccessFS &^= right.access
		}
	}
	if version >= tcpV4 && !r.TCP {
		attr.HandledAccessNet = ll.AccessNetBindTCP | ll.AccessNetConnectTCP
	}
	if version >= scopesV6 {
		attr.Scoped = ll.ScopeSignal | ll.ScopeAbstractUnixSocket
	}
	rules, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return false, fmt.Errorf("landlock: %w", err)
	}
	defer func() { _ = unix.Close(rules) }()
	for _, rule := range []struct {
		paths  []string
		access uint64
		open   func(string) (int, error)
	}{{r.System, mayRead, follow}, {r.Read, mayRead, Open}, {r.Write, mayWrite, Open}, {r.Devices, ofFiles, Open}} {
		for _, path := range rule.paths {
			err := allow(rules, path, rule.access&attr.HandledAccessFS, rule.open)
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ELOOP) {
				return false, err
			}
		}
	}
	if err := ll.LandlockRestrictSelf(rules, 0); err != nil {
		return false, fmt.Errorf("landlock: %w", err)
	}
	switch {
	case version < truncateV3:
		return false, errors.New("this kernel's landlock does not keep files from being truncated")
	case version < scopesV6:
		return true, errors.New("this kernel's landlock does not keep signals and abstract sockets in")
	}
	return true, nil
}

func follow(path string) (fd int, err error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) }

// Open opens what is at an absolute path as a name (O_PATH). It follows no symbolic links: the error for
// one is ELOOP.
func Open(path string) (fd int, err error) {
	fd, err = follow("/")
	for name := range strings.SplitSeq(path, "/") {
		if err != nil || name == "" {
			continue
		}
		var next int
		next, err = unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd) // it was only a name
		var stat unix.Stat_t
		if fd = next; err == nil {
			err = unix.Fstat(fd, &stat)
		}
		if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFLNK {
			_ = unix.Close(fd)
			err = unix.ELOOP
		}
	}
	return fd, err
}

func allow(rules int, path string, access uint64, open func(string) (int, error)) error {
	fd, err := open(path)
	if err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= ofFiles
	}
	if err := ll.LandlockAddPathBeneathRule(rules, &ll.PathBeneathAttr{AllowedAccess: access, ParentFd: fd}, 0); err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	return nil
}
