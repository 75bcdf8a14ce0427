//go:build unix && !aix && !solaris && !illumos

package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks a file exclusively without waiting, until it is closed or the process dies.
func lockFile(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("another process uses these views")
	}
	return err
}
