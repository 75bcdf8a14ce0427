package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// maxBatch is how many messages an atomic batch of the log takes, maxBatchBytes
	// how many bytes of bodies go into one.
	maxBatch      = journal.MaxBatch
	maxBatchBytes = 64 << 20
	// appendTries is how often an append of unknown outcome is tried.
	appendTries = 5
)

// batch are records that are appended together; asleep ones wake nobody.
type batch struct {
	records []journal.Record
	asleep  bool
}

// batches cuts a run into batches. The last one is as long as a batch can be and
// goes in as it is, the ones before it asleep.
func batches(records []journal.Record) []batch {
	cut, bytes := len(records), 0
	for cut > 0 && len(records)-cut < maxBatch {
		if bytes += len(records[cut-1].Body); bytes > maxBatchBytes && cut < len(records) {
			break
		}
		cut--
	}
	var all []batch
	begin, bytes := 0, 0
	for i := range cut {
		if bytes += len(records[i].Body); i > begin && (i-begin == maxBatch || bytes > maxBatchBytes) {
			all = append(all, batch{records[begin:i], true})
			begin, bytes = i, len(records[i].Body)
		}
	}
	if begin < cut {
		all = append(all, batch{records[begin:cut], true})
	}
	return append(all, batch{records[cut:], false})
}

// append appends a batch behind the sequence number last, and returns the one
// behind which the next one comes.
func (m *importer) append(ctx context.Context, to events.Run, last uint64, b batch) (uint64, error) {
	entries := make([]journal.Entry, len(b.records))
	for i, rec := range b.records {
		subject, err := events.ParseSubject(rec.Subject)
		if err != nil {
			return 0, err
		}
		subject.Run = to
		if b.asleep {
			subject.To, subject.Pool = events.Nobody, events.DefaultPool
		}
		entries[i] = journal.Entry{Subject: subject, Body: rec.Body}
	}
	end := events.Hash(b.records[len(b.records)-1].Body)
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

// unsure returns the calls of class once that a run was about to begin at its last record.
func (m *importer) unsure(ctx context.Context, a *arrival) ([]string, error) {
	last, err := m.codec.Decode(a.records[len(a.records)-1].Body)
	if err != nil || last.To != events.Acting && last.To != events.ParallelActing {
		return nil, nil // it is poison, or no call is open
	}
	store := runlog.New(runlog.Options{Log: m.from, Machine: m.o.Machine})
	run := store.Acquire(a.run)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return nil, err
	}
	var ids []string
	for _, call := range run.Memory().Control.Calls {
		if !call.Answered && call.Started == 0 && !call.Client && !call.Delegated() && !tool.Effect(call.Effect).Repeatable() {
			ids = append(ids, call.ID)
		}
	}
	return ids, nil
}

// resume starts work on a run again: what wakes its worker may lie among the
// events that wake nobody. A run that waits for somebody outside, is paused, or
// has ended stays as it is; unless it is fresh, so does one with work of which
// all has a delivery, since somebody may be at it. Calls that count as begun are
// noted in the same append. It reports whether the run was resumed.
func (m *importer) resume(ctx context.Context, to events.Run, fresh bool, begun []string) (resumed bool, err error) {
	run := m.store.Acquire(to)
	defer m.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return false, err
	}
	_, err = run.Commit(ctx, runlog.Stamp{Source: m.o.Source}, func(mem *reducer.Memory) (drafts []runlog.Draft, err error) {
		resumed = false
		if run.Terminal() || mem.Control.Poison != nil {
			return nil, nil
		}
		for _, id := range begun {
			if call := mem.Call(id); call != nil && !call.Answered && call.Started == 0 {
				drafts = append(drafts, runlog.Draft{Origin: mem.State, Payload: &events.ToolCallStarted{CallID: id}})
			}
		}
		due := len(run.Effects()) > 0 && fresh || stranded(mem, run.Effects())
		if resumed = due && !mem.Control.Paused; resumed {
			drafts = append(drafts, runlog.Draft{Origin: events.Control, Payload: &events.Resumed{By: events.By{Reason: "imported"}}})
		}
		return drafts, nil
	})
	return resumed && err == nil, err
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
