package main

import "golang.org/x/sys/unix"

// inMemory reports whether a directory lies on a file system that has no disk.
func inMemory(dir string) bool {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return false
	}
	return int64(s.Type) == unix.TMPFS_MAGIC || int64(s.Type) == unix.RAMFS_MAGIC
}
