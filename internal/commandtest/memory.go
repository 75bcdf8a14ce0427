package commandtest

import (
	"os"

	"github.com/moorebus/moorebus/internal/diskspace"
)

// FilesInMemory has the tests of this process keep their temporary files in memory, for tests
// with servers: creating and removing servers' files would take more processor time than the
// tests. The files stay on the disk if TMPDIR names a place, if this system has no /dev/shm, or
// if less than 2 GiB are free there. A test that is about a disk chooses a place itself.
func FilesInMemory() {
	const place, room = "/dev/shm", 2 << 30
	if free, _, _ := diskspace.Free(place); os.Getenv("TMPDIR") != "" || free < room {
		return
	}
	if err := os.Setenv("TMPDIR", place); err != nil {
		panic(err)
	}
}
