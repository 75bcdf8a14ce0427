package backup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/s2"

	"github.com/moorebus/moorebus/internal/blobs"
)

// blockBytes is how much is packed at once, and unpacked to read one record.
const blockBytes = 256 << 10

// writeFile writes a file that is there as a whole or not at all. What was under that name is replaced.
func writeFile(ctx context.Context, to blobs.Store, path string, write func(io.Writer) error) (File, error) {
	counted := &counter{digest: sha256.New()}
	err := blobs.Write(ctx, to, path, func(w io.Writer) error { return write(io.MultiWriter(w, counted)) })
	if err != nil {
		return File{}, fmt.Errorf("write the backup, of which the last complete one is as it was: %w", err)
	}
	return File{Path: path, Bytes: counted.bytes, SHA256: hex.EncodeToString(counted.digest.Sum(nil))}, nil
}

func writeAll(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

type counter struct {
	digest interface {
		io.Writer
		Sum(b []byte) []byte
	}
	bytes int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return c.digest.Write(p)
}

// writeLines writes a packed file of lines. lines calls put for each of them.
func writeLines(ctx context.Context, to blobs.Store, path string, lines func(put func(line []byte) error) error) (File, error) {
	n := 0
	f, err := writeFile(ctx, to, path, func(w io.Writer) error {
		var zip *s2.Writer // made for the first line: the index of nothing cannot be read
		err := lines(func(line []byte) error {
			if zip == nil {
				zip = s2.NewWriter(w, s2.WriterBlockSize(blockBytes), s2.WriterAddIndex())
			}
			n++
			_, err := zip.Write(line)
			return err
		})
		if zip == nil {
			return err
		}
		return errors.Join(err, zip.Close())
	})
	f.Lines = n
	return f, err
}

// readLines calls take for each line of a packed file with its offset in the unpacked file, and holds the file
// to its checksum meanwhile: what take got counts only if there is no error. The line is valid until take returns.
func readLines(ctx context.Context, from blobs.Store, f File, take func(offset int64, line []byte) error) error {
	file, err := open(ctx, from, f)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	counted := &counter{digest: sha256.New()}
	packed := io.TeeReader(file, counted)
	r := bufio.NewReaderSize(s2.NewReader(packed), 1<<20)
	var long []byte
	offset, lines := int64(0), 0
	for {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, part...)
			continue
		}
		if errors.Is(err, io.EOF) && len(part)+len(long) == 0 {
			break
		}
		if err != nil {
			return unreadable(f, err)
		}
		if len(long) > 0 {
			long = append(long, part...)
			part = long
		}
		if err := take(offset, part); err != nil {
			return fmt.Errorf("%s, line %d: %w", f.Path, lines+1, err)
		}
		offset, lines, long = offset+int64(len(part)), lines+1, long[:0]
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return unreadable(f, err)
	}
	if lines != f.Lines {
		return fmt.Errorf("%s: %w: it has %d lines and should have %d", f.Path, ErrDamaged, lines, f.Lines)
	}
	return counted.check(f)
}

// check holds a file to its size and checksum.
func check(ctx context.Context, from blobs.Store, f File) error {
	file, err := open(ctx, from, f)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	counted := &counter{digest: sha256.New()}
	if _, err := io.Copy(counted, file); err != nil {
		return unreadable(f, err)
	}
	return counted.check(f)
}

func open(ctx context.Context, from blobs.Store, f File) (io.ReadCloser, error) {
	file, err := from.Get(ctx, f.Path)
	if errors.Is(err, blobs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: the file is missing", f.Path, ErrDamaged)
	}
	return file, err
}

// check holds what was read to the size and checksum of a file.
func (c *counter) check(f File) error {
	if got := hex.EncodeToString(c.digest.Sum(nil)); c.bytes != f.Bytes || got != f.SHA256 {
		return fmt.Errorf("%s: %w: it has %d bytes with SHA-256 %s, and should have %d with %s", f.Path, ErrDamaged, c.bytes, got, f.Bytes, f.SHA256)
	}
	return nil
}

// unreadable returns the error of a file of which only a part could be read. A server that does not answer
// has damaged nothing.
func unreadable(f File, err error) error {
	if errors.Is(err, blobs.ErrNoAnswer) {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return fmt.Errorf("%s: %w: %w", f.Path, ErrDamaged, err)
}

func objectPath(digest string) string { return path.Join(objectFolder, digest[:2], digest) }

// isDigest reports whether a name is that of an object, so that it can be that of a file.
func isDigest(name string) bool {
	return len(name) == len(noSum) && strings.Trim(name, "0123456789abcdef") == ""
}

// objectThere reports whether an object is there and undamaged.
func objectThere(ctx context.Context, in blobs.Store, digest string) bool {
	_, err := readObject(ctx, in, digest)
	return err == nil
}

// readObject returns an object, held to its name.
func readObject(ctx context.Context, from blobs.Store, digest string) ([]byte, error) {
	data, err := blobs.ReadAll(ctx, from, objectPath(digest))
	switch {
	case errors.Is(err, blobs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w: the file is missing", objectPath(digest), ErrDamaged)
	case err == nil && sum(data) != digest:
		return nil, fmt.Errorf("%s: %w: its SHA-256 is not its name", objectPath(digest), ErrDamaged)
	}
	return data, err
}
