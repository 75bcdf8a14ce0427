package datadir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/diskspace"
	"github.com/moorebus/moorebus/pkg/embedded"
)

// readOnly reports whether a server could not be started because nothing can be written.
func readOnly(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// startCopy starts the server on a copy of a data directory that cannot be written, such as one
// on a read-only file system, since the server writes also to read. remove removes the copy. A
// directory that a process uses, or may use, is refused: the copy could be of two moments.
func startCopy(ctx context.Context, dir string, settings embedded.Options) (server *embedded.Server, remove func(), err error) {
	if err := unused(dir); err != nil {
		return nil, nil, err
	}
	size, err := sizeOf(dir)
	if err != nil {
		return nil, nil, err
	}
	if free, _, known := diskspace.Free(os.TempDir()); known && free < size {
		return nil, nil, cli.NotConfigured("data directory %s is read-only, and a copy of its %d MiB does not fit into %s: set TMPDIR to a directory with more space", dir, size>>20+1, os.TempDir())
	}
	copied, err := os.MkdirTemp("", "moorebus-read-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { _ = os.RemoveAll(copied) }
	cli.Say("data directory %s is read-only: reading a copy of its %d KiB", dir, size>>10+1)
	err = os.CopyFS(copied, os.DirFS(dir))
	if err == nil {
		err = unused(dir)
	}
	if err == nil {
		settings.Dir, settings.SyncAlways, settings.GroupFlush = copied, false, false
		server, err = embedded.Start(ctx, settings)
	}
	if err != nil {
		remove()
		return nil, nil, fmt.Errorf("data directory %s is read-only, and cannot be read from a copy: %w", dir, err)
	}
	return server, remove, nil
}

// unused returns an error if a process uses the directory, or if that cannot be seen.
func unused(dir string) error {
	held, err := embedded.Lookup(dir)
	if err != nil {
		return fmt.Errorf("whether a process uses the read-only data directory %s cannot be seen: %w", dir, err)
	}
	if held != nil {
		return &embedded.HeldError{Dir: dir, Holder: *held}
	}
	return nil
}

func sizeOf(dir string) (size uint64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += uint64(info.Size())
		}
		return err
	})
	return size, err
}
