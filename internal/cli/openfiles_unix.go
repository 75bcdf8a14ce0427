//go:build unix

package cli

import "golang.org/x/sys/unix"

// OpenFiles returns how many files, and so connections, this process may have open
// at once: Go raises the soft limit to the hard one when a process begins.
func OpenFiles() (limit uint64, known bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return uint64(r.Cur), true
}
