package filelog

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var (
	_ journal.Log   = (*File)(nil)
	_ ports.Runless = (*File)(nil)
)

// followPoll is how often a follower looks whether another process has written.
const followPoll = 250 * time.Millisecond

// Shards returns the number of shards.
func (f *File) Shards() int { return f.shards }

// Append fails with [journal.ErrDenied]: a file is read, and [Writer] makes one.
func (f *File) Append(context.Context, events.Run, uint64, ...journal.Entry) (uint64, error) {
	return 0, fmt.Errorf("append to %s: %w: an event file is only read", f.path, journal.ErrDenied)
}

// MaxBody returns the largest body of an event that a bus takes.
func (f *File) MaxBody() int { return journal.MaxBody }

func lastSeq(places []place) uint64 {
	if len(places) == 0 {
		return 0
	}
	return places[len(places)-1].seq
}

// record reads a record from its place.
func (f *File) record(at place) (journal.Record, error) {
	text := make([]byte, at.size)
	if _, err := f.file.ReadAt(text, at.offset); err != nil {
		return journal.Record{}, fmt.Errorf("%s:%d: %w", f.path, at.line, err)
	}
	rec, err := recordline.Parse(text)
	if err != nil {
		return journal.Record{}, fmt.Errorf("%s:%d: the file was changed meanwhile: %w", f.path, at.line, err)
	}
	return rec, nil
}

// Blob returns a large result that the file holds, or ErrNotFound.
func (f *File) Blob(ctx context.Context, ref events.Ref) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	at, ok := f.blobs[ref.SHA256]
	f.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("result %s: %w", ref.Key, journal.ErrNotFound)
	}
	text := make([]byte, at.size)
	if _, err := f.file.ReadAt(text, at.offset); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", f.path, at.line, err)
	}
	o, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", f.path, at.line, err)
	}
	return o.Data, nil
}

// yieldAll yields the places' records after a sequence number that match, and
// reports whether more is wanted.
func (f *File) yieldAll(ctx context.Context, places []place, filter journal.Filter, after uint64, yield func(journal.Record, error) bool) bool {
	for _, at := range places {
		if at.seq <= after || !filter.Match(at.subject) {
			continue
		}
		rec, err := journal.Record{}, ctx.Err()
		if err == nil {
			rec, err = f.record(at)
		}
		if !yield(rec, err) || err != nil {
			return false
		}
	}
	return true
}

// Read yields the run's records after the given sequence number.
func (f *File) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(journal.Record{}, fmt.Errorf("read run %s: %w", run.ID, err))
			return
		}
		f.mu.Lock()
		places := f.runs[run]
		f.mu.Unlock()
		f.yieldAll(ctx, places, journal.Filter{}, after, yield)
	}
}

// Head returns the run's last record.
func (f *File) Head(ctx context.Context, run events.Run) (journal.Record, error) {
	if err := ctx.Err(); err != nil {
		return journal.Record{}, fmt.Errorf("head of run %s: %w", run.ID, err)
	}
	f.mu.Lock()
	places := f.runs[run]
	f.mu.Unlock()
	if len(places) == 0 {
		return journal.Record{}, fmt.Errorf("head of run %s: %w", run.ID, journal.ErrNotFound)
	}
	return f.record(places[len(places)-1])
}

// Last returns the sequence number of the shard's last record.
func (f *File) Last(ctx context.Context, shard int) (uint64, error) {
	places, err := f.shard(ctx, shard)
	return lastSeq(places), err
}

// shard returns a shard's places.
func (f *File) shard(ctx context.Context, shard int) ([]place, error) {
	if err := journalcheck.Shard(f.shards, shard); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.index[shard], nil
}

// Newest returns the shard's last record that matches, reading all of them.
func (f *File) Newest(ctx context.Context, shard int, filter journal.Filter) (journal.Record, error) {
	newest, found := journal.Record{}, false
	for rec, err := range f.Scan(ctx, shard, filter, 0) {
		if err != nil {
			return journal.Record{}, err
		}
		newest, found = rec, true
	}
	if !found {
		return journal.Record{}, fmt.Errorf("newest of %s: %w", filter.Subject(shard), journal.ErrNotFound)
	}
	return newest, nil
}

// Scan yields a shard's records that match, in the order of their sequence
// numbers. With the empty filter it yields only records whose subject has the
// form of an event's.
func (f *File) Scan(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		places, err := f.shard(ctx, shard)
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("scan shard %d: %w", shard, err))
			return
		}
		f.yieldAll(ctx, places, filter, after, yield)
	}
}

// Runless yields a shard's records that belong to no run.
func (f *File) Runless(ctx context.Context, shard int) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		places, err := f.shard(ctx, shard)
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("messages of no run in shard %d: %w", shard, err))
			return
		}
		for _, at := range places {
			if journalcheck.Subject(f.shards, at.subject) == nil {
				continue
			}
			rec, err := f.record(at)
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// Follow yields a shard's records that match, forever, also those that another
// process appends to the file.
func (f *File) Follow(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		ticker := time.NewTicker(followPoll)
		defer ticker.Stop()
		for {
			places, err := f.shard(ctx, shard)
			if err != nil {
				yield(journal.Record{}, err)
				return
			}
			if !f.yieldAll(ctx, places, filter, after, yield) {
				return
			}
			after = max(after, lastSeq(places))
			select {
			case <-ctx.Done():
			case <-ticker.C:
				err = f.refresh()
			}
			if err != nil {
				yield(journal.Record{}, err)
				return
			}
		}
	}
}

// refresh reads what another process has appended.
func (f *File) refresh() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.load(false)
}
