package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/groupflush"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/nats-io/nats-server/v2/server"
)

// GroupFlush reports whether streams are flushed by [Server.Flush].
func (s *Server) GroupFlush() bool { return s.group }

// Flush returns nil when a stream is on the disk up to the message with that sequence
// number, which the server has acknowledged or delivered; 0: up to its end. All who wait at
// the same moment share one flush. It is cheap if the message was flushed before. From
// the first call on, the stream's messages are flushed by nothing else.
//
// If a flush fails, [Options].Fatal is called and every call returns the error. Without
// group flush it returns nil at once on a server with SyncAlways, else an error.
func (s *Server) Flush(ctx context.Context, stream string, seq uint64) error {
	if !s.group {
		if s.settings.SyncAlways {
			return nil
		}
		return errors.New("flush: the embedded server was started without group flush")
	}
	f, ok := s.flushers.Load(stream)
	if !ok {
		f, _ = s.flushers.LoadOrStore(stream, newFlusher(filepath.Join(s.settings.StoreDir, server.JetStreamStoreDir, s.identity.account, "streams", stream), s.fatal))
	}
	if err := f.(*flusher).Wait(ctx, seq); err != nil {
		return fmt.Errorf("flush stream %s: %w", stream, err)
	}
	return nil
}

// closeFlushers flushes the streams of a server that has stopped. Flushers of later calls
// begin anew.
func (s *Server) closeFlushers() {
	s.flushers.Range(func(stream, f any) bool {
		f.(*flusher).close()
		s.flushers.Delete(stream)
		return true
	})
}

// fatal ends everything after a flush failed. It is called once.
func (s *Server) fatal(err error) {
	s.log.out.Error("the disk does not take what is stored, so nothing is stored any more", "dir", s.dir, "reason", err)
	if s.onFatal == nil {
		panic(err)
	}
	s.onFatal(err)
}

var (
	errStopped  = errors.New("the server was stopped")
	errNoBlocks = errors.New("there are no blocks")
)

// flusher flushes one stream. Only the file of the stream's last block is not synchronous
// (see keepSynced): the flusher clears its flag, keeps it open, and flushes it for all who
// wait. A block that the server has begun and the flusher has not seen yet is merely slower.
type flusher struct {
	*groupflush.Group
	dir   string
	fatal func(error)

	mu sync.Mutex
	// block is the open one, nil at first, and number its number.
	block  *os.File
	number int
	// looked is the directory as it was when it was last read.
	looked os.FileInfo
	// ended is why nothing is flushed any more.
	ended error
}

func newFlusher(stream string, fatal func(error)) *flusher {
	f := &flusher{dir: filepath.Join(stream, "msgs"), fatal: fatal}
	f.Group = groupflush.New(f.flush)
	// Batches are staged next to the blocks. With SyncAlways the server keeps one until all of
	// it is on the disk, and completes it at its next start. Here it does not, so the files need
	// not be synchronous: after a power loss the first records of a batch that was not
	// acknowledged may be there without the others.
	staged := filepath.Join(stream, "batches")
	if os.MkdirAll(staged, 0o700) == nil {
		_ = withFile(staged, func(d *os.File) error { return setSynced(d, false) }) // else it is slower
	}
	return f
}

// flush writes to the disk what the stream has now.
func (f *flusher) flush(wanted uint64) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended != nil {
		return 0, f.ended
	}
	err := f.sync()
	if errors.Is(err, errNoBlocks) && wanted == 0 {
		return 0, nil
	}
	var failed *flushError
	if errors.As(err, &failed) {
		f.ended = err
		f.fatal(err)
	}
	return wanted, err
}

// missingFor is how long the directory of blocks may be away: a purge replaces it.
const missingFor = 2 * time.Second

// sync flushes the open block, after it has made the last one the open one.
func (f *flusher) sync() error {
	for start := time.Now(); ; {
		dir, err := os.Stat(f.dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && time.Since(start) < missingFor:
			retry.Wait(context.Background(), time.Millisecond)
			continue
		case err != nil:
			return err
		case f.block != nil && f.same(dir):
			return flushFailed(datasync(f.block))
		}
		if err := f.look(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f.looked = dir
	}
}

// same reports whether the open block is still the last one. The time of the directory alone
// would not show a block that was made just after it was read.
func (f *flusher) same(dir os.FileInfo) bool {
	if !os.SameFile(dir, f.looked) || !dir.ModTime().Equal(f.looked.ModTime()) {
		return false
	}
	_, err := os.Stat(blockPath(f.dir, f.number+1))
	return errors.Is(err, fs.ErrNotExist)
}

// look opens the last block if that is another one than the open one.
func (f *flusher) look() error {
	blocks, err := blocksOf(f.dir)
	if err != nil {
		return err
	}
	if len(blocks) == 0 {
		return fmt.Errorf("%w in %s", errNoBlocks, f.dir)
	}
	last := slices.Max(blocks)
	next, err := os.Open(blockPath(f.dir, last))
	if err != nil {
		return err
	}
	if f.block != nil {
		if same, err := sameFile(f.block, next); same || err != nil {
			return errors.Join(err, next.Close())
		}
		// The order is what a start after an unclean end relies on, see cutUnordered.
		if err := f.seal(); err != nil {
			return errors.Join(err, next.Close())
		}
	}
	if err := withFile(f.dir, func(d *os.File) error { return flushFailed(d.Sync()) }); err != nil {
		return errors.Join(err, next.Close())
	}
	f.block, f.number = next, last
	if err := setSynced(next, false); err != nil {
		return fmt.Errorf("clear the flag +S of %s: %w", next.Name(), err)
	}
	return flushFailed(next.Sync()) // the flag, too
}

// seal flushes the open block, makes it synchronous for good, and closes it.
func (f *flusher) seal() error {
	if err := datasync(f.block); err != nil {
		return &flushError{err}
	}
	err := setSynced(f.block, true)
	if err == nil {
		err = flushFailed(f.block.Sync())
	}
	if err != nil {
		return err
	}
	block := f.block
	f.block = nil
	return block.Close()
}

// close flushes what is left of a server that has stopped.
func (f *flusher) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended != nil {
		return
	}
	if f.ended = errStopped; f.block == nil {
		return
	}
	err := f.sync()
	if err == nil {
		err = f.seal()
	}
	if err != nil {
		f.ended = err
	}
	var failed *flushError
	if errors.As(err, &failed) {
		f.fatal(err)
	}
}

func flushFailed(err error) error {
	if err != nil {
		return &flushError{err}
	}
	return nil
}

func sameFile(a, b *os.File) (bool, error) {
	one, err := a.Stat()
	if err != nil {
		return false, err
	}
	other, err := b.Stat()
	return err == nil && os.SameFile(one, other), err
}
