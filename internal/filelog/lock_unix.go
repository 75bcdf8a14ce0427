//go:build unix && !aix && !solaris && !illumos

package filelog

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile makes sure that nobody else appends; the lock ends with the file.
func lockFile(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrInUse
		default:
			return err
		}
	}
}
