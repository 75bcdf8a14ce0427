package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
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
	kv.Store
	journal.Timers
}

// ImportOptions say what is imported and how.
type ImportOptions struct {
	// Runs are imported, with the runs that they were forked from; none: all.
	// Their shards are the source's. Those that they were forked from and that are
	// not among them come as ancestors, see [Import].
	Runs []events.Run
	// NoResume appends nothing to runs that have not ended, and sets no timers.
	NoResume bool
	// CallsMayHaveRun says that runs may have gone on elsewhere behind their last record. Then
	// a call of class once that was about to begin counts as begun: its worker ends it with an
	// unknown outcome, or asks a human, as after a lost worker.
	CallsMayHaveRun bool
	// Hold says of a run that has not ended whether it comes back paused, until somebody lets it
	// go on; nil: none does. The memory must not be changed.
	Hold func(ctx context.Context, run events.Run, mem *reducer.Memory) (bool, error)
	// Orphans imports forks whose parent is neither in the source nor in the target, too.
	// None of their events wakes anybody: nobody can read them without the parent.
	Orphans bool
	// Entire says that the target has little else than the source's runs: then it is read once, in the
	// beginning, and not for each run.
	Entire bool
	// Parallel is how many runs are imported at once; 0: 1. With Size, which says how many bytes a run of
	// the source has, they are fewer if they have more than 64 MiB together.
	Parallel int
	Size     func(events.Run) int64
	// Source names the importer in the events that it appends itself.
	Source string
	// Machine folds runs that have not ended; nil for the default one.
	Machine *reducer.Machine
}

// Fate is what became of a run.
type Fate string

// The fates of a run. A completed one was there in part, from an import that was
// cut off or as an ancestor.
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
	// fork says that it was forked from another run, settled that nothing is to be done.
	fork, settled bool
	// Begun is how many calls count as begun, see [ImportOptions].CallsMayHaveRun.
	Begun int
	// Held says that an import paused it, this one or one before.
	Held bool
	// Orphan says that it is a fork without its parent.
	Orphan bool
}

// ErrRefused says that at least one run was refused, and so nothing imported.
var ErrRefused = errors.New("refused: nothing was imported")

// Import appends the source's runs to the target, byte for byte, each under the
// condition that nobody else writes it. Runs come behind those that they were
// forked from.
//
// First every run is held against the target, and if one is refused nothing is
// imported: ErrRefused. A run that is there with the same events is skipped, also
// if it went on since; one that is there with others is refused, as is a fork whose
// parent is neither in the source nor in the target. A run of which the target has
// the beginning, and nobody works on it, is completed. A purged run is imported if
// it is the one that was purged, and its tombstone lifted when all of it is there.
//
// The last 1,000 events of a run go in as one batch, as they are. Earlier ones go
// in before that on subjects that wake nobody, so that no worker starts on a part
// of a run. What the import itself says of a run, such as that it is paused, is in the last batch:
// nobody can read the run without it. A run that has not ended gets timers that fire soon, by which a gateway
// sets the right ones, and is resumed if it wants something done.
//
// A run that has not ended and came into the export for its forks alone has no life
// of its own in the target: none of its events wakes anybody, nothing is appended
// and no timer set, and a tombstone of it stays. An import of the whole run later
// completes it.
//
// Whether runs are legal is for the caller to verify; poisoned ones can be
// imported like others.
func Import(ctx context.Context, from Source, to Target, o ImportOptions) ([]ImportedRun, error) {
	m := &importer{
		from: from, to: to, o: o, codec: new(events.Codec),
		store: runlog.New(runlog.Options{Log: to, Machine: o.Machine}),
	}
	runs := o.Runs
	if len(runs) == 0 {
		runs = from.Runs()
	}
	m.wanted = runs
	runs, _, err := withAncestors(ctx, from, m.codec, runs) // what is missing may be in the target
	if err != nil {
		return nil, err
	}
	if o.Entire {
		if m.known, err = m.survey(ctx); err != nil {
			return nil, err
		}
	}
	results := make([]ImportedRun, len(runs))
	var forks, others []int
	for i := range runs {
		others = append(others, i)
	}
	err = m.each(ctx, runs, others, func(ctx context.Context, i int) (err error) {
		results[i], err = m.check(ctx, runs[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(results, func(r ImportedRun) bool { return r.Fate == FateRefused }) {
		return results, ErrRefused
	}
	others = slices.DeleteFunc(others, func(i int) bool {
		if results[i].fork {
			forks = append(forks, i)
		}
		return results[i].fork
	})
	bring := func(ctx context.Context, i int) error {
		if err := m.bring(ctx, &results[i]); err != nil {
			return fmt.Errorf("import run %s: %w", runs[i].ID, err)
		}
		return nil
	}
	if err := m.each(ctx, runs, others, bring); err != nil {
		return results, err
	}
	for _, i := range forks { // each comes behind its parent
		if err := bring(ctx, i); err != nil {
			return results, err
		}
	}
	return results, nil
}

// each calls fn for each number of a run, several at once, until one fails.
func (m *importer) each(ctx context.Context, runs []events.Run, numbers []int, fn func(ctx context.Context, i int) error) error {
	queue := make(chan int, len(numbers))
	for _, i := range numbers {
		queue <- i
	}
	close(queue)
	room := semaphore.NewWeighted(maxBatchBytes)
	g := logwalk.NewGroup(ctx)
	for range max(1, m.o.Parallel) {
		g.Go(func(ctx context.Context) error {
			for i := range queue {
				size := m.size(runs[i])
				if err := room.Acquire(ctx, size); err != nil {
					return err
				}
				err := fn(ctx, i)
				room.Release(size)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// size returns how much of the room for runs in memory a run takes.
func (m *importer) size(run events.Run) int64 {
	if m.o.Size == nil {
		return 0
	}
	return min(m.o.Size(run), maxBatchBytes)
}

// importer is one import.
type importer struct {
	from  Source
	to    Target
	o     ImportOptions
	codec *events.Codec
	store *runlog.Store
	// wanted are the runs that are imported for their own sake.
	wanted []events.Run
	// known is what the target has, as far as it was surveyed.
	known *survey
}

// target returns where a run of the source goes.
func (m *importer) target(run events.Run) events.Run {
	return events.NewRun(run.Namespace, run.ID, m.to.Shards())
}

// read returns all records of a run but the strays, and the sequence number of the
// last one of all.
func read(ctx context.Context, log journal.Log, run events.Run) (records []journal.Record, last uint64, err error) {
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil {
			return nil, 0, err
		}
		if last = rec.Seq; !notOfRun(rec) {
			records = append(records, rec)
		}
	}
	return records, last, nil
}

// arrival is a run of the source and what the target has of it.
type arrival struct {
	run            events.Run
	records, there []journal.Record
	// last is the sequence number behind which the target is appended to.
	last uint64
	// dormant says that the run has no life of its own in the target.
	dormant bool
	// added are the events of the import's own: calls that count as begun, and a pause.
	added []journal.Entry
	// stone is the target's tombstone of it, nil if it has none.
	stone *tombstones.Tombstone
}

// compare reads a run from both sides.
func (m *importer) compare(ctx context.Context, run events.Run) (*arrival, error) {
	a := &arrival{run: run}
	var err error
	if a.records, _, err = read(ctx, m.from, run); err != nil {
		return nil, err
	}
	if m.known.has(m.target(run)) {
		if a.there, a.last, err = read(ctx, m.to, m.target(run)); err != nil {
			return nil, err
		}
	}
	head := a.records[len(a.records)-1]
	a.dormant = !ends(head.Subject) && (asleep(a.records) || !slices.Contains(m.wanted, run))
	if !m.known.buried(m.target(run)) {
		return a, nil
	}
	stone, err := tombstones.Get(ctx, m.to, m.target(run))
	switch {
	case err == nil:
		a.stone = &stone
	case !errors.Is(err, journal.ErrNotFound):
		return nil, err
	}
	return a, nil
}

// glance reads the first record of a run that the target does not have.
func (m *importer) glance(ctx context.Context, run events.Run) (*arrival, error) {
	rec, err := first(ctx, m.from, run)
	return &arrival{run: run, records: []journal.Record{rec}}, err
}

// buried reports whether the tombstone is that of the run which these records are.
func (a *arrival) buried(records []journal.Record) bool {
	n := a.stone.Events
	return 0 < n && n <= uint64(len(records)) && events.Hash(records[n-1].Body) == a.stone.Last
}

// check decides a run's fate; it changes nothing.
func (m *importer) check(ctx context.Context, run events.Run) (ImportedRun, error) {
	result := ImportedRun{Run: run, Fate: FateImported}
	look := m.compare
	if m.known != nil && !m.known.has(m.target(run)) && !m.known.buried(m.target(run)) && m.o.Size != nil && m.o.Size(run) <= int64(m.to.MaxBody()) {
		look = m.glance // there is nothing to compare it with, and none of its events is too large
	}
	a, err := look(ctx, run)
	if err != nil {
		return result, err
	}
	records, there := a.records, a.there
	refuse := func(seq uint64, reason string) (ImportedRun, error) {
		result.Fate, result.Seq, result.Reason = FateRefused, seq, reason
		return result, nil
	}
	for _, rec := range records {
		if most := m.to.MaxBody(); len(rec.Body) > most {
			return refuse(rec.Seq, fmt.Sprintf("an event of %d bytes, at most %d are allowed", len(rec.Body), most))
		}
	}
	result.fork = forkOf(m.codec, records[0].Body) != nil
	switch reason, err := m.checkParent(ctx, run, records[0]); {
	case err != nil:
		return result, err
	case reason != "" && m.o.Orphans:
		result.Orphan, a.dormant = true, true
	case reason != "":
		return refuse(records[0].Seq, reason)
	}
	for i := range min(len(records), len(there)) {
		if !bytes.Equal(records[i].Body, there[i].Body) {
			return refuse(records[i].Seq, fmt.Sprintf("the run is there already with another event %d", i+1))
		}
	}
	switch {
	case a.isThere():
		result.Fate, result.Reason = FateSkipped, "it is there already"
		result.settled = a.stone == nil && (m.o.NoResume || ends(there[len(there)-1].Subject))
	case !asleep(there):
		return refuse(records[len(there)].Seq, fmt.Sprintf("the run is there already with %d events, and may go on by itself", len(there)))
	case a.stone != nil && !a.buried(records) && (!a.dormant || a.stone.Events <= uint64(len(records))):
		return refuse(records[len(records)-1].Seq, fmt.Sprintf("a run of this name was purged, which had %d events and another end", a.stone.Events))
	case len(there) > 0:
		result.Fate, result.Reason = FateCompleted, "only its beginning was there"
	}
	return result, nil
}

// checkParent returns why a run cannot be read in the target for want of what it was
// forked from, empty if it can.
func (m *importer) checkParent(ctx context.Context, run events.Run, rec journal.Record) (string, error) {
	fork := forkOf(m.codec, rec.Body)
	if fork == nil {
		return "", nil
	}
	parent := events.NewRun(run.Namespace, fork.Run, m.from.Shards())
	records, _, err := read(ctx, m.from, parent)
	if err == nil && fork.At > uint64(len(records)) {
		records, _, err = read(ctx, m.to, m.target(parent))
	}
	switch {
	case err != nil:
		return "", err
	case fork.At > uint64(len(records)):
		return fmt.Sprintf("it was forked from event %d of run %s, which is neither in the export nor in the log: import that one first", fork.At, fork.Run), nil
	case fork.At == 0 || events.Hash(records[fork.At-1].Body) != fork.Hash:
		return fmt.Sprintf("it was forked from another event %d of run %s than is there", fork.At, fork.Run), nil
	}
	return "", nil
}

// isThere reports whether the target has the whole run.
func (a *arrival) isThere() bool {
	return len(a.there) >= len(a.records) && (a.dormant || len(a.there) > len(a.records) || !asleep(a.there))
}

// asleep reports whether records are the beginning of an import, or an ancestor: none
// of them wakes anybody.
func asleep(records []journal.Record) bool {
	for _, rec := range records {
		if s, err := events.ParseSubject(rec.Subject); err != nil || s.To != events.Nobody {
			return false
		}
	}
	return true
}

// bringNow imports a run that was not refused. What an earlier import that was cut off
// left to be done for a run that is there is done too.
func (m *importer) bringNow(ctx context.Context, result *ImportedRun) error {
	a, err := m.compare(ctx, result.Run)
	if err != nil {
		return err
	}
	if a.isThere() {
		// An import that was cut off had its last events on the way when this one looked first.
		result.Fate = FateSkipped
	}
	a.dormant = a.dormant || result.Orphan
	if result.Fate != FateSkipped && !a.dormant {
		if result.Begun, err = m.add(ctx, a); err != nil {
			return err
		}
	}
	if result.Fate == FateSkipped && (a.dormant || asleep(a.there)) {
		return nil
	}
	whole := a.there // what the target has in the end, as far as this import knows
	if result.Fate != FateSkipped {
		if err := m.blobs(ctx, a.records); err != nil {
			return err
		}
		if result.Events, err = m.appendAll(ctx, a); err != nil {
			return err
		}
		whole = a.records
	}
	if a.dormant {
		return nil
	}
	lift := a.stone != nil && a.buried(whole)
	if lift {
		if err := tombstones.Delete(ctx, m.to, m.target(a.run)); err != nil {
			return err
		}
	}
	if m.o.NoResume || ends(whole[len(whole)-1].Subject) {
		return nil
	}
	if result.Fate == FateSkipped { // before a new run's last batch they were set
		if err := m.arm(ctx, m.target(a.run)); err != nil {
			return err
		}
	}
	// While a tombstone stood, the run had not been resumed.
	if err = m.resume(ctx, result, lift || result.Fate != FateSkipped); result.Resumed {
		result.Events++
	}
	return err
}

// appendAll appends what the target lacks of a run, and returns how many events that
// was.
func (m *importer) appendAll(ctx context.Context, a *arrival) (appended int, err error) {
	to, last, skip := m.target(a.run), a.last, len(a.there)
	for _, batch := range batches(a.records, maxBatch-len(a.added)) {
		if !batch.asleep && !a.dormant && !m.o.NoResume && !ends(batch.records[len(batch.records)-1].Subject) {
			if err := m.arm(ctx, to); err != nil {
				return appended, err
			}
		}
		batch.asleep = batch.asleep || a.dormant
		there := min(skip, len(batch.records))
		batch.records, skip = batch.records[there:], skip-there
		entries, err := batch.entries(to)
		if err != nil {
			return appended, err
		}
		if batch.last { // nobody may read the run without them
			entries = append(entries, a.added...)
		}
		if len(entries) == 0 {
			continue
		}
		if last, err = m.append(ctx, to, last, entries); err != nil {
			return appended, err
		}
		appended += len(entries)
	}
	return appended, nil
}

// armIn is when the timers of an imported run fire: later than its last batch can
// come, since what a gateway does about a part of a run cannot be taken back.
const armIn = time.Minute

// arm sets the timers of a run. They carry nothing, so that the gateway reads the
// run and sets those that it needs.
func (m *importer) arm(ctx context.Context, to events.Run) error {
	at := m.store.Now().Add(armIn)
	for _, kind := range ports.TimerKinds() {
		var err error
		for range appendTries {
			if err = m.to.SetTimer(ctx, to, kind, at, nil); !errors.Is(err, journal.ErrUnknownOutcome) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// blobs stores the large results that records refer to, as far as the source has
// them. They are there before anybody can ask for them.
func (m *importer) blobs(ctx context.Context, records []journal.Record) error {
	for _, rec := range records {
		for _, ref := range recordline.Refs(m.codec, rec.Body) {
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
