// Package blobs stores objects in a place that a URL names: a folder (`file:PATH`) or a bucket of an
// S3-compatible server (`s3://BUCKET/PREFIX`).
//
// An object is stored entirely or not at all, also if the process or the machine dies, and is durable
// once the call returns. Reads and writes need a few megabytes of memory, whatever the object's size.
// Keys are relative paths with slashes. A store is safe for concurrent use, also by several processes.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"strings"
	"time"
)

// Store is a place for objects.
type Store interface {
	// Put stores an object, and replaces the one of that key.
	Put(ctx context.Context, key string, r io.Reader) error
	// PutIf stores an object if the one of that key still has the version; empty: if there is none.
	// Else it returns ErrChanged.
	PutIf(ctx context.Context, key string, data []byte, version string) error
	// Get reads an object, or ErrNotExist. The caller closes it.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Range reads length bytes of an object from an offset on, or ErrNotExist. An object that is
	// shorter is io.ErrUnexpectedEOF.
	Range(ctx context.Context, key string, offset, length int64) ([]byte, error)
	// Stat returns what is known of an object, or ErrNotExist.
	Stat(ctx context.Context, key string) (Info, error)
	// List yields the objects whose keys begin with the prefix, in the order of their keys. Their
	// versions are empty.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes an object; that it is gone already is no error.
	Delete(ctx context.Context, key string) error
	// String returns the URL.
	String() string
}

// Info is what is known of an object. Version changes with its contents.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
	Version  string
}

var (
	// ErrNotExist says that there is no object of that key.
	ErrNotExist = fs.ErrNotExist
	// ErrChanged says that somebody else stored or removed the object meanwhile.
	ErrChanged = errors.New("somebody else changed it meanwhile")
	// ErrNoAnswer says that a server gave no answer, or only a part of one.
	ErrNoAnswer = errors.New("no answer")
)

// Open returns the store that a URL names. It reads and writes nothing: whether the place can be
// reached shows with the first call. The keys of an S3 server come from the environment.
func Open(place string) (Store, error) {
	scheme, rest, _ := strings.Cut(place, ":")
	switch {
	case scheme == "file" && strings.HasPrefix(rest, "//") && !strings.HasPrefix(rest, "///"):
		return nil, fmt.Errorf("%q: a file URL has no host: write file:PATH", place)
	case scheme == "file" && strings.TrimPrefix(rest, "//") != "":
		return NewFolder(strings.TrimPrefix(rest, "//")), nil
	case scheme == "s3":
		u, err := url.Parse(place)
		if err != nil {
			return nil, err
		}
		return newBucket(u)
	}
	return nil, fmt.Errorf("%q is not a place for objects: write file:PATH or s3://BUCKET/PREFIX", place)
}

// At returns the store that a URL names, or that in the folder of a path.
func At(place string) (Store, error) {
	if strings.HasPrefix(place, "file:") || strings.HasPrefix(place, "s3:") {
		return Open(place)
	}
	return NewFolder(place), nil
}

// ReaderAt reads an object at any place, half a megabyte at least at a time. It must not be used
// concurrently.
func ReaderAt(ctx context.Context, s Store, key string, size int64) io.ReaderAt {
	return &window{ctx: ctx, store: s, key: key, size: size}
}

// window has what was read last.
type window struct {
	ctx    context.Context
	store  Store
	key    string
	size   int64
	offset int64
	data   []byte
}

func (w *window) ReadAt(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		at := offset + int64(n)
		if at >= w.size {
			return n, io.EOF
		}
		if at < w.offset || at >= w.offset+int64(len(w.data)) {
			data, err := w.store.Range(w.ctx, w.key, at, min(max(int64(len(p)-n), 512<<10), w.size-at))
			if err != nil {
				return n, err
			}
			w.offset, w.data = at, data
		}
		n += copy(p[n:], w.data[at-w.offset:])
	}
	return n, nil
}

// ReadAll returns an object of moderate size.
func ReadAll(ctx context.Context, s Store, key string) ([]byte, error) {
	r, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// Write stores what write writes. If that fails nothing is stored.
func Write(ctx context.Context, s Store, key string, write func(io.Writer) error) error {
	r, w := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(w)
		_ = w.CloseWithError(err) // always nil
		wrote <- err
	}()
	err := s.Put(ctx, key, r)
	_ = r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends a writer whose object was not stored
	if failed := <-wrote; failed != nil && err == nil {
		return failed
	}
	return err
}

// checkKey returns why a text is no key.
func checkKey(key string) error {
	if !fs.ValidPath(key) || key == "." || strings.ContainsAny(key, "\\\x00") {
		return fmt.Errorf("%q is no key of an object", key)
	}
	return nil
}
