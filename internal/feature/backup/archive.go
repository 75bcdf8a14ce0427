package backup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Archive is a backup that is read, as a log. It holds about 16 bytes for each record and 200
// for each run, and is safe for concurrent use. It cannot be appended to or followed.
type Archive struct {
	from     blobs.Store
	manifest *Manifest
	until    time.Time
	// buckets are those of the increment that counts.
	buckets []Bucket
	refs    []events.Ref
	// files are those of the log, shards the numbers of each shard's.
	files  []File
	shards [][]int

	runs  map[events.Run]*entry
	order []events.Run
	// gone counts the runs that are left out since they were removed from the log.
	gone   int
	blocks blocks
}

// entry is where a run's records lie.
type entry struct {
	places []place
	// first is the hash of the first body: a run that was removed and imported again is
	// there twice, and its later records count.
	first uint64
	// all counts its records, those after the time too.
	all uint64
	// awake says that one of them woke somebody: else it may be there for its forks alone, and
	// have a tombstone all the same.
	awake bool
}

// place is where a line lies: the file's number, and offset and size in the unpacked file.
type place struct{ file, offset, size uint32 }

// purgedBucket is the bucket of tombstones.
const purgedBucket = "KV_purged"

// errReadOnly says that a backup is no log to write to.
var errReadOnly = errors.New("a backup can only be read")

// Open reads a backup, whose place is a path or a URL, and holds every file, line and object to its checksum. What is wrong is
// ErrDamaged and names the files, as far as it is known by then. Records that the log took after
// the time are left out, unless that is zero; values are those of the last increment that was
// complete by then, or of the first one.
func Open(ctx context.Context, dir string, until time.Time) (*Archive, error) {
	from, err := blobs.At(dir)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(ctx, from)
	if err != nil {
		return nil, err
	}
	if len(m.Increments) == 0 {
		return nil, fmt.Errorf("%s has no complete backup: the first one was cut off", dir)
	}
	a := &Archive{from: from, manifest: m, until: until, shards: make([][]int, m.Shards), runs: map[events.Run]*entry{}}
	a.blocks.from = from
	var errs []error
	for _, f := range m.files() {
		if err := cmp.Or(ctx.Err(), check(ctx, from, f)); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	a.buckets = m.Increments[0].Buckets
	for _, inc := range m.Increments {
		if until.IsZero() || !inc.Finished.After(until) {
			a.buckets = inc.Buckets
		}
	}
	for _, read := range []func(context.Context) error{a.index, a.checkObjects, a.leaveOut} {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// index finds where the records of each run lie.
func (a *Archive) index(ctx context.Context) error {
	seed := maphash.MakeSeed()
	ended := make([]bool, a.manifest.Shards)
	for _, inc := range a.manifest.Increments {
		for shard, parts := range inc.Log {
			for _, f := range parts {
				number := len(a.files)
				a.files = append(a.files, f)
				a.shards[shard] = append(a.shards[shard], number)
				err := readLines(ctx, a.from, f, func(offset int64, line []byte) error {
					rec, err := recordline.Parse(line)
					if err != nil || ctx.Err() != nil {
						return cmp.Or(ctx.Err(), err)
					}
					ended[shard] = ended[shard] || !a.until.IsZero() && rec.Stored.After(a.until)
					a.add(rec, place{uint32(number), uint32(offset), uint32(len(line))}, !ended[shard], maphash.Bytes(seed, rec.Body))
					return nil
				})
				if err != nil {
					return err
				}
			}
		}
	}
	a.blocks.files = a.files
	return nil
}

func (a *Archive) add(rec journal.Record, at place, counts bool, hash uint64) {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil || s.CheckShard(a.manifest.Shards) != nil {
		return // it belongs to no run
	}
	e := a.runs[s.Run]
	if e == nil {
		e = &entry{first: hash}
		a.runs[s.Run] = e
		a.order = append(a.order, s.Run)
	} else if e.first == hash {
		e.places, e.all, e.awake = nil, 0, false
	}
	e.all++
	e.awake = e.awake || s.To != events.Nobody
	if counts {
		e.places = append(e.places, at)
	}
}

// checkObjects holds the objects to their names.
func (a *Archive) checkObjects(ctx context.Context) (err error) {
	if a.refs, err = a.manifest.objects(ctx, a.from); err != nil {
		return err
	}
	slices.SortFunc(a.refs, func(x, y events.Ref) int {
		return cmp.Or(cmp.Compare(x.SHA256, y.SHA256), cmp.Compare(x.Bucket, y.Bucket))
	})
	a.refs = slices.Compact(a.refs) // one that was stored again is there twice
	var errs []error
	for _, ref := range a.refs {
		if _, err := readObject(ctx, a.from, ref.SHA256); err != nil || ctx.Err() != nil {
			errs = append(errs, cmp.Or(ctx.Err(), err))
		}
	}
	return errors.Join(errs...)
}

// leaveOut drops runs without records, and those that were removed from the log: they have a
// tombstone, and some of their records may have gone while they were read.
func (a *Archive) leaveOut(ctx context.Context) error {
	drop := func(bucket Bucket, when func(e *entry, stone tombstones.Tombstone) bool) error {
		if bucket.Name != purgedBucket || bucket.File == nil {
			return nil
		}
		return a.values(ctx, bucket, func(v ports.Value) error {
			var stone tombstones.Tombstone
			if json.Unmarshal(v.Data, &stone) != nil {
				return nil
			}
			run := events.NewRun(stone.Namespace, stone.Run, a.manifest.Shards)
			if e := a.runs[run]; e != nil && e.awake && when(e, stone) {
				a.gone++
				delete(a.runs, run)
			}
			return nil
		})
	}
	for _, b := range a.buckets {
		if err := drop(b, func(*entry, tombstones.Tombstone) bool { return true }); err != nil {
			return err
		}
	}
	for _, inc := range a.manifest.Increments {
		for _, b := range inc.Buckets {
			if err := drop(b, func(e *entry, stone tombstones.Tombstone) bool { return e.all < stone.Events }); err != nil {
				return err
			}
		}
	}
	a.order = slices.DeleteFunc(a.order, func(run events.Run) bool { return a.runs[run] == nil || len(a.runs[run].places) == 0 })
	return nil
}

// values calls take for each value of a bucket.
func (a *Archive) values(ctx context.Context, b Bucket, take func(ports.Value) error) error {
	return readLines(ctx, a.from, *b.File, func(_ int64, line []byte) error {
		var v ports.Value
		if err := codec.Strict(line, &v); err != nil {
			return err
		}
		return take(v)
	})
}

// Runs returns the runs, in the order in which they began in their shards.
func (a *Archive) Runs() []events.Run { return a.order }

// Shards returns the number of shards of the log that was backed up.
func (a *Archive) Shards() int { return a.manifest.Shards }

// Read yields a run's records.
func (a *Archive) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		e := a.runs[run]
		if e == nil {
			return
		}
		for _, at := range e.places {
			rec, err := a.record(at)
			if err = cmp.Or(ctx.Err(), err); err == nil && rec.Seq <= after {
				continue
			}
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// size returns how many bytes the lines of a run have.
func (a *Archive) size(run events.Run) (bytes int64) {
	if e := a.runs[run]; e != nil {
		for _, at := range e.places {
			bytes += int64(at.size)
		}
	}
	return bytes
}

func (a *Archive) record(at place) (journal.Record, error) {
	line, err := a.blocks.line(at)
	if err != nil {
		return journal.Record{}, fmt.Errorf("%s: %w", a.files[at.file].Path, err)
	}
	return recordline.Parse(line)
}

// Head returns a run's last record.
func (a *Archive) Head(_ context.Context, run events.Run) (journal.Record, error) {
	e := a.runs[run]
	if e == nil || len(e.places) == 0 {
		return journal.Record{}, journal.ErrNotFound
	}
	return a.record(e.places[len(e.places)-1])
}

// Scan yields a shard's records of runs.
func (a *Archive) Scan(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		for _, number := range a.shards[shard] {
			err := readLines(ctx, a.from, a.files[number], func(offset int64, line []byte) error {
				rec, err := recordline.Parse(line)
				if err = cmp.Or(ctx.Err(), err); err != nil {
					return err
				}
				if rec.Seq <= after || !filter.Match(rec.Subject) || !a.counts(rec, place{uint32(number), uint32(offset), uint32(len(line))}) {
					return nil
				}
				if !yield(rec, nil) {
					return errStop
				}
				return nil
			})
			if errors.Is(err, errStop) {
				return
			}
			if err != nil {
				yield(journal.Record{}, err)
				return
			}
		}
	}
}

var errStop = errors.New("stop")

// counts reports whether a record is one of its run's.
func (a *Archive) counts(rec journal.Record, at place) bool {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil || a.runs[s.Run] == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(a.runs[s.Run].places, at, func(x, y place) int {
		return cmp.Or(cmp.Compare(x.file, y.file), cmp.Compare(x.offset, y.offset))
	})
	return found
}

// Last returns where a shard ended.
func (a *Archive) Last(_ context.Context, shard int) (uint64, error) {
	return a.manifest.last().Cuts[shard], nil
}

// Append refuses.
func (a *Archive) Append(context.Context, events.Run, uint64, ...journal.Entry) (uint64, error) {
	return 0, errReadOnly
}

// MaxBody returns the largest body of an event that a bus takes.
func (a *Archive) MaxBody() int { return journal.MaxBody }

// Newest refuses.
func (a *Archive) Newest(context.Context, int, journal.Filter) (journal.Record, error) {
	return journal.Record{}, errReadOnly
}

// Follow refuses.
func (a *Archive) Follow(context.Context, int, journal.Filter, uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) { yield(journal.Record{}, errReadOnly) }
}

// PutBlob refuses.
func (a *Archive) PutBlob(context.Context, string, []byte) (events.Ref, error) {
	return events.Ref{}, errReadOnly
}

// Blob returns nothing: [Restore] stores all objects before it imports runs.
func (a *Archive) Blob(context.Context, events.Ref) ([]byte, error) {
	return nil, journal.ErrNotFound
}

// objects returns the references to all objects.
func (m *Manifest) objects(ctx context.Context, from blobs.Store) (all []events.Ref, err error) {
	for _, inc := range m.Increments {
		for _, b := range inc.Buckets {
			if !b.Objects || b.File == nil {
				continue
			}
			err := readLines(ctx, from, *b.File, func(_ int64, line []byte) error {
				var ref events.Ref
				if err := codec.Strict(line, &ref); err != nil || !isDigest(ref.SHA256) {
					return cmp.Or(err, ErrDamaged)
				}
				all = append(all, ref)
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

const (
	// keptBlocks and keptFiles bound what is unpacked and open at a time.
	keptBlocks = 256
	keptFiles  = 16
)

// blocks reads lines anywhere in packed files. It keeps what it read last, since runs that were
// at work at the same time are read one after another.
type blocks struct {
	from  blobs.Store
	files []File

	mu    sync.Mutex
	open  []openFile
	cache map[block][]byte
	order []block
}

type block struct{ file, number uint32 }

type openFile struct {
	number uint32
	reader *s2.ReadSeeker
}

// line returns the line at a place.
func (b *blocks) line(at place) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := make([]byte, 0, at.size)
	for offset := at.offset; len(line) < int(at.size); {
		data, err := b.block(block{at.file, offset / blockBytes})
		if err != nil {
			return nil, err
		}
		from := int(offset % blockBytes)
		if from >= len(data) {
			return nil, io.ErrUnexpectedEOF
		}
		n := min(len(data)-from, int(at.size)-len(line))
		line = append(line, data[from:from+n]...)
		offset += uint32(n)
	}
	return line, nil
}

func (b *blocks) block(at block) ([]byte, error) {
	if data, ok := b.cache[at]; ok {
		return data, nil
	}
	reader, err := b.reader(at.file)
	if err != nil {
		return nil, err
	}
	data := make([]byte, blockBytes)
	n, err := reader.ReadAt(data, int64(at.number)*blockBytes)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if b.cache == nil {
		b.cache = map[block][]byte{}
	}
	if len(b.order) == keptBlocks {
		delete(b.cache, b.order[0])
		b.order = b.order[1:]
	}
	b.cache[at], b.order = data[:n], append(b.order, at)
	return data[:n], nil
}

func (b *blocks) reader(number uint32) (*s2.ReadSeeker, error) {
	for _, f := range b.open {
		if f.number == number {
			return f.reader, nil
		}
	}
	f := b.files[number] // the blocks of a run are read with whatever context comes later
	at := blobs.ReaderAt(context.Background(), b.from, f.Path, f.Bytes)
	reader, err := s2.NewReader(io.NewSectionReader(at, 0, f.Bytes)).ReadSeeker(true, nil)
	if err != nil {
		return nil, err
	}
	if len(b.open) == keptFiles {
		b.open = b.open[1:]
	}
	b.open = append(b.open, openFile{number, reader})
	return reader, nil
}
