package exectool

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock's rights, by the version of its interface that brought them.
const (
	writeFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	writeV1   = writeFile | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	referV2, truncateV3, signalsV6 = 2, 3, 6
)

// devices are the files outside of its folders that any command may write to.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"}

// restrictWrites lets this thread, and what it starts, write below the folders and
// to harmless devices only, and no longer look into or signal processes that were
// not started under the same restriction. The error says that nothing, or not all
// of that, is in force.
func restrictWrites(folders []string) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	file, folder := uint64(writeFile), uint64(writeV1)
	if version >= referV2 {
		folder |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= truncateV3 {
		file |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	folder |= file
	attr := unix.LandlockRulesetAttr{Handled_access_fs: folder}
	if version >= signalsV6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	defer func() { _ = unix.Close(int(rules)) }()
	for _, path := range folders {
		if err := allow(int(rules), path, folder); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, path := range devices {
		if err := allow(int(rules), path, file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	switch {
	case version < truncateV3:
		return errors.New("this kernel's landlock does not keep files from being truncated")
	case version < signalsV6:
		return errors.New("this kernel's landlock does not keep signals in")
	}
	return nil
}

func allow(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock: %s: %w", path, errno)
	}
	return nil
}
