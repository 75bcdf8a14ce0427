package filelog

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Writer writes records and large results as lines. It is for one goroutine.
type Writer struct {
	out *bufio.Writer
	buf []byte
}

// NewWriter returns a writer to w. What it wrote is in w after [Writer.Flush].
func NewWriter(w io.Writer) *Writer { return &Writer{out: bufio.NewWriterSize(w, 1<<16)} }

// Record writes a record's line.
func (w *Writer) Record(rec journal.Record) (err error) {
	if w.buf, err = recordline.Append(w.buf[:0], rec); err == nil {
		_, err = w.out.Write(w.buf)
	}
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// Blob writes the line of a large result.
func (w *Writer) Blob(ref events.Ref, data []byte) error {
	text, err := json.Marshal(object{Blob: ref, Data: data})
	if err == nil {
		_, err = w.out.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// Flush writes what is still held back.
func (w *Writer) Flush() error {
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

// Write writes the records as lines and returns the first error, of the records
// or of the writer.
func Write(to io.Writer, records iter.Seq2[journal.Record, error]) error {
	w := NewWriter(to)
	for rec, err := range records {
		if err == nil {
			err = w.Record(rec)
		}
		if err != nil {
			// What was complete before the error is worth having.
			return errors.Join(err, w.Flush())
		}
	}
	return w.Flush()
}

// WriteFile makes a file of what write writes. The file has its name only when it
// is complete and on the disk; one that was there is replaced then. What is there
// and no file, such as a pipe or a device, is written to as it is.
func WriteFile(path string, write func(*Writer) error) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return writeInto(path, write)
	}
	return writeBeside(path, write, os.Rename)
}

// NewFile is WriteFile for a file that must not replace anything: where there is
// something of that name, before or when the file is complete, the error is
// [fs.ErrExist], and what was there stays as it was.
func NewFile(path string, write func(*Writer) error) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("event file: %s: %w", path, fs.ErrExist)
	}
	return writeBeside(path, write, link)
}

// link gives a file a name that no other one has. Where there are no links the
// name is taken by an empty file first.
func link(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		return os.Remove(from)
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	taken, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(taken.Close(), os.Rename(from, to))
}

// writeInto writes to what has the name already.
func writeInto(path string, write func(*Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("event file: %w", err)
	}
	w := NewWriter(f)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	return errors.Join(err, f.Close())
}

// writeBeside writes a file of another name in the same directory, and has it
// named when it is on the disk.
func writeBeside(path string, write func(*Writer) error, name func(from, to string) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return fmt.Errorf("event file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	w := NewWriter(f)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = name(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir puts a directory's names on the disk, where the system can do that.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	// Some systems cannot sync a directory, and need not.
	_ = dir.Sync()
	return dir.Close()
}
