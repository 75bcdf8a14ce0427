//go:build linux || darwin

// Package diskspace returns how much space a file system has.
package diskspace

import "golang.org/x/sys/unix"

// Free returns how many bytes the file system of a directory has left for this
// user, and how many it has altogether. It is not known on every system.
func Free(dir string) (free, total uint64, known bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, false
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), true
}
