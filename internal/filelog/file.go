package filelog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TornError says that the last line of a file is not whole.
type TornError struct {
	Path string
	// Line is its number, from 1.
	Line int
	// Offset is where it begins, and Bytes how long it is.
	Offset, Bytes int64
}

// Error says what and where.
func (e *TornError) Error() string {
	return fmt.Sprintf("%s:%d: the last line is torn (%d bytes), as after a crash in the middle of writing; it is left out", e.Path, e.Line, e.Bytes)
}

// File is a journal in a file that is read. It is safe for concurrent use.
type File struct {
	path string
	file *os.File

	mu     sync.Mutex
	shards int
	// end is where the next line begins, lines how many there are.
	end   int64
	lines int
	// open says that the last line has no newline yet.
	open  bool
	torn  *TornError
	index map[int][]place
	runs  map[events.Run][]place
	order []events.Run
	// blobs are the large results by digest.
	blobs map[string]place
}

// place is where a record lies in the file.
type place struct {
	seq     uint64
	subject string
	offset  int64
	size    int
	line    int
}

// Open opens a file to be read. It fails on a line that is no record, with the
// line's number. The number of shards is the smallest with which every run lies
// in its own.
func Open(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("event file: %w", err)
	}
	f := &File{path: path, file: file, index: make(map[int][]place), runs: make(map[events.Run][]place), blobs: make(map[string]place)}
	if err := f.load(true); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.shards = f.guessShards()
	return f, nil
}

// guessShards finds the number of shards with which every run is in its own.
func (f *File) guessShards() int {
	const tries = 1024
	highest := 0
	for shard := range f.index {
		highest = max(highest, shard)
	}
	for n := highest + 1; n <= highest+tries; n++ {
		if !slices.ContainsFunc(f.order, func(r events.Run) bool { return events.ShardOf(r.ID, n) != r.Shard }) {
			return n
		}
	}
	return highest + 1
}

// Close closes the file.
func (f *File) Close() error {
	if err := f.file.Close(); err != nil {
		return fmt.Errorf("event file: %w", err)
	}
	return nil
}

// Torn returns what was wrong with the last line, or nil.
func (f *File) Torn() *TornError {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.torn
}

// Runs returns the runs in the file, in the order in which they first appear.
func (f *File) Runs() []events.Run {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.order)
}

// Line returns the number of the line on which a run's record stands, from 1; 0 if
// there is no such record.
func (f *File) Line(run events.Run, seq uint64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range f.runs[run] {
		if at.seq == seq {
			return at.line
		}
	}
	return 0
}

// load reads the lines after those that are known. A last line without newline
// is looked at only if whole is set; later it may just be in the making.
func (f *File) load(whole bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f.file, f.end, 1<<62), 1<<16)
	for {
		text, err := readLine(r)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s:%d: %w", f.path, f.lines+1, err)
		}
		last := errors.Is(err, io.EOF)
		if len(text) == 0 || last && !whole {
			break
		}
		if f.open {
			// The newline of a line that was whole without it.
			if len(bytes.TrimSpace(text)) > 0 {
				return fmt.Errorf("%s:%d: something was written behind the record", f.path, f.lines)
			}
			f.open = false
			f.end += int64(len(text))
			continue
		}
		if err := f.loadLine(text, last); err != nil {
			return err
		}
		if last {
			break
		}
	}
	return nil
}

func (f *File) loadLine(text []byte, last bool) error {
	number := f.lines + 1
	at := place{offset: f.end, size: len(text), line: number}
	object := isObject(text)
	var err error
	if object {
		err = f.loadObject(text, at)
	} else {
		var rec journal.Record
		rec, err = recordline.Parse(text)
		at.seq, at.subject = rec.Seq, rec.Subject
	}
	if err != nil && last {
		f.torn = &TornError{Path: f.path, Line: number, Offset: f.end, Bytes: int64(len(text))}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s:%d: not a record: %w", f.path, number, err)
	}
	if !object {
		if err := f.add(at); err != nil {
			return err
		}
	}
	f.lines, f.end, f.open = number, f.end+int64(len(text)), last
	return nil
}

// loadObject puts a large result into the index.
func (f *File) loadObject(text []byte, at place) error {
	o, err := parseObject(text)
	if err == nil {
		f.blobs[o.Blob.SHA256] = at
	}
	return err
}

// add puts a record into the index. Slices that readers may hold are not changed
// but replaced, unless the record comes last.
func (f *File) add(at place) error {
	shard := shardOf(at.subject)
	sorted, ok := insert(f.index[shard], at)
	if !ok {
		return fmt.Errorf("%s:%d: sequence number %d occurs twice in shard %d", f.path, at.line, at.seq, shard)
	}
	f.index[shard] = sorted
	subject, err := events.ParseSubject(at.subject)
	if err != nil {
		return nil // It belongs to no run; a scan shows it.
	}
	if f.runs[subject.Run] == nil {
		f.order = append(f.order, subject.Run)
	}
	f.runs[subject.Run], _ = insert(f.runs[subject.Run], at)
	return nil
}

func insert(places []place, at place) ([]place, bool) {
	if n := len(places); n == 0 || places[n-1].seq < at.seq {
		return append(places, at), true
	}
	i, found := slices.BinarySearchFunc(places, at, func(a, b place) int {
		if a.seq < b.seq {
			return -1
		}
		if a.seq > b.seq {
			return 1
		}
		return 0
	})
	if found {
		return places, false
	}
	return slices.Insert(slices.Clone(places), i, at), true
}

// shardOf reads the shard from a subject; one that has none counts as shard 0.
func shardOf(subject string) int {
	_, rest, _ := strings.Cut(subject, ".")
	token, _, _ := strings.Cut(rest, ".")
	shard, err := strconv.Atoi(token)
	if err != nil || shard < 0 {
		return 0
	}
	return shard
}
