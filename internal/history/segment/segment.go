// Package segment keeps ended runs outside the log, as segments of a store of objects.
//
// A segment has many runs. Its events are one object, a zstd frame for each run: one range read gives a run,
// and `zstd -d` makes an export of the entire object. Large results are objects of their own.
//
//	segments/NAME.jsonl.zst  the runs' events, as lines of package recordline
//	segments/NAME/DIGEST     large results, images and files that the events refer to
//	manifests/NAME.json      which runs there are, where they lie, and their rows
//
// The manifest is written last, and only if it is not there. Without it there is no segment, and [Sweep]
// removes what a crash has left. A segment never changes. A reader compares what it reads with the
// manifest's hashes, and an error names the segment and the run.
package segment

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
)

const (
	format = "moorebus-archive"
	// version grows when an older build cannot read a segment.
	version = 1
)

const (
	segments  = "segments/"
	manifests = "manifests/"
)

// Manifest says what a segment consists of.
type Manifest struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// SHA256 is that of the manifest itself, with zeros here.
	SHA256 string `json:"sha256"`
	// Name is the segment's, unique in its store. Names sort by the time at which they were made.
	Name string `json:"name"`
	// Shards is the number of shards of the log that the runs were in.
	Shards int `json:"shards"`
	// Bytes is the size of the events' object.
	Bytes int64   `json:"bytes"`
	Runs  []Entry `json:"runs"`
}

// Entry is a run of a segment.
type Entry struct {
	// Offset and Length are where its frame lies, SHA256 is the frame's hash, and Size its length unpacked.
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Events counts the run's events, Head is the hash of the last one's body.
	Events int    `json:"events"`
	Head   string `json:"head"`
	// Objects are the large results that are there.
	Objects []events.Ref `json:"objects,omitempty"`
	// Row is what lists show of it.
	Row history.Run `json:"row"`
}

// Run returns the run, in the log that it was in.
func (e *Entry) Run(shards int) events.Run { return events.NewRun(e.Row.Namespace, e.Row.ID, shards) }

// ErrDamaged says that a segment is not as it was written.
var ErrDamaged = errors.New("the segment is damaged")

// DamagedError names a segment that is not as it was written, and the run, unless it is the manifest.
type DamagedError struct {
	Segment string
	Run     string
	Err     error
}

func (e *DamagedError) Error() string {
	if e.Run == "" {
		return fmt.Sprintf("segment %s: %s: %s", e.Segment, ErrDamaged, e.Err)
	}
	return fmt.Sprintf("segment %s, run %s: %s: %s", e.Segment, e.Run, ErrDamaged, e.Err)
}

func (e *DamagedError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

// newName returns a name for a segment that is made at a time.
func newName(at time.Time) string {
	return at.UTC().Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:12])
}

func eventsKey(name string) string         { return segments + name + ".jsonl.zst" }
func objectKey(name, digest string) string { return segments + name + "/" + digest }
func manifestKey(name string) string       { return manifests + name + ".json" }

var noSum = strings.Repeat("0", 2*sha256.Size)

// put writes the manifest unless one of that name exists.
func (m *Manifest) put(ctx context.Context, to blobs.Store) error {
	m.SHA256 = noSum
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	m.SHA256 = hash(text)
	return to.PutIf(ctx, manifestKey(m.Name), bytes.Replace(text, []byte(noSum), []byte(m.SHA256), 1), "")
}

// Open reads a segment's manifest, or [blobs.ErrNotExist].
func Open(ctx context.Context, from blobs.Store, name string) (*Manifest, error) {
	text, err := blobs.ReadAll(ctx, from, manifestKey(name))
	if err != nil {
		return nil, err
	}
	var m Manifest
	damaged := func(err error) (*Manifest, error) { return nil, &DamagedError{Segment: name, Err: err} }
	if err := json.Unmarshal(text, &m); err != nil {
		return damaged(err)
	}
	if len(m.SHA256) != len(noSum) || hash(bytes.Replace(text, []byte(m.SHA256), []byte(noSum), 1)) != m.SHA256 {
		return damaged(errors.New("the manifest's SHA-256 is another one than it says"))
	}
	if m.Format != format || m.Version != version {
		return nil, fmt.Errorf("segment %s: a %s of version %d, this build reads %s of version %d", name, m.Format, m.Version, format, version)
	}
	return &m, m.check(name)
}

// check refuses a manifest that [Write] would not write. The manifest's hash does not show that: whoever can
// write the object can compute its hash.
func (m *Manifest) check(name string) error {
	end := int64(0)
	for i := range m.Runs {
		e := &m.Runs[i]
		if e.Offset != end || e.Length <= 0 || e.Size < 0 || !events.ValidToken(e.Row.Namespace) || events.CheckID(e.Row.ID) != nil {
			return &DamagedError{Segment: name, Run: e.Row.ID, Err: errors.New("its place does not follow on the one before it")}
		}
		end += e.Length
	}
	if m.Name != name || m.Shards < 1 || m.Bytes != end {
		return &DamagedError{Segment: name, Err: errors.New("the manifest does not fit together")}
	}
	return nil
}

// All yields the manifests of a store, the oldest one first. One that cannot be read comes as an error, and
// the others follow.
func All(ctx context.Context, from blobs.Store) iter.Seq2[*Manifest, error] {
	return func(yield func(*Manifest, error) bool) {
		for info, err := range from.List(ctx, manifests) {
			if err != nil {
				yield(nil, err)
				return
			}
			m, err := Open(ctx, from, strings.TrimSuffix(path.Base(info.Key), ".json"))
			if errors.Is(err, blobs.ErrNotExist) {
				continue // it was deleted meanwhile
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// Delete removes a segment. One that is removed half way is none: [Sweep] removes the rest.
func (m *Manifest) Delete(ctx context.Context, from blobs.Store) error {
	if err := from.Delete(ctx, manifestKey(m.Name)); err != nil {
		return err
	}
	for i := range m.Runs {
		for _, ref := range m.Runs[i].Objects {
			if err := from.Delete(ctx, objectKey(m.Name, ref.SHA256)); err != nil {
				return err
			}
		}
	}
	return from.Delete(ctx, eventsKey(m.Name))
}

// Sweep removes what was stored before a time and belongs to no manifest. That time must be before the
// beginning of every [Write] that may still be at work.
func Sweep(ctx context.Context, from blobs.Store, before time.Time) error {
	known := map[string]bool{} // names; a manifest that cannot be read keeps its segment
	for info, err := range from.List(ctx, manifests) {
		if err != nil {
			return err
		}
		known[strings.TrimSuffix(path.Base(info.Key), ".json")] = true
	}
	for info, err := range from.List(ctx, segments) {
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(info.Key, segments), "/")
		if known[strings.TrimSuffix(name, ".jsonl.zst")] || !info.Modified.Before(before) {
			continue
		}
		if err := from.Delete(ctx, info.Key); err != nil {
			return err
		}
	}
	return nil
}

func hash(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}
