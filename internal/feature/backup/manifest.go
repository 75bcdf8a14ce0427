// Package backup keeps a bus in a directory or a bucket of an S3-compatible server, and makes a bus of it again.
//
// [Take] reads a bus that is written to meanwhile: the log up to where each shard ended in the
// beginning, and then all that is beside it, so that whatever an event refers to is there. A
// backup adds to the one before it, or replaces it. [Open] holds a backup to its checksums, and
// [Restore] writes it into an empty bus.
//
// A backup has these files. Each is stored as a whole, the manifest last, so it is always the last complete
// backup. In a bucket, which nobody can lock, NUMBER has a random text behind it, and a manifest replaces
// only the one that it stands on.
//
//	manifest.json                   what is there, with the size and SHA-256 of each file
//	log/NUMBER-SHARD-PART.jsonl.s2  records, as lines of package recordline
//	buckets/NUMBER-NAME.jsonl.s2    values of a bucket, or references to new objects
//	objects/XX/DIGEST               large results, images and files, as they are
package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/ports"
)

const (
	manifestName = "manifest.json"
	format       = "moorebus-backup"
	// maxShards is more than any bus has.
	maxShards = 1 << 16
	// version grows when an older build cannot restore the directory.
	version = 1
)

// The folders of a backup.
const (
	logFolder    = "log"
	bucketFolder = "buckets"
	objectFolder = "objects"
)

// Manifest says what a backup consists of.
type Manifest struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// SHA256 is that of the file itself, with zeros here.
	SHA256 string `json:"sha256"`
	ID     string `json:"id"`
	// Born tells which log it is of.
	Born       time.Time   `json:"log_made_at"`
	Shards     int         `json:"shards"`
	Increments []Increment `json:"increments"`
	// stored is the version under which it was read, empty if it is new.
	stored string
}

// Increment is what one call of [Take] added.
type Increment struct {
	Number   int       `json:"number"`
	Build    string    `json:"build"`
	Began    time.Time `json:"began"`
	Finished time.Time `json:"finished"`
	// Cuts are where the log ended, by shard. It begins behind those of the increment before it.
	Cuts    []uint64 `json:"cuts"`
	Records int      `json:"records"`
	// Log are its files by shard, in order.
	Log [][]File `json:"log"`
	// Buckets are all that there were. File is that of an earlier increment if nothing changed.
	Buckets []Bucket `json:"buckets"`
}

// Bucket is a bucket and the file with its values, or the names of its new objects.
type Bucket struct {
	ports.ArchivedBucket
	File *File `json:"file,omitempty"`
}

// File is a file of a backup.
type File struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Lines  int    `json:"lines"`
}

// ErrDamaged says that a backup is not as it was written.
var ErrDamaged = errors.New("the backup is damaged")

// errNoBackup says that a directory has no manifest.
var errNoBackup = errors.New("no backup of Moorebus: it has no " + manifestName)

var noSum = strings.Repeat("0", 2*sha256.Size)

// readManifest reads and checks a directory's manifest.
func readManifest(ctx context.Context, from blobs.Store) (*Manifest, error) {
	info, err := from.Stat(ctx, manifestName)
	if errors.Is(err, blobs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", from, errNoBackup)
	}
	if err != nil {
		return nil, err
	}
	text, err := blobs.ReadAll(ctx, from, manifestName)
	if err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", manifestName, ErrDamaged, err)
	}
	if len(m.SHA256) != len(noSum) || sum(bytes.Replace(text, []byte(m.SHA256), []byte(noSum), 1)) != m.SHA256 {
		return nil, fmt.Errorf("%s: %w: its SHA-256 is another one than it says", manifestName, ErrDamaged)
	}
	if m.Format != format || m.Version != version {
		return nil, fmt.Errorf("%s: a %s of version %d, this build reads %s of version %d", manifestName, m.Format, m.Version, format, version)
	}
	m.stored = info.Version
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", manifestName, ErrDamaged, err)
	}
	return &m, nil
}

// check holds a manifest to what [Take] writes: whoever can write the file can make its checksum.
func (m *Manifest) check() error {
	if m.Shards < 1 || m.Shards > maxShards {
		return fmt.Errorf("shards: %d is not 1 to %d", m.Shards, maxShards)
	}
	for _, inc := range m.Increments {
		if len(inc.Cuts) != m.Shards || len(inc.Log) > m.Shards {
			return fmt.Errorf("increment %d: has %d cuts and files of %d shards, want %d", inc.Number, len(inc.Cuts), len(inc.Log), m.Shards)
		}
	}
	for _, f := range m.files() {
		folder, _, _ := strings.Cut(filepath.ToSlash(f.Path), "/")
		if !filepath.IsLocal(f.Path) || folder != logFolder && folder != bucketFolder {
			return fmt.Errorf("%q is no file of a backup", f.Path)
		}
	}
	return nil
}

// write puts the manifest in the place of the one that was read, if that is still there.
func (m *Manifest) write(ctx context.Context, to blobs.Store) error {
	m.SHA256 = noSum
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	m.SHA256 = sum(text)
	text = bytes.Replace(text, []byte(noSum), []byte(m.SHA256), 1)
	err = to.PutIf(ctx, manifestName, text, m.stored)
	if errors.Is(err, blobs.ErrChanged) {
		return fmt.Errorf("another backup was taken to %s meanwhile: run it again: %w", to, err)
	}
	if err != nil {
		return fmt.Errorf("write the backup, of which the last complete one is as it was: %w", err)
	}
	info, err := to.Stat(ctx, manifestName)
	m.stored = info.Version
	return err
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

// last returns the last increment, an empty one if there is none.
func (m *Manifest) last() Increment {
	if len(m.Increments) == 0 {
		return Increment{Cuts: make([]uint64, m.Shards)}
	}
	return m.Increments[len(m.Increments)-1]
}

// files returns all files but objects, each once.
func (m *Manifest) files() []File {
	var all []File
	for _, inc := range m.Increments {
		for _, parts := range inc.Log {
			all = append(all, parts...)
		}
		for _, b := range inc.Buckets {
			if b.File != nil && !slices.ContainsFunc(all, func(f File) bool { return f.Path == b.File.Path }) {
				all = append(all, *b.File)
			}
		}
	}
	return all
}
