//go:build unix && !aix && !solaris && !illumos

package embedded

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks the file without waiting, exclusively or shared. The lock ends
// when the file is closed, also by the process's death. It returns errBusy if
// somebody else's lock stands against it.
func lockFile(file *os.File, exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return errBusy
		default:
			return err
		}
	}
}
