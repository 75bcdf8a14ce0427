package backup

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Bus is what is backed up.
type Bus interface {
	journal.Log
	journal.Blobs
	kv.Store
	ports.Archive
}

// Options say how a backup is taken.
type Options struct {
	// Incremental adds to the backup that is there; else it is replaced once the new one is
	// complete. Without a backup it makes no difference.
	Incremental bool
	// Build names the build in the manifest.
	Build string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Taken says what a backup has added. Bytes are those of its files.
type Taken struct {
	Number  int           `json:"number"`
	Full    bool          `json:"full"`
	Records int           `json:"records"`
	Values  int           `json:"values"`
	Objects int           `json:"objects"`
	Bytes   int64         `json:"bytes"`
	Missing int           `json:"missing_objects"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

const (
	// partBytes is how long a file of records becomes before the next one begins, unpacked.
	partBytes = 64 << 20
	// fetchers is how many objects are read at once.
	fetchers = 8
)

// Take backs up the bus into the directory, which is made if it is not there, or to what a URL names. A
// directory that has other files than a backup's is refused, and so is the backup of another log. What an
// earlier call that was cut off has left is removed. If nothing is new since the last
// increment, the directory stays as it is, and what is returned has that one's number.
func Take(ctx context.Context, bus Bus, dir string, o Options) (Taken, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	began := o.Now().UTC()
	to, err := blobs.At(dir)
	if err != nil {
		return Taken{}, err
	}
	t := &taker{bus: bus, to: to}
	unlock, err := t.lock(ctx)
	if err != nil {
		return Taken{}, err
	}
	defer unlock()
	if err := t.open(ctx); err != nil {
		return Taken{}, err
	}
	t.before = t.manifest.last()
	number := t.before.Number + 1
	if !o.Incremental {
		t.before = Increment{Cuts: make([]uint64, bus.Shards())}
	}
	t.inc = Increment{Number: number, Build: o.Build, Began: began}
	t.done = Taken{Number: number, Full: len(t.before.Log) == 0}
	for _, read := range []func(context.Context) error{t.log, t.buckets} {
		if err := read(ctx); err != nil {
			return Taken{}, err
		}
	}
	t.inc.Finished = o.Now().UTC()
	if t.nothingNew() {
		t.done.Number, t.done.Elapsed = t.before.Number, o.Now().Sub(began)
		return t.done, nil
	}
	if !o.Incremental {
		if t.replaced, err = t.known(ctx); err != nil {
			t.replaced = nil // a damaged list: what it names goes in a week
		}
		t.manifest.Increments = nil
	}
	t.manifest.Increments = append(t.manifest.Increments, t.inc)
	if err := t.manifest.write(ctx, t.to); err != nil {
		return Taken{}, err
	}
	t.done.Elapsed = o.Now().Sub(began)
	return t.done, t.clean(ctx, true)
}

// nothingNew reports whether the increment before says all that this one would. The manifest
// would grow with it, however idle the bus is.
func (t *taker) nothingNew() bool {
	return t.before.Number > 0 && !t.wrote && slices.Equal(t.before.Cuts, t.inc.Cuts) && len(t.before.Buckets) == len(t.inc.Buckets)
}

// taker is one call of Take.
type taker struct {
	bus      Bus
	to       blobs.Store
	manifest *Manifest
	// before is what this increment stands on, inc what it becomes.
	before, inc Increment
	// mark is in the names of files where nobody can lock the place, locked says that this process has it.
	mark   string
	locked bool
	// replaced are the files of the backup that this one replaces.
	replaced map[string]bool

	mu    sync.Mutex
	done  Taken
	wrote bool
}

// lock waits until no other process writes to a directory, which is made if it is not there.
func (t *taker) lock(ctx context.Context) (unlock func(), err error) {
	_, err = readManifest(ctx, t.to)
	if errors.Is(err, errNoBackup) {
		err = t.checkEmpty(ctx)
	}
	if err != nil {
		return nil, err
	}
	unlock, t.locked, err = blobs.Lock(t.to)
	if !t.locked {
		t.mark = "-" + rand.Text()[:8]
	}
	return unlock, err
}

// open reads the manifest, or makes one in an empty directory.
func (t *taker) open(ctx context.Context) error {
	born, err := t.bus.Born(ctx)
	if err != nil {
		return err
	}
	m, err := readManifest(ctx, t.to)
	t.manifest = m
	if errors.Is(err, errNoBackup) {
		t.manifest = &Manifest{Format: format, Version: version, ID: rand.Text(), Born: born, Shards: t.bus.Shards(), Increments: []Increment{}}
		return t.manifest.write(ctx, t.to) // so that what is cut off can be told from other people's files
	}
	if err != nil {
		return err
	}
	if !m.Born.Equal(born) || m.Shards != t.bus.Shards() {
		return fmt.Errorf("%s is the backup of another log, which was made at %s with %d shards; this one was made at %s with %d: name another directory",
			t.to, m.Born.Format(time.RFC3339), m.Shards, born.Format(time.RFC3339), t.bus.Shards())
	}
	return t.clean(ctx, false)
}

func (t *taker) checkEmpty(ctx context.Context) error {
	for info, err := range t.to.List(ctx, "") {
		if err != nil {
			return err
		}
		return fmt.Errorf("%s has other files (%s) and no %s: name an empty directory, or that of a backup", t.to, info.Key, manifestName)
	}
	return nil
}

// known returns the files that the manifest has.
func (t *taker) known(ctx context.Context) (map[string]bool, error) {
	known := map[string]bool{}
	for _, f := range t.manifest.files() {
		known[f.Path] = true
	}
	refs, err := t.manifest.objects(ctx, t.to)
	for _, ref := range refs {
		known[objectPath(ref.SHA256)] = true
	}
	return known, err
}

// abandoned is when a file in a bucket that no manifest has is surely not being written any more.
const abandoned = 7 * 24 * time.Hour

// clean removes files that the manifest does not have. Objects stay unless all is set: who begins anew finds
// them. In a bucket, other files may be those of another backup that is being taken.
func (t *taker) clean(ctx context.Context, all bool) error {
	known, err := t.known(ctx)
	if err != nil {
		return nil // a damaged list: what it names has to stay, and a verify says it
	}
	for _, folder := range []string{logFolder, bucketFolder, objectFolder} {
		if !all && folder == objectFolder {
			continue
		}
		for info, err := range t.to.List(ctx, folder+"/") {
			if err != nil {
				return err
			}
			if known[info.Key] || !t.locked && !t.replaced[info.Key] && time.Since(info.Modified) < abandoned {
				continue
			}
			if err := t.to.Delete(ctx, info.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *taker) add(f File) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done.Bytes += f.Bytes
	t.wrote = true
	return &f
}

// log reads what is new in every shard, up to where it ends now.
func (t *taker) log(ctx context.Context) error {
	t.inc.Cuts = make([]uint64, t.bus.Shards())
	t.inc.Log = make([][]File, t.bus.Shards())
	for shard := range t.inc.Cuts {
		last, err := t.bus.Last(ctx, shard)
		if err != nil {
			return err
		}
		if last < t.before.Cuts[shard] {
			return fmt.Errorf("shard %d ends at %d, and the last backup at %d: the log has lost its end; take a full backup, into another directory if you need the old one", shard, last, t.before.Cuts[shard])
		}
		t.inc.Cuts[shard] = last
	}
	for shard, cut := range t.inc.Cuts {
		if err := t.shard(ctx, shard, cut); err != nil {
			return err
		}
	}
	t.inc.Records = t.done.Records
	return nil
}

// shard reads one shard up to its cut.
func (t *taker) shard(ctx context.Context, shard int, cut uint64) error {
	after := t.before.Cuts[shard]
	for part := 1; after < cut; part++ {
		bytes := 0
		path := fmt.Sprintf("%s/%06d%s-%d-%d.jsonl.s2", logFolder, t.inc.Number, t.mark, shard, part)
		f, err := writeLines(ctx, t.to, path, func(put func([]byte) error) error {
			var line []byte
			for rec, err := range t.bus.Scan(ctx, shard, journal.Filter{}, after) {
				if err != nil {
					return err
				}
				if rec.Seq > cut {
					break
				}
				after = rec.Seq
				if line, err = recordline.AppendStored(line[:0], rec); err != nil {
					return err
				}
				if err := put(line); err != nil {
					return err
				}
				if bytes += len(line); bytes > partBytes {
					return nil
				}
			}
			after = cut
			return nil
		})
		if err != nil {
			return err
		}
		t.inc.Log[shard] = append(t.inc.Log[shard], *t.add(f))
		t.done.Records += f.Lines
	}
	return nil
}

// buckets reads all that is beside the log. It comes after the log, so that what an event
// refers to is there, and the tombstone of a run that was removed while it was read.
func (t *taker) buckets(ctx context.Context) error {
	all, err := t.bus.Buckets(ctx)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Name == "KV_"+notes.Name {
			continue
		}
		var before Bucket
		if i := slices.IndexFunc(t.before.Buckets, func(o Bucket) bool { return o.Name == b.Name }); i >= 0 {
			before = t.before.Buckets[i]
		}
		now := Bucket{ArchivedBucket: b}
		switch {
		case b.Objects:
			now.File, err = t.objects(ctx, b, before.Last)
		case before.File != nil && before.First == b.First && before.Last == b.Last && before.Messages == b.Messages:
			now.File = before.File
		default:
			now.File, err = t.values(ctx, b)
		}
		if err != nil {
			return err
		}
		t.inc.Buckets = append(t.inc.Buckets, now)
	}
	return nil
}

func (t *taker) bucketPath(name string) string {
	return fmt.Sprintf("%s/%06d%s-%s.jsonl.s2", bucketFolder, t.inc.Number, t.mark, name)
}

func (t *taker) values(ctx context.Context, b ports.ArchivedBucket) (*File, error) {
	f, err := writeLines(ctx, t.to, t.bucketPath(b.Name), func(put func([]byte) error) error {
		for v, err := range t.bus.Values(ctx, b.Name) {
			if err != nil {
				return err
			}
			if err := putJSON(put, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.done.Values += f.Lines
	return t.add(f), nil
}

// putJSON writes a value as a line.
func putJSON(put func([]byte) error, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return put(append(line, '\n'))
}

// objects reads the objects that a store got since, several at once.
func (t *taker) objects(ctx context.Context, b ports.ArchivedBucket, after uint64) (*File, error) {
	var refs []events.Ref
	for object, err := range t.bus.Objects(ctx, b.Name, after) {
		if err != nil {
			return nil, err
		}
		if isDigest(object.Ref.SHA256) { // others were put by hand, and no event refers to them
			refs = append(refs, object.Ref)
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	queue := make(chan int, len(refs))
	for i := range refs {
		queue <- i
	}
	close(queue)
	gone := make([]bool, len(refs))
	g := logwalk.NewGroup(ctx)
	for range fetchers {
		g.Go(func(ctx context.Context) error {
			for i := range queue {
				var err error
				if gone[i], err = t.object(ctx, refs[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	f, err := writeLines(ctx, t.to, t.bucketPath(b.Name), func(put func([]byte) error) error {
		for i, ref := range refs {
			if gone[i] {
				continue
			}
			if err := putJSON(put, ref); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t.add(f), nil
}

// object stores one object, and reports whether the bus does not have it any more.
func (t *taker) object(ctx context.Context, ref events.Ref) (gone bool, err error) {
	if objectThere(ctx, t.to, ref.SHA256) {
		return false, ctx.Err()
	}
	data, err := t.bus.Blob(ctx, ref)
	if errors.Is(err, journal.ErrNotFound) {
		t.mu.Lock()
		t.done.Missing++
		t.mu.Unlock()
		return true, nil
	}
	if err != nil {
		return false, err
	}
	f, err := writeFile(ctx, t.to, objectPath(ref.SHA256), writeAll(data))
	if err != nil {
		return false, err
	}
	t.add(f)
	t.mu.Lock()
	t.done.Objects++
	t.mu.Unlock()
	return false, nil
}

// String says it for people.
func (t Taken) String() string {
	var b strings.Builder
	kind := "added"
	switch {
	case t.Full:
		kind = "full backup"
	case t.Bytes == 0:
		kind = "nothing is new"
	}
	fmt.Fprintf(&b, "increment %d (%s): %d events, %d values, %d objects, %d bytes in %s", t.Number, kind, t.Records, t.Values, t.Objects, t.Bytes, t.Elapsed.Round(time.Millisecond))
	if t.Missing > 0 {
		fmt.Fprintf(&b, "; %d objects were removed meanwhile", t.Missing)
	}
	return b.String()
}
