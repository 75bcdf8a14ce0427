//go:build linux || darwin

package console

import "golang.org/x/sys/unix"

// freeSpace returns how many bytes a file system has left for this user.
func freeSpace(dir string) (bytes uint64, known bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
