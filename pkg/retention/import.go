package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// Source is an export that is read back.
type Source interface {
	journal.Log
	Blobs
	// Runs returns the runs that it holds.
	Runs() []events.Run
}

// Target is where runs are imported.
type Target interface {
	journal.Log
	journal.Blobs
	journal.Tombstones
}

// ImportOptions say what is imported and how.
type ImportOptions struct {
	// Runs are imported, with the runs that they were forked from; none: all.
	// Their shards are the source's.
	Runs []events.Run
	// NoResume appends nothing to runs that have not ended.
	NoResume bool
	// Source names the importer in the events that it appends itself.
	Source string
	// Machine folds runs that have not ended; nil for the default one.
	Machine *reducer.Machine
}

// Fate is what became of a run.
type Fate string

// The fates of a run. A completed one was there in part, from an import that was
// cut off.
const (
	FateImported  Fate = "imported"
	FateCompleted Fate = "completed"
	FateSkipped   Fate = "skipped"
	FateRefused   Fate = "refused"
)

// ImportedRun says what became of one run.
type ImportedRun struct {
	Run    events.Run
	Fate   Fate
	Reason string
	// Seq is the source's record that the reason is about, 0 for none.
	Seq uint64
	// Events is how many events were appended, the resuming one too.
	Events int
	// Resumed says that work on it was started again.
	Resumed bool
}

// ErrRefused says that at least one run was refused, and so nothing imported.
var ErrRefused = errors.New("refused: nothing was imported")

// Import appends the source's runs to the target, byte for byte, each under the
// condition that nobody else writes it. Runs come behind those that they were
// forked from.
//
// First every run is held against the target, and if one is refused nothing is
// imported: ErrRefused. A run that is there with the same events is skipped, also
// if it went on since; one that is there with others is refused; one whose import
// was cut off is completed. A purged run is imported if it is the one that was
// purged, and its tombstone lifted when all of it is there.
//
// The last 1,000 events of a run go in as one batch, as they are. Earlier ones go
// in before that on subjects that wake nobody, so that no worker starts on a part
// of a run. A run that has not ended and wants something done is then resumed.
//
// Whether runs are legal is for the caller to verify; poisoned ones can be
// imported like others.
func Import(ctx context.Context, from Source, to Target, o ImportOptions) ([]ImportedRun, error) {
	m := &importer{
		from: from, to: to, o: o, codec: events.DefaultCodec(),
		store: runlog.New(runlog.Options{Log: to, Machine: o.Machine}),
	}
	runs := o.Runs
	if len(runs) == 0 {
		runs = from.Runs()
	}
	runs, _, err := lineage(ctx, from, m.codec, runs)
	if err != nil {
		return nil, err
	}
	results := make([]ImportedRun, len(runs))
	refused := false
	for i, run := range runs {
		if results[i], err = m.check(ctx, run); err != nil {
			return nil, err
		}
		refused = refused || results[i].Fate == FateRefused
	}
	if refused {
		return results, ErrRefused
	}
	for i := range results {
		if err := m.bring(ctx, &results[i]); err != nil {
			return results, fmt.Errorf("import run %s: %w", runs[i].ID, err)
		}
	}
	return results, nil
}

// importer is one import.
type importer struct {
	from  Source
	to    Target
	o     ImportOptions
	codec *events.Codec
	store *runlog.Store
}

// target returns where a run of the source goes.
func (m *importer) target(run events.Run) events.Run {
	return events.NewRun(run.Namespace, run.ID, m.to.Shards())
}

// read returns all records of a run.
func read(ctx context.Context, log journal.Log, run events.Run) ([]journal.Record, error) {
	var records []journal.Record
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	}
	return records, nil
}

// check decides a run's fate; it changes nothing.
func (m *importer) check(ctx context.Context, run events.Run) (ImportedRun, error) {
	result := ImportedRun{Run: run, Fate: FateImported}
	records, err := read(ctx, m.from, run)
	if err != nil {
		return result, err
	}
	there, err := read(ctx, m.to, m.target(run))
	if err != nil {
		return result, err
	}
	refuse := func(seq uint64, reason string) (ImportedRun, error) {
		result.Fate, result.Seq, result.Reason = FateRefused, seq, reason
		return result, nil
	}
	for _, rec := range records {
		if len(rec.Body) > journal.MaxBody {
			return refuse(rec.Seq, fmt.Sprintf("an event of %d bytes, at most %d are allowed", len(rec.Body), journal.MaxBody))
		}
	}
	for i := range min(len(records), len(there)) {
		if !bytes.Equal(records[i].Body, there[i].Body) {
			return refuse(records[i].Seq, fmt.Sprintf("the run is there already with another event %d", i+1))
		}
	}
	switch {
	case len(there) == 0:
		reason, err := m.checkPurged(ctx, run, records)
		if reason != "" {
			return refuse(records[len(records)-1].Seq, reason)
		}
		return result, err
	case len(there) >= len(records):
		result.Fate, result.Reason = FateSkipped, "it is there already"
	case !asleep(there):
		return refuse(records[len(there)].Seq, fmt.Sprintf("the run is there already with %d events, and may go on by itself", len(there)))
	default:
		result.Fate, result.Reason = FateCompleted, "an earlier import was cut off"
	}
	return result, nil
}

// checkPurged returns why a run may not come back in the place of a purged one.
func (m *importer) checkPurged(ctx context.Context, run events.Run, records []journal.Record) (string, error) {
	stone, err := m.to.Tombstone(ctx, m.target(run))
	if errors.Is(err, journal.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if stone.Events != uint64(len(records)) || stone.Last != events.Hash(records[len(records)-1].Body) {
		return fmt.Sprintf("a run of this name was purged, which had %d events and another end", stone.Events), nil
	}
	return "", nil
}

// asleep reports whether records are the beginning of an import: none of them
// wakes anybody.
func asleep(records []journal.Record) bool {
	for _, rec := range records {
		if s, err := events.ParseSubject(rec.Subject); err != nil || s.To != events.Nobody {
			return false
		}
	}
	return true
}

// bring imports a run that was not refused.
func (m *importer) bring(ctx context.Context, result *ImportedRun) error {
	if result.Fate == FateSkipped {
		return nil
	}
	records, err := read(ctx, m.from, result.Run)
	if err != nil {
		return err
	}
	if err := m.blobs(ctx, records); err != nil {
		return err
	}
	to := m.target(result.Run)
	there, err := read(ctx, m.to, to)
	if err != nil {
		return err
	}
	var last uint64
	if len(there) > 0 {
		last = there[len(there)-1].Seq
	}
	skip := len(there)
	for _, batch := range batches(records) {
		if skip >= len(batch.records) {
			skip -= len(batch.records)
			continue
		}
		batch.records, skip = batch.records[skip:], 0
		if last, err = m.append(ctx, to, last, batch); err != nil {
			return err
		}
		result.Events += len(batch.records)
	}
	if err := m.to.DeleteTombstone(ctx, to); err != nil {
		return err
	}
	if m.o.NoResume {
		return nil
	}
	if result.Resumed, err = m.resume(ctx, to); result.Resumed {
		result.Events++
	}
	return err
}

// blobs stores the large results that records refer to, as far as the source has
// them. They are there before anybody can ask for them.
func (m *importer) blobs(ctx context.Context, records []journal.Record) error {
	for _, rec := range records {
		for _, ref := range refsOf(m.codec, rec.Body) {
			data, err := m.from.Blob(ctx, ref)
			if errors.Is(err, journal.ErrNotFound) {
				continue // it was missing when it was exported, which said so
			}
			if err != nil {
				return err
			}
			if err := m.putBlob(ctx, ref, data); err != nil {
				return err
			}
		}
	}
	return nil
}
