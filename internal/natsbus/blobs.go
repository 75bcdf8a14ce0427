package natsbus

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// chunkSize is how an object is cut, in bytes.
const chunkSize = 128 << 10

// objectInfo is an object's description in the form of NATS's object store, so
// that its tools can read the bucket. Objects are written and read here without
// the client library's object store, which makes a consumer to read one.
type objectInfo struct {
	Name    string            `json:"name"`
	Bucket  string            `json:"bucket"`
	NUID    string            `json:"nuid"`
	Size    int               `json:"size"`
	Time    time.Time         `json:"mtime"`
	Chunks  int               `json:"chunks"`
	Digest  string            `json:"digest"`
	Deleted bool              `json:"deleted,omitempty"`
	Options objectInfoOptions `json:"options"`

	// seq is the description's own place in the bucket.
	seq uint64
}

type objectInfoOptions struct {
	ChunkSize int `json:"max_chunk_size"`
}

func chunkSubject(bucket, id string) string { return "$O." + bucket + ".C." + id }

func infoSubject(bucket, key string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(key))
}

// PutBlob stores data under its digest in the pool's bucket. An object that is there gets
// only a new time, since an old one may be about to be deleted.
func (b *Bus) PutBlob(ctx context.Context, pool string, data []byte) (events.Ref, error) {
	if !events.ValidToken(pool) {
		return events.Ref{}, fmt.Errorf("store a result: pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", pool)
	}
	digest := events.Hash(data)
	ref := events.Ref{Bucket: resultsPrefix + pool, Key: digest, Size: len(data), SHA256: digest}
	info, err := b.objectInfo(ctx, ref)
	if err == nil {
		err = b.touch(ctx, ref, info)
	}
	if err == nil {
		return ref, nil
	}
	if errors.Is(err, journal.ErrNotReady) {
		err = b.createStore(ctx, resultsConfig(pool, b.Replicas))
	}
	if err == nil || errors.Is(err, journal.ErrNotFound) {
		err = b.putObject(ctx, ref, data)
	}
	if err != nil {
		return events.Ref{}, fmt.Errorf("store a result of pool %s: %w", pool, err)
	}
	return ref, nil
}

// touch gives an object that is not fresh a new time, unless it was deleted
// meanwhile: then the error is ErrNotFound.
func (b *Bus) touch(ctx context.Context, ref events.Ref, info *objectInfo) error {
	if time.Since(info.Time) < ports.BlobSafe/2 {
		return nil
	}
	info.Time = time.Now().UTC()
	err := b.putInfo(ctx, ref, info, nats.Header{api.HeaderExpectSeq: {strconv.FormatUint(info.seq, 10)}})
	if errors.Is(err, journal.ErrConflict) {
		return journal.ErrNotFound
	}
	return err
}

// putObject writes the chunks, and then the description, which makes them visible.
func (b *Bus) putObject(ctx context.Context, ref events.Ref, data []byte) error {
	info, err := b.putChunks(ctx, ref, data)
	if err != nil {
		return err
	}
	return b.putInfo(ctx, ref, info, nats.Header{})
}

// putChunks writes an object's chunks and returns the description that they lack.
func (b *Bus) putChunks(ctx context.Context, ref events.Ref, data []byte) (*objectInfo, error) {
	sum := sha256.Sum256(data)
	info := &objectInfo{
		Name: ref.Key, Bucket: ref.Bucket, NUID: rand.Text(), Size: len(data), Time: time.Now().UTC(),
		Digest: "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:]), Options: objectInfoOptions{chunkSize},
	}
	for len(data) > 0 {
		n := min(len(data), chunkSize)
		if _, err := b.store(ctx, &nats.Msg{Subject: chunkSubject(ref.Bucket, info.NUID), Data: data[:n]}); err != nil {
			return nil, err
		}
		data = data[n:]
		info.Chunks++
	}
	return info, nil
}

func (b *Bus) putInfo(ctx context.Context, ref events.Ref, info *objectInfo, header nats.Header) error {
	body, err := json.Marshal(info)
	if err != nil {
		return err
	}
	header["Nats-Rollup"] = []string{"sub"}
	_, err = b.store(ctx, &nats.Msg{Subject: infoSubject(ref.Bucket, ref.Key), Data: body, Header: header})
	return err
}

func (b *Bus) objectInfo(ctx context.Context, ref events.Ref) (*objectInfo, error) {
	info, err := b.description(ctx, ref)
	if err == nil && info.Deleted {
		return nil, journal.ErrNotFound
	}
	return info, err
}

// description is objectInfo that also returns what other tools leave of an object
// that they delete.
func (b *Bus) description(ctx context.Context, ref events.Ref) (*objectInfo, error) {
	rec, err := b.LastOn(ctx, objectStreamPrefix+ref.Bucket, infoSubject(ref.Bucket, ref.Key))
	if err != nil {
		return nil, err
	}
	var info objectInfo
	if err := json.Unmarshal(rec.Body, &info); err != nil {
		return nil, fmt.Errorf("description of %s in %s: %w", ref.Key, ref.Bucket, err)
	}
	info.seq = rec.Seq
	return &info, nil
}

// Blob returns what a reference points to, checked against its digest.
func (b *Bus) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	data, err := b.blob(ctx, ref)
	if errors.Is(err, journal.ErrNotReady) {
		err = fmt.Errorf("no bucket %s: %w", ref.Bucket, journal.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("result %s: %w", ref.Key, err)
	}
	return data, nil
}

func (b *Bus) blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	pool, ok := strings.CutPrefix(ref.Bucket, resultsPrefix)
	if !ok || !events.ValidToken(pool) {
		return nil, fmt.Errorf("bucket %q is not one of results: %w", ref.Bucket, journal.ErrNotFound)
	}
	info, err := b.objectInfo(ctx, ref)
	if err != nil {
		return nil, err
	}
	if ref.Size < 0 || info.Size != ref.Size {
		return nil, fmt.Errorf("it has %d bytes, the reference says %d: %w", info.Size, ref.Size, journal.ErrNotFound)
	}
	data, digest, err := b.chunks(ctx, ref.Bucket, info)
	if err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(digest); got != ref.SHA256 {
		return nil, fmt.Errorf("its digest is %s, the reference says %s", got, ref.SHA256)
	}
	return data, nil
}

// chunksRoom bounds the memory that is reserved because of an object's description.
const chunksRoom = 4 << 20

// chunks reads an object's data and returns it with its SHA-256. It does not
// hold more than the description says.
func (b *Bus) chunks(ctx context.Context, bucket string, info *objectInfo) (data, digest []byte, err error) {
	data = make([]byte, 0, max(0, min(info.Size, chunksRoom)))
	sum := sha256.New()
	for rec, err := range b.RecordsOn(ctx, objectStreamPrefix+bucket, chunkSubject(bucket, info.NUID), 0, 0) {
		if err != nil {
			return nil, nil, err
		}
		if len(data)+len(rec.Body) > info.Size {
			return nil, nil, errors.New("it has more bytes than its description")
		}
		data = append(data, rec.Body...)
		sum.Write(rec.Body)
	}
	return data, sum.Sum(nil), nil
}

func snapshotRef(run events.Run) events.Ref {
	return events.Ref{Bucket: snapshotBucket, Key: run.Namespace + "." + run.ID}
}

// PutSnapshot replaces the run's snapshot; of two that do so at once one is kept,
// and none if it was deleted meanwhile.
func (b *Bus) PutSnapshot(ctx context.Context, run events.Run, s ports.Snapshot) error {
	if err := journalcheck.Run(b.shards, run); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	data, err := s.Encode()
	if err == nil {
		err = b.replaceSnapshot(ctx, snapshotRef(run), data)
	}
	if err != nil {
		return fmt.Errorf("snapshot of run %s: %w", run.ID, err)
	}
	return nil
}

// replaceSnapshot writes the new object before it lets go of the old one's
// chunks, so that there is always one that can be read.
func (b *Bus) replaceSnapshot(ctx context.Context, ref events.Ref, data []byte) error {
	old, err := b.description(ctx, ref)
	if errors.Is(err, journal.ErrNotReady) {
		err = b.createStore(ctx, snapshotsConfig(b.Replicas))
	}
	if err != nil && !errors.Is(err, journal.ErrNotFound) {
		return err
	}
	if old == nil {
		old = &objectInfo{}
	}
	return b.overwrite(ctx, ref, old, data)
}

// overwrite puts an object in the place of an old one, if that is still there; one
// that was replaced or deleted meanwhile is left as it is, and that is no error.
func (b *Bus) overwrite(ctx context.Context, ref events.Ref, old *objectInfo, data []byte) error {
	info, err := b.putChunks(ctx, ref, data)
	if err != nil {
		return err
	}
	err = b.putInfo(ctx, ref, info, nats.Header{api.HeaderExpectSeq: {strconv.FormatUint(old.seq, 10)}})
	unused := old.NUID
	if errors.Is(err, journal.ErrConflict) {
		unused, err = info.NUID, nil
	}
	if err == nil && unused != "" {
		_, err = b.PurgeOn(ctx, 0, objectStreamPrefix+ref.Bucket, chunkSubject(ref.Bucket, unused), 0)
	}
	return err
}

// Snapshot returns the run's snapshot, or ErrNotFound.
func (b *Bus) Snapshot(ctx context.Context, run events.Run) (ports.Snapshot, error) {
	s, err := b.snapshot(ctx, snapshotRef(run))
	if errors.Is(err, journal.ErrNotReady) {
		err = fmt.Errorf("no bucket %s: %w", snapshotBucket, journal.ErrNotFound)
	}
	if err != nil {
		return ports.Snapshot{}, fmt.Errorf("snapshot of run %s: %w", run.ID, err)
	}
	return s, nil
}

func (b *Bus) snapshot(ctx context.Context, ref events.Ref) (ports.Snapshot, error) {
	info, err := b.objectInfo(ctx, ref)
	if err != nil {
		return ports.Snapshot{}, err
	}
	data, digest, err := b.chunks(ctx, ref.Bucket, info)
	if err != nil {
		return ports.Snapshot{}, err
	}
	if "SHA-256="+base64.URLEncoding.EncodeToString(digest) != info.Digest {
		return ports.Snapshot{}, errors.New("its digest is not the one of its description")
	}
	return ports.DecodeSnapshot(data)
}

// DeleteSnapshot removes the run's snapshot, if there is one.
func (b *Bus) DeleteSnapshot(ctx context.Context, run events.Run) error {
	ref := snapshotRef(run)
	info, err := b.objectInfo(ctx, ref)
	if errors.Is(err, journal.ErrNotFound) || errors.Is(err, journal.ErrNotReady) {
		return nil
	}
	stream := objectStreamPrefix + ref.Bucket
	if err == nil {
		_, err = b.PurgeOn(ctx, 0, stream, infoSubject(ref.Bucket, ref.Key), info.seq)
	}
	if err == nil { // one that somebody stored meanwhile has other chunks
		_, err = b.PurgeOn(ctx, 0, stream, chunkSubject(ref.Bucket, info.NUID), 0)
	}
	if err != nil {
		return fmt.Errorf("delete the snapshot of run %s: %w", run.ID, err)
	}
	return nil
}

// Snapshotted returns the runs that have a snapshot.
func (b *Bus) Snapshotted(ctx context.Context) ([]events.Run, error) {
	prefix := "$O." + snapshotBucket + ".M."
	var runs []events.Run
	err := b.Subjects(ctx, objectStreamPrefix+snapshotBucket, prefix+"*", func(subject string) {
		key, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, prefix))
		namespace, id, _ := strings.Cut(string(key), ".")
		if err == nil && events.ValidToken(namespace) && events.CheckID(id) == nil {
			runs = append(runs, events.NewRun(namespace, id, b.shards))
		}
	})
	if err != nil && !errors.Is(err, journal.ErrNotReady) { // not ready: nobody has written one
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return runs, nil
}

// createPool makes what a pool of tools has beside its consumer.
func (b *Bus) createPool(ctx context.Context, pool string) error {
	return errors.Join(
		b.createBucket(ctx, buckets.Tools(pool)),
		b.createStore(ctx, resultsConfig(pool, b.Replicas)),
	)
}
