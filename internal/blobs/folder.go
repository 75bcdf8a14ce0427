package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/lockedfile"
)

const (
	// half is what the names of files end with that are being written.
	half = ".tmp"
	// conditions is the file that is locked while a condition is checked.
	conditions = ".conditions"
	// lock is the file that [Lock] locks.
	lock = ".lock"
)

// NewFolder returns the store in a folder, which is made by the first write. Only its owner can read the
// files. Each is written under another name, flushed, and renamed; then its folder is flushed. Files whose
// names begin with a dot or end with .NUMBER.tmp are no objects.
func NewFolder(path string) Store { return folder(path) }

type folder string

// leftover matches the names of files that are being written.
var leftover = regexp.MustCompile(`\.[0-9]+\.tmp$`)

func (f folder) String() string         { return "file:" + string(f) }
func (f folder) path(key string) string { return filepath.Join(string(f), filepath.FromSlash(key)) }

// Put implements [Store].
func (f folder) Put(ctx context.Context, key string, r io.Reader) (err error) {
	if err := checkKey(key); err != nil {
		return err
	}
	to := f.path(key)
	if err := f.makeFolder(filepath.Dir(to)); err != nil {
		return noRoom(f, err)
	}
	file, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*"+half) // readable by its owner alone
	if err != nil {
		return noRoom(f, err)
	}
	_, err = io.Copy(file, reader{ctx, r})
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), to)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // its room may be needed
		return noRoom(f, fmt.Errorf("%s: %w", key, err))
	}
	return flush(filepath.Dir(to))
}

// makeFolder makes a folder, and flushes the one that it is in: else a power loss takes it with all files.
func (f folder) makeFolder(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(path)
	if err := f.makeFolder(parent); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return flush(parent)
}

func flush(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// noRoom says what a full disk means.
func noRoom(f folder, err error) error {
	if slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}, func(full error) bool { return errors.Is(err, full) }) {
		return fmt.Errorf("no room in %s: make room and run it again: %w", string(f), err)
	}
	return err
}

// Lock waits until no other process that locks writes to a folder, which is made if it is not there, and
// removes what processes that died have left half written. It has no effect on a bucket, and reports false:
// there, only conditions protect from others.
func Lock(s Store) (unlock func(), locked bool, err error) {
	f, ok := s.(folder)
	if !ok {
		return func() {}, false, nil
	}
	if err := f.makeFolder(string(f)); err != nil {
		return nil, false, noRoom(f, err)
	}
	unlock, err = lockedfile.MutexAt(filepath.Join(string(f), lock)).Lock()
	if err != nil {
		return nil, false, err
	}
	err = filepath.WalkDir(string(f), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && leftover.MatchString(d.Name()) {
			err = os.Remove(path)
		}
		return err
	})
	if err != nil {
		unlock()
		return nil, false, err
	}
	return unlock, true, nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// PutIf implements [Store].
func (f folder) PutIf(ctx context.Context, key string, data []byte, version string) error {
	if err := f.makeFolder(string(f)); err != nil {
		return noRoom(f, err)
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(string(f), conditions)).Lock()
	if err != nil {
		return err
	}
	defer unlock()
	switch info, err := f.Stat(ctx, key); {
	case err != nil && !errors.Is(err, ErrNotExist):
		return err
	case info.Version != version:
		return fmt.Errorf("%s: %w", key, ErrChanged)
	}
	return f.Put(ctx, key, strings.NewReader(string(data)))
}

// Get implements [Store].
func (f folder) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := errors.Join(checkKey(key), ctx.Err()); err != nil {
		return nil, err
	}
	file, err := os.Open(f.path(key))
	return file, err
}

// Range implements [Store].
func (f folder) Range(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := errors.Join(checkKey(key), ctx.Err()); err != nil {
		return nil, err
	}
	file, err := os.Open(f.path(key))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	return readRange(io.NewSectionReader(file, offset, length), length)
}

// readRange reads exactly length bytes. It does not trust the length before it has read them.
func readRange(r io.Reader, length int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, length))
	if err == nil && int64(len(data)) < length {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// Stat implements [Store]. The version is the hash of the contents.
func (f folder) Stat(ctx context.Context, key string) (Info, error) {
	file, err := f.Get(ctx, key)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := os.Stat(f.path(key))
	if err != nil {
		return Info{}, err
	}
	digest := sha256.New()
	if _, err := io.Copy(digest, reader{ctx, file}); err != nil {
		return Info{}, err
	}
	return Info{Key: key, Size: info.Size(), Modified: info.ModTime(), Version: hex.EncodeToString(digest.Sum(nil))}, nil
}

// List implements [Store].
func (f folder) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		var all []Info // sorted by path, which is another order than that of folders
		err := filepath.WalkDir(string(f), func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			name := ""
			if err == nil {
				name, err = filepath.Rel(string(f), path)
			}
			key := filepath.ToSlash(name)
			if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") || leftover.MatchString(key) || !strings.HasPrefix(key, prefix) {
				return err
			}
			info, err := d.Info()
			if err == nil {
				all = append(all, Info{Key: key, Size: info.Size(), Modified: info.ModTime()})
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a file that goes meanwhile, or nothing was ever stored
			yield(Info{}, err)
			return
		}
		slices.SortFunc(all, func(x, y Info) int { return strings.Compare(x.Key, y.Key) })
		for _, info := range all {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Delete implements [Store].
func (f folder) Delete(ctx context.Context, key string) error {
	if err := errors.Join(checkKey(key), ctx.Err()); err != nil {
		return err
	}
	err := os.Remove(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, flush(filepath.Dir(f.path(key))))
}
