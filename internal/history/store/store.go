// Package store keeps what [history] makes of runs in SQL, beside the log: rows, words, labels, scores and sums
// by hour. Nothing in it is lost with it: a store without positions is made again of the log and of notes.
//
// A file belongs to one process. Changes come one after another, each in a transaction with the position up
// to which the log was read; readers do not wait for them. A crash loses at most the last changes, which are
// then read again.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
	"modernc.org/sqlite"
)

// Store is an open store. Its methods are safe for concurrent use.
type Store struct {
	file string
	// temporary says that the file goes when the store is closed, lock belongs to it.
	temporary bool
	lock      *os.File
	// damaged is set by the first call that found the file damaged. The next change builds it anew.
	damaged atomic.Bool

	// mu keeps write and read from being closed while they are used.
	mu          sync.RWMutex
	write, read *conn
	// applying is held by changes.
	applying sync.Mutex
	// known are the runs that have not ended and that changed last, as they are in the file, which no other
	// process changes.
	known *lru.Cache[runKey, *stored]
}

// Open opens the store in a file of SQLite, and makes it if there is none. A file of another version, a
// damaged file and a file of something else are replaced; the latter stays under the suffix .old. If the file
// cannot be used, a temporary file takes its place, and log gets one line. Close it when it is done.
func Open(ctx context.Context, file string, log *slog.Logger) (*Store, error) {
	s, err := open(ctx, file, false)
	if err == nil || ctx.Err() != nil {
		return s, err
	}
	dir, failed := os.MkdirTemp("", "moorebus-views-")
	if failed == nil {
		if s, failed = open(ctx, filepath.Join(dir, "views.db"), true); failed != nil {
			_ = os.RemoveAll(dir)
		}
	}
	if failed != nil { // nothing can be written, so it stays in memory
		if s, failed = open(ctx, "", true); failed != nil {
			return nil, failed
		}
	}
	log.WarnContext(ctx, "the views are kept in a temporary file, which is lost at the end", "file", file, "temporary", s.file, "err", err)
	return s, nil
}

// open opens the store in a file; without a name, in memory.
func open(ctx context.Context, file string, temporary bool) (*Store, error) {
	known, err := lru.New[runKey, *stored](knownRuns)
	if err != nil {
		return nil, err
	}
	s := &Store{file: file, temporary: temporary, known: known}
	if file != "" {
		lock, err := os.OpenFile(file+".lock", os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lockFile(lock); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		s.lock = lock
		if err := setAside(file); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	err = s.connect(ctx)
	if errors.Is(err, errForeign) {
		if err = s.remove(); err == nil {
			err = s.connect(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// errForeign says that another program or version wrote a file.
var errForeign = errors.New("not a file of this version's views")

// connect opens the file, and makes its tables if it is empty.
func (s *Store) connect(ctx context.Context) (err error) {
	source, err := source(s.file)
	if err != nil {
		return err
	}
	if s.file != "" { // SQLite would let others read it
		if f, err := os.OpenFile(s.file, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
			_ = f.Close() // dialing it says what is wrong with it
		}
	}
	write, err := dial(source, writing, 1)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = write.db.Close()
		}
	}()
	if err := prepare(ctx, write.db); damaged(err) {
		return fmt.Errorf("%w: %w", errForeign, err)
	} else if err != nil {
		return err
	}
	read, err := dial(source, reading, readers)
	s.write, s.read = write, read
	return err
}

// prepare makes the tables of an empty file, and checks those of another. It writes in any case.
func prepare(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var tables int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if tables == 0 {
		if err := create(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	var found string
	err = tx.QueryRowContext(ctx, "SELECT version FROM meta").Scan(&found)
	if found != version {
		return errors.Join(errForeign, err)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE meta SET version = version"); err != nil {
		return err
	}
	return tx.Commit()
}

func create(ctx context.Context, tx *sql.Tx) error {
	for _, statement := range schema {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// damaged reports whether an error says that a file is damaged or something else.
func damaged(err error) bool {
	var e *sqlite.Error
	return errors.Is(err, errForeign) || errors.As(err, &e) && (e.Code()&0xff == corrupt || e.Code()&0xff == notADB)
}

// The codes of SQLite for files that are damaged or something else.
const (
	corrupt = 11
	notADB  = 26
)

// suffixes are those of the files of a database.
var suffixes = []string{"", "-wal", "-shm"}

// remove removes the file.
func (s *Store) remove() error {
	for _, suffix := range suffixes {
		if err := os.Remove(s.file + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// setAside renames a file that is not one of views.
func setAside(file string) error {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() == 0 || ours(file) {
		return nil // what is wrong with it, opening it says
	}
	for _, suffix := range suffixes {
		if err := os.Rename(file+suffix, file+suffix+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// application is the identity of files of views, at this place of their header.
const (
	application   = "MBvw"
	applicationAt = 68
)

// ours reports whether the file's header says that it is one of views.
func ours(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	id := make([]byte, len(application))
	_, err = f.ReadAt(id, applicationAt)
	return err == nil && string(id) == application
}

// rebuild replaces a file that was found damaged by an empty one.
func (s *Store) rebuild(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.disconnect()
	s.known.Purge()
	if s.file != "" {
		if err := s.remove(); err != nil {
			return err
		}
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	s.damaged.Store(false)
	return nil
}

// seen notes an error that says that the file is damaged, and returns it.
func (s *Store) seen(err error) error {
	if damaged(err) {
		s.damaged.Store(true)
	}
	return err
}

func (s *Store) disconnect() error {
	var errs []error
	for _, c := range []*conn{s.read, s.write} {
		if c != nil {
			errs = append(errs, c.db.Close())
		}
	}
	return errors.Join(errs...)
}

// Close closes the store. No other method may be in use.
func (s *Store) Close() error {
	err := s.disconnect()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	if s.temporary && s.file != "" {
		err = errors.Join(err, os.RemoveAll(filepath.Dir(s.file)))
	}
	return err
}
