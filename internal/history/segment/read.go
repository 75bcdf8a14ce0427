package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/moorebus/moorebus/internal/blobs"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Read returns a run's records, as the log had them, with one range read. What is not as it was written is a
// [DamagedError].
func (m *Manifest) Read(ctx context.Context, from blobs.Store, e *Entry) ([]journal.Record, error) {
	frame, err := from.Range(ctx, eventsKey(m.Name), e.Offset, e.Length)
	if errors.Is(err, blobs.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, m.damaged(e, fmt.Errorf("the object of its events is gone, or too short: %w", err))
	}
	if err != nil {
		return nil, err
	}
	if hash(frame) != e.SHA256 {
		return nil, m.damaged(e, errors.New("the SHA-256 of its frame is another one"))
	}
	records, err := m.unpack(frame, e)
	if err != nil {
		return nil, m.damaged(e, err)
	}
	return records, nil
}

func (m *Manifest) damaged(e *Entry, err error) error {
	return &DamagedError{Segment: m.Name, Run: e.Row.ID, Err: err}
}

// unpack reads a frame's records, and holds them to what the manifest says of the run.
func (m *Manifest) unpack(frame []byte, e *Entry) ([]journal.Record, error) {
	zip, err := zstd.NewReader(bytes.NewReader(frame), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer zip.Close()
	text, err := io.ReadAll(io.LimitReader(zip, e.Size+1))
	if err != nil || int64(len(text)) != e.Size {
		return nil, errors.Join(err, fmt.Errorf("%d bytes, want %d", len(text), e.Size))
	}
	run, head := e.Run(m.Shards), ""
	var records []journal.Record
	for line := range bytes.Lines(text) {
		rec, err := recordline.Parse(line)
		if err != nil {
			return nil, err
		}
		if s, err := events.ParseSubject(rec.Subject); err != nil || s.Run != run {
			return nil, fmt.Errorf("event %d is of another run: %q", len(records)+1, rec.Subject)
		}
		records, head = append(records, rec), events.Hash(rec.Body)
	}
	if len(records) != e.Events || head != e.Head || head != e.Row.Head {
		return nil, fmt.Errorf("%d events up to %q, want %d up to %q", len(records), head, e.Events, e.Head)
	}
	return records, nil
}

// Object returns a large result of a run, or [journal.ErrNotFound] if the segment never had it.
func (m *Manifest) Object(ctx context.Context, from blobs.Store, e *Entry, ref events.Ref) ([]byte, error) {
	if !slices.Contains(e.Objects, ref) {
		return nil, fmt.Errorf("result %s of run %s: %w", ref.Key, e.Row.ID, journal.ErrNotFound)
	}
	data, err := blobs.ReadAll(ctx, from, objectKey(m.Name, ref.SHA256))
	switch {
	case errors.Is(err, blobs.ErrNotExist):
		return nil, m.damaged(e, fmt.Errorf("result %s is gone: %w", ref.Key, err))
	case err == nil && hash(data) != ref.SHA256:
		return nil, m.damaged(e, fmt.Errorf("result %s: its SHA-256 is another one", ref.Key))
	}
	return data, err
}

// Damage reads an entire store, and yields every [DamagedError]: of each run the first one. Any other error
// ends the sequence.
func Damage(ctx context.Context, from blobs.Store) iter.Seq2[*DamagedError, error] {
	return func(yield func(*DamagedError, error) bool) {
		report := func(err error) (goOn bool) {
			var damaged *DamagedError
			if err == nil {
				return true
			}
			if errors.As(err, &damaged) {
				return yield(damaged, nil)
			}
			yield(nil, err)
			return false
		}
		for m, err := range All(ctx, from) {
			if !report(err) {
				return
			}
			if err != nil {
				continue
			}
			for i := range m.Runs {
				if !report(m.verify(ctx, from, &m.Runs[i])) {
					return
				}
			}
		}
	}
}

// verify reads all of a run.
func (m *Manifest) verify(ctx context.Context, from blobs.Store, e *Entry) error {
	_, err := m.Read(ctx, from, e)
	for _, ref := range e.Objects {
		if err == nil {
			_, err = m.Object(ctx, from, e, ref)
		}
	}
	return err
}
