package natsbus

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/s2"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// maxSnapshot bounds what a snapshot may unpack to, in bytes.
const maxSnapshot = 1 << 30

// snapshotRef names the object that holds a run's snapshot.
func snapshotRef(run events.Run) events.Ref {
	return events.Ref{Bucket: snapshotBucket, Key: run.Namespace + "." + run.ID}
}

// PutSnapshot replaces the run's snapshot; of two that do so at once one is kept,
// and none if it was deleted meanwhile. The object is the snapshot as JSON on a
// line and its memory behind that, which is read apart, packed with S2: a run
// is read for somebody who waits, and gzip takes longer to unpack than the memory to
// read.
func (b *Bus) PutSnapshot(ctx context.Context, run events.Run, s journal.Snapshot) error {
	if err := journal.CheckRun(b.shards, run); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	data, err := packed(s)
	if err == nil {
		err = b.replaceSnapshot(ctx, snapshotRef(run), data)
	}
	if err != nil {
		return fmt.Errorf("snapshot of run %s: %w", run.ID, err)
	}
	return nil
}

func packed(s journal.Snapshot) ([]byte, error) {
	var buf bytes.Buffer
	zip := s2.NewWriter(&buf, s2.WriterConcurrency(1))
	memory := s.Memory
	s.Memory = nil
	if err := json.NewEncoder(zip).Encode(s); err != nil {
		return nil, err
	}
	if _, err := zip.Write(memory); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func unpacked(data []byte) (s journal.Snapshot, err error) {
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) { // gzip's
		return s, errors.New("it was written by an older Moorebus; the next snapshot of the run replaces it")
	}
	size := unpackedSize(data)
	if size > maxSnapshot {
		return s, errors.New("it unpacks to more than 1 GiB")
	}
	text := make([]byte, size)
	zip := s2.NewReader(bytes.NewReader(data))
	if _, err := io.ReadFull(zip, text); err != nil {
		return s, err
	}
	if _, err := zip.ReadByte(); !errors.Is(err, io.EOF) {
		return s, errors.Join(errors.New("it unpacks to more than it says"), err)
	}
	head, memory, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(head, &s); err != nil {
		return s, err
	}
	s.Memory = memory
	return s, nil
}

// unpackedSize is how much the blocks of a stream say that they unpack to, at most a
// little more than maxSnapshot. Each has a kind, a length of three bytes, and, if it
// holds data, a checksum of four before that.
func unpackedSize(data []byte) (size int) {
	const packed, plain, checksum = 0, 1, 4
	for len(data) >= 4 && size <= maxSnapshot {
		kind, n := data[0], int(data[1])|int(data[2])<<8|int(data[3])<<16
		if data = data[4:]; n > len(data) {
			break // which reading it says as well
		}
		switch {
		case n < checksum:
		case kind == plain:
			size += n - checksum
		case kind == packed:
			if length, err := s2.DecodedLen(data[checksum:n]); err == nil {
				size += length
			}
		}
		data = data[n:]
	}
	return size
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
func (b *Bus) Snapshot(ctx context.Context, run events.Run) (journal.Snapshot, error) {
	s, err := b.snapshot(ctx, snapshotRef(run))
	if errors.Is(err, journal.ErrNotReady) {
		err = fmt.Errorf("no bucket %s: %w", snapshotBucket, journal.ErrNotFound)
	}
	if err != nil {
		return journal.Snapshot{}, fmt.Errorf("snapshot of run %s: %w", run.ID, err)
	}
	return s, nil
}

func (b *Bus) snapshot(ctx context.Context, ref events.Ref) (journal.Snapshot, error) {
	info, err := b.objectInfo(ctx, ref)
	if err != nil {
		return journal.Snapshot{}, err
	}
	data, digest, err := b.chunks(ctx, ref.Bucket, info)
	if err != nil {
		return journal.Snapshot{}, err
	}
	if "SHA-256="+base64.URLEncoding.EncodeToString(digest) != info.Digest {
		return journal.Snapshot{}, errors.New("its digest is not the one of its description")
	}
	return unpacked(data)
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
