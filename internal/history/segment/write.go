package segment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	stdhash "hash"
	"io"
	"iter"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Log is where runs are read.
type Log interface {
	Shards() int
	Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error]
	// Blob returns a large result, or [journal.ErrNotFound].
	Blob(ctx context.Context, ref events.Ref) ([]byte, error)
}

// Write stores runs as a segment, and returns its manifest. Each has to have ended, and its last event to be the
// row's head. Large results that the log does not have any more are left out. One run's lines are in memory
// at a time, and what packs them.
func Write(ctx context.Context, to blobs.Store, log Log, now time.Time, rows []history.Run) (*Manifest, error) {
	if len(rows) == 0 {
		return nil, errors.New("a segment needs a run")
	}
	w := &writer{to: to, log: log, codec: new(events.Codec), m: &Manifest{Format: format, Version: version, Name: newName(now), Shards: log.Shards()}}
	err := blobs.Write(ctx, to, eventsKey(w.m.Name), func(out io.Writer) (err error) {
		if w.zip, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)); err != nil {
			return err
		}
		for _, row := range rows {
			if err := w.run(ctx, out, row); err != nil {
				return fmt.Errorf("archive run %s: %w", row.ID, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w.m, w.m.put(ctx, to)
}

// writer is one call of Write.
type writer struct {
	to    blobs.Store
	log   Log
	codec *events.Codec
	m     *Manifest
	zip   *zstd.Encoder
	line  []byte
}

// run writes a run's frame and its objects.
func (w *writer) run(ctx context.Context, out io.Writer, row history.Run) error {
	frame := &measured{to: out, digest: sha256.New()}
	w.zip.Reset(frame)
	e := Entry{Offset: w.m.Bytes, Row: row}
	for rec, err := range w.log.Read(ctx, events.NewRun(row.Namespace, row.ID, w.m.Shards), 0) {
		if err != nil {
			return err
		}
		if _, err := events.ParseSubject(rec.Subject); err != nil {
			continue // it lies among the run's records and is none
		}
		if w.line, err = recordline.AppendStored(w.line[:0], rec); err != nil {
			return err
		}
		if _, err := w.zip.Write(w.line); err != nil {
			return err
		}
		e.Events, e.Size, e.Head = e.Events+1, e.Size+int64(len(w.line)), events.Hash(rec.Body)
		if err := w.objects(ctx, &e, rec.Body); err != nil {
			return err
		}
	}
	if e.Events == 0 || e.Head != row.Head {
		return fmt.Errorf("its last event is not that of its row: %d events, %q, want %q", e.Events, e.Head, row.Head)
	}
	if err := w.zip.Close(); err != nil {
		return err
	}
	e.Length, e.SHA256 = frame.bytes, hex.EncodeToString(frame.digest.Sum(nil))
	w.m.Bytes += e.Length
	w.m.Runs = append(w.m.Runs, e)
	return nil
}

// objects stores what an event refers to.
func (w *writer) objects(ctx context.Context, e *Entry, body []byte) error {
	for _, ref := range recordline.Refs(w.codec, body) {
		data, err := w.log.Blob(ctx, ref)
		if errors.Is(err, journal.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if hash(data) != ref.SHA256 {
			return fmt.Errorf("result %s: its SHA-256 is not that of its event", ref.Key)
		}
		if err := w.to.Put(ctx, objectKey(w.m.Name, ref.SHA256), bytes.NewReader(data)); err != nil {
			return err
		}
		e.Objects = append(e.Objects, ref)
	}
	return nil
}

// measured counts and hashes what it writes.
type measured struct {
	to     io.Writer
	digest stdhash.Hash
	bytes  int64
}

func (m *measured) Write(p []byte) (int, error) {
	n, err := m.to.Write(p)
	m.digest.Write(p[:n])
	m.bytes += int64(n)
	return n, err
}
