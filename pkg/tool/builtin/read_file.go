package builtin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

const readFileSchema = `{"type":"object","properties":{` +
	`"path":{"type":"string","description":"Path of the file, relative to the shared folder","minLength":1},` +
	`"offset":{"type":"integer","minimum":0,"description":"First byte to read, from 0"},` +
	`"limit":{"type":"integer","minimum":1,"description":"Number of bytes to read at most"}},` +
	`"required":["path"],"additionalProperties":false}`

// readFile reads text files below one folder.
type readFile struct {
	def  tool.Definition
	root string
	max  int64
}

func newReadFile(opts Options) (*readFile, error) {
	if opts.Root == "" {
		return nil, errors.New("read_file needs a folder to read from: set its root")
	}
	// An absolute path: a later change of the working folder must not move it.
	root, err := filepath.Abs(opts.Root)
	if err != nil {
		return nil, fmt.Errorf("read_file: root: %w", err)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("read_file: root: %w", err)
	}
	if err := r.Close(); err != nil {
		return nil, fmt.Errorf("read_file: root: %w", err)
	}
	return &readFile{
		def: definition(readFileName, "Reads a text file from the shared folder. Long files come in parts: "+
			"a note at the end says where to go on.", readFileSchema),
		root: root, max: opts.MaxBytes,
	}, nil
}

func (r *readFile) Definition() tool.Definition { return r.def }

type readFileInput struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Limit  *int64 `json:"limit"`
}

// Run takes {"path", "offset"?, "limit"?}, the latter in bytes, and returns the
// text. What leaves the folder, by name or by symbolic link, is refused.
func (r *readFile) Run(ctx context.Context, call tool.Call) (string, error) {
	var in readFileInput
	if err := decode(call.Arguments, &in); err != nil {
		return "", err
	}
	limit, err := r.check(in)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return "", tool.Failf(tool.CodeFailed, "the shared folder cannot be opened")
	}
	defer root.Close()
	// Non-blocking, so that a named pipe cannot hold the call up.
	file, err := root.OpenFile(in.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", openFailure(in.Path, err)
	}
	defer file.Close()
	return r.read(file, in, limit)
}

func (r *readFile) check(in readFileInput) (int64, error) {
	limit := r.max
	switch {
	case in.Path == "":
		return 0, invalid("path is missing")
	case filepath.IsAbs(in.Path):
		return 0, invalid("%q is an absolute path; give a path relative to the shared folder", in.Path)
	case !filepath.IsLocal(in.Path):
		return 0, invalid("%q leads out of the shared folder", in.Path)
	case in.Offset < 0:
		return 0, invalid("offset must not be negative")
	case in.Limit != nil && *in.Limit < 1:
		return 0, invalid("limit must be at least 1")
	case in.Limit != nil:
		limit = min(limit, *in.Limit)
	}
	return limit, nil
}

// openFailure is the classifier of os.Root's errors.
func openFailure(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return tool.Failf(tool.CodeFailed, "there is no file %q in the shared folder", path)
	case errors.Is(err, fs.ErrPermission):
		return tool.Failf(tool.CodeFailed, "no permission to read %q", path)
	}
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return tool.Failf(tool.CodeFailed, "%q cannot be read: %v", path, err)
}

func (r *readFile) read(file *os.File, in readFileInput, limit int64) (string, error) {
	info, err := file.Stat()
	if err != nil {
		return "", openFailure(in.Path, err)
	}
	if !info.Mode().IsRegular() {
		return "", tool.Failf(tool.CodeFailed, "%q is not a regular file (%s)", in.Path, info.Mode().Type())
	}
	if in.Offset > info.Size() {
		return "", invalid("offset %d is beyond the end of %q, which has %d bytes", in.Offset, in.Path, info.Size())
	}
	// One byte more than is asked for, so that no character is cut in two.
	data, err := io.ReadAll(io.NewSectionReader(file, in.Offset, limit+1))
	if err != nil {
		return "", openFailure(in.Path, err)
	}
	if looksBinary(data) {
		return "", tool.Failf(tool.CodeFailed, "%q is not a text file", in.Path)
	}
	if int64(len(data)) <= limit {
		return string(data), nil
	}
	text := truncate.Prefix(string(data), limit)
	if text == "" {
		text = string(data[:limit]) // a limit below one character: go on all the same
	}
	return fmt.Sprintf("%s\n[moorebus: output cut at %d bytes of %d; go on with offset %d]",
		text, len(text), info.Size(), in.Offset+int64(len(text))), nil
}
