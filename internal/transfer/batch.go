package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// maxBatch is how many messages an atomic batch of the log takes, maxBatchBytes
	// how many bytes of bodies go into one.
	maxBatch      = journal.MaxBatch
	maxBatchBytes = 64 << 20
	// appendTries is how often an append of unknown outcome is tried.
	appendTries = 5
)

// batch are records that are appended together; asleep ones wake nobody. The last one ends the run.
type batch struct {
	records      []journal.Record
	asleep, last bool
}

// batches cuts a run into batches. The last one has room records at most and goes in as it
// is, the ones before it asleep.
func batches(records []journal.Record, room int) []batch {
	cut, bytes := len(records), 0
	for cut > 0 && len(records)-cut < room {
		if bytes += len(records[cut-1].Body); bytes > maxBatchBytes && cut < len(records) {
			break
		}
		cut--
	}
	var all []batch
	begin, bytes := 0, 0
	for i := range cut {
		if bytes += len(records[i].Body); i > begin && (i-begin == maxBatch || bytes > maxBatchBytes) {
			all = append(all, batch{records: records[begin:i], asleep: true})
			begin, bytes = i, len(records[i].Body)
		}
	}
	if begin < cut {
		all = append(all, batch{records: records[begin:cut], asleep: true})
	}
	return append(all, batch{records: records[cut:], last: true})
}

// entries are the batch's records as a run of the target has them.
func (b batch) entries(to events.Run) ([]journal.Entry, error) {
	entries := make([]journal.Entry, len(b.records))
	for i, rec := range b.records {
		subject, err := events.ParseSubject(rec.Subject)
		if err != nil {
			return nil, err
		}
		subject.Run = to
		if b.asleep {
			subject.To, subject.Pool = events.Nobody, events.DefaultPool
		}
		entries[i] = journal.Entry{Subject: subject, Body: rec.Body}
	}
	return entries, nil
}

// append appends entries behind the sequence number last, and returns the one behind which the
// next ones come.
func (m *importer) append(ctx context.Context, to events.Run, last uint64, entries []journal.Entry) (uint64, error) {
	end := events.Hash(entries[len(entries)-1].Body)
	for try := 1; ; try++ {
		seq, err := m.to.Append(ctx, to, last, entries...)
		if err == nil || !errors.Is(err, journal.ErrConflict) && !errors.Is(err, journal.ErrUnknownOutcome) {
			return seq, err
		}
		head, readErr := m.to.Head(ctx, to)
		switch {
		case readErr == nil && events.Hash(head.Body) == end:
			return head.Seq, nil // it was stored, though nobody said so
		case readErr != nil && !errors.Is(readErr, journal.ErrNotFound):
			return 0, errors.Join(err, readErr)
		case head.Seq != last || try == appendTries:
			return 0, fmt.Errorf("somebody else writes the run: %w", err)
		}
	}
}

// putBlob stores a large result in its pool's bucket.
func (m *importer) putBlob(ctx context.Context, ref events.Ref, data []byte) error {
	_, pool, _ := strings.Cut(ref.Bucket, "_")
	stored, err := m.to.PutBlob(ctx, pool, data)
	if err == nil && stored != ref {
		err = fmt.Errorf("result %s of bucket %s would be stored as %s of %s", ref.Key, ref.Bucket, stored.Key, stored.Bucket)
	}
	return err
}

// stranded reports whether there is work that no delivery is responsible for, since
// every event that went to its state wakes nobody. Calls of which that is so are no
// effects at all.
func stranded(mem *reducer.Memory, work []effects.Effect) bool {
	for _, e := range work {
		if e.Wake == 0 {
			return true
		}
	}
	return len(work) == 0 && (mem.State == events.Acting || mem.State == events.ParallelActing)
}
