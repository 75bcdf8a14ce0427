package embedded

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ext4 is the magic number of ext2 to ext4. The kernel keeps the promise of the flag
// for file contents on other file systems too, but XFS and btrfs do not for renames.
const ext4 = 0xEF53

// The inode flags of `chattr +S` and `+D`.
const (
	syncFlag    = 0x00000008 // a write to the file returns when it is on the disk
	dirSyncFlag = 0x00010000 // so does a change of the directory
)

// checkFileSystem returns why the directory's file system cannot keep files synchronous.
func checkFileSystem(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("file system of %s: %w", dir, err)
	}
	if uint32(fs.Type) != ext4 {
		return fmt.Errorf("%s is not on ext4", dir)
	}
	return nil
}

// isSynced reports whether every write to the file is synchronous.
func isSynced(file *os.File) (bool, error) {
	flags, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	return flags&syncFlag != 0, err
}

// setSynced makes every write to the file, or every change of the directory, synchronous,
// or ends that.
func setSynced(file *os.File, on bool) error {
	flags, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	bits := uint32(syncFlag)
	if info.IsDir() {
		bits |= dirSyncFlag
	}
	want := flags &^ bits
	if on {
		want = flags | bits
	}
	if want == flags {
		return nil
	}
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(want)); err != nil {
		return err
	}
	is, err := isSynced(file)
	if err == nil && is != on {
		err = fmt.Errorf("the flag +S of %s cannot be changed", file.Name())
	}
	return err
}

// datasync flushes the file's data to the disk.
func datasync(file *os.File) error {
	for {
		if err := unix.Fdatasync(int(file.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// forget drops what the page cache has of a file that is on the disk, so that it is read
// from there: after an error, the cache may have what the disk has not.
func forget(file *os.File) error {
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}
