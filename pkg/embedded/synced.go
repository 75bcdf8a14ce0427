package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrNoGroupFlush says that the data directory cannot be used with [Options].GroupFlush.
var ErrNoGroupFlush = errors.New("the data directory cannot be flushed in groups")

// flushError is a failure to write something to the disk. The kernel may have dropped what
// it could not write, so nothing is tried again.
type flushError struct{ err error }

func (e *flushError) Error() string { return "cannot flush to the disk: " + e.err.Error() }
func (e *flushError) Unwrap() error { return e.err }

// chooseFlush makes the server's directory ready for how its messages are flushed, and
// reports whether that is in groups. The server must not run.
func (o *Options) chooseFlush(store string) (group bool, err error) {
	if o.GroupFlush {
		err := o.keepSynced(store)
		var failed *flushError
		switch {
		case err == nil:
			return true, nil
		case errors.As(err, &failed):
			return false, err
		case !o.SyncAlways:
			return false, fmt.Errorf("%w: %w", ErrNoGroupFlush, err)
		}
		logger(o.Logger).Info("the embedded server flushes every message by itself, since the data directory cannot be flushed in groups", "reason", err)
	}
	err = (&syncWalk{log: logger(o.Logger)}).run(store)
	var failed *flushError
	if err != nil && !errors.As(err, &failed) {
		err = nil // at worst it is slower than it could be
	}
	return false, err
}

// keepSynced makes every write below the directory synchronous, as it is and as it will
// be, if the file system can do that.
func (o *Options) keepSynced(store string) error {
	if err := os.MkdirAll(store, 0o700); err != nil {
		return err
	}
	if err := checkFileSystem(store); err != nil {
		return err
	}
	if err := checkInherited(store); err != nil {
		return err
	}
	return (&syncWalk{on: true, log: logger(o.Logger)}).run(store)
}

// checkInherited returns an error unless what is made in a synchronous directory is so.
func checkInherited(store string) error {
	dir, err := os.MkdirTemp(store, "probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := withFile(dir, func(d *os.File) error { return setSynced(d, true) }); err != nil {
		return err
	}
	file, inner := filepath.Join(dir, "file"), filepath.Join(dir, "dir")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(inner, 0o700)); err != nil {
		return err
	}
	for _, path := range []string{file, inner} {
		if err := withFile(path, func(f *os.File) error {
			is, err := isSynced(f)
			if err == nil && !is {
				err = fmt.Errorf("files in %s do not inherit the flag +S", store)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func withFile(path string, do func(*os.File) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// syncWalk sets or clears the flag of everything below a directory.
type syncWalk struct {
	on, was bool
	log     *slog.Logger
}

// run flushes what does not have the flag before it sets it. The directory itself comes last,
// so that its flag says that all was done.
func (w *syncWalk) run(store string) error {
	err := withFile(store, func(f *os.File) (err error) { w.was, err = isSynced(f); return err })
	if err != nil || !w.on && !w.was {
		return err
	}
	if store, err = filepath.EvalSymlinks(store); err != nil {
		return err
	}
	var blocks []string
	err = filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir() && !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		case d.IsDir() && w.was:
			if err := w.cutUnordered(path); err != nil {
				return err
			}
		}
		if path == store {
			return nil
		}
		if strings.HasSuffix(path, blockSuffix) {
			blocks = append(blocks, path)
			return nil
		}
		return settle(path, w.on)
	})
	if err != nil {
		return err
	}
	if err := w.settleBlocks(blocks); err != nil {
		return err
	}
	if err := withFile(filepath.Dir(store), func(d *os.File) error { return flushFailed(d.Sync()) }); err != nil {
		return err
	}
	return settle(store, w.on)
}

// settleBlocks settles the blocks of all streams, so that wherever it is interrupted, a lone block
// without the flag is the last one of its stream: else cutUnordered would put aside those after it.
func (w *syncWalk) settleBlocks(blocks []string) error {
	slices.SortFunc(blocks, func(a, b string) int {
		if w.on {
			return cmp.Compare(blockNumber(a), blockNumber(b))
		}
		return cmp.Compare(blockNumber(b), blockNumber(a))
	})
	for _, path := range blocks {
		if err := settle(path, w.on); err != nil {
			return err
		}
	}
	return nil
}

// settle flushes a file or directory that is not synchronous, and then makes it so, or ends
// that. The server reads from the disk what was flushed here: after an error that another
// process saw, the page cache may have what the disk has not.
func settle(path string, on bool) error {
	return withFile(path, func(f *os.File) error {
		synced, err := isSynced(f)
		if err == nil && !synced {
			if err := f.Sync(); err != nil {
				return &flushError{err}
			}
			_ = forget(f) // a directory has nothing to forget
		}
		if err != nil {
			return err
		}
		return setSynced(f, on)
	})
}

// mostBegun is how many blocks the server may begin while one flush is made.
const mostBegun = 2

// cutUnordered checks the blocks of a stream after an unclean end. One is left that was not
// synchronous, and may have lost its end with the power. The server may have begun other blocks
// after it, which are on the disk all the same. Nothing in those was ever answered, since
// the flusher would have finished the earlier block first. So they are put aside, and what is left is
// the log up to some record. The server's index goes, too: it may be right about the end of a
// block that lacks records before it.
func (w *syncWalk) cutUnordered(dir string) error {
	blocks, err := blocksOf(dir)
	if err != nil {
		return err
	}
	var open []int
	for _, n := range blocks {
		err := withFile(blockPath(dir, n), func(f *os.File) error {
			synced, err := isSynced(f)
			if err == nil && !synced {
				open = append(open, n)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(open) != 1 {
		return nil // a clean end, or blocks of another origin
	}
	slices.Sort(blocks)
	if last := blocks[len(blocks)-1]; last > open[0]+mostBegun {
		blocks = nil // a build without group flush continued here
	}
	for _, n := range slices.Backward(blocks) {
		if n <= open[0] {
			break
		}
		aside := blockPath(dir, n) + ".unanswered"
		if err := os.Rename(blockPath(dir, n), aside); err != nil {
			return err
		}
		w.log.Warn("the server ended while it began a block: nothing in that was answered, and it is put aside", "file", aside)
	}
	if err := os.Remove(filepath.Join(dir, "index.db")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

const blockSuffix = ".blk"

func blockPath(dir string, n int) string { return filepath.Join(dir, strconv.Itoa(n)+blockSuffix) }

// blockNumber returns the number in a block's path; -1: there is none.
func blockNumber(path string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), blockSuffix))
	if err != nil {
		return -1
	}
	return n
}

// blocksOf returns the numbers of the blocks in a directory, in no order.
func blocksOf(dir string) (blocks []int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		text, ok := strings.CutSuffix(name, blockSuffix)
		if n, err := strconv.Atoi(text); ok && err == nil {
			blocks = append(blocks, n)
		}
	}
	return blocks, errors.Join(err, d.Close())
}
