package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/history/notes"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Bus is what a purge needs of a journal.
type Bus interface {
	journal.Log
	journal.Blobs
	ports.Snapshots
	kv.Store
	ports.Purger
}

// DefaultGrace is how long after its tombstone a run is removed: longer than an
// append takes (5 s), so that a start that looked before the tombstone was there
// still meets the run.
const DefaultGrace = 10 * time.Second

// PurgeOptions say what is purged. A run is only ever purged when it has ended.
type PurgeOptions struct {
	// Runs are purged, or none of them if one cannot be.
	Runs []events.Run
	// EndedBefore purges what ended before that time. Zero: no such limit.
	EndedBefore time.Time
	// KeepBytes purges what ended first until subjects and bodies of all runs that
	// stay have at most so many bytes. 0: no such limit.
	KeepBytes int64
	// Namespace is the only one in which the limits apply; empty: all.
	Namespace string
	// ParentsOfKept also purges runs that runs which stay were forked from. Those
	// forks cannot be folded then, until the parent is imported again.
	ParentsOfKept bool
	// Archive stores what write exports, for good, before anything is removed.
	// Nil: it is not stored.
	Archive func(write func(transfer.Sink) error) error
	// DryRun removes nothing.
	DryRun bool
	// Grace is the time between tombstones and removal. Default [DefaultGrace].
	Grace time.Duration
	// Clock tells the time of tombstones. Default time.Now.
	Clock func() time.Time
}

// PurgedRun is a run that was purged, or would be.
type PurgedRun struct {
	Run    string       `json:"run"`
	Space  string       `json:"namespace"`
	State  events.State `json:"state"`
	Ended  time.Time    `json:"ended"`
	Events uint64       `json:"events"`
	Bytes  int64        `json:"bytes"`
}

// KeptRun is a run that fell under a limit and was kept all the same.
type KeptRun struct {
	Run    string `json:"run"`
	Space  string `json:"namespace"`
	Reason string `json:"reason"`
}

// Purged says what a purge removed, or would remove.
type Purged struct {
	Runs []PurgedRun `json:"runs"`
	Kept []KeptRun   `json:"kept"`
	// Events and Bytes are those of the runs.
	Events uint64 `json:"events"`
	Bytes  int64  `json:"bytes"`
	// Blobs counts the large results that nothing in the log refers to any more.
	// Young ones are left, see [ports.BlobSafe]: a worker may be about to refer
	// to them.
	Blobs     int   `json:"blobs"`
	BlobBytes int64 `json:"blob_bytes"`
	BlobsLeft int   `json:"blobs_left"`
	Snapshots int   `json:"snapshots"`
	// Missing is what the archive lacks since the log does not have it either.
	Missing []transfer.Missing `json:"-"`
}

// ErrNotPurged is wrapped by the reason why a run that was named cannot be purged.
var ErrNotPurged = errors.New("nothing was purged")

// Purge removes runs that have ended, with their snapshots and the large results
// that only they refer to. It reads the whole log once to know what stays. In this
// order: the archive, the tombstones, the grace, the events, the rest; so what was
// cut off can be done again, and nothing is removed that the archive does not have.
// What was forked by the end of the grace stays, and loses its tombstone again.
//
// One thing is not prevented: a gateway that looks for a tombstone, is stopped for
// longer than the grace, and then appends the start.
func Purge(ctx context.Context, bus Bus, o PurgeOptions) (Purged, error) {
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	p := &purge{bus: bus, o: o, codec: new(events.Codec), store: runlog.New(runlog.Options{Log: bus})}
	if err := p.survey.advance(ctx, bus, p.codec); err != nil {
		return p.done, err
	}
	if err := p.choose(ctx); err != nil {
		return p.done, err
	}
	p.count()
	if o.DryRun || len(p.chosen) == 0 {
		return p.done, p.countRest(ctx)
	}
	return p.done, p.remove(ctx)
}

// purge is one purge. chosen are forks before what they were forked from.
type purge struct {
	bus    Bus
	o      PurgeOptions
	codec  *events.Codec
	store  *runlog.Store
	survey survey
	chosen []*entry
	done   Purged
}

func (p *purge) count() {
	p.done.Runs, p.done.Events, p.done.Bytes = []PurgedRun{}, 0, 0
	for _, e := range p.chosen {
		p.done.Runs = append(p.done.Runs, PurgedRun{
			Run: e.run.ID, Space: e.run.Namespace, State: e.state, Ended: e.at, Events: e.events, Bytes: e.bytes,
		})
		p.done.Events += e.events
		p.done.Bytes += e.bytes
	}
}

// countRest counts what a purge would remove beside the runs.
func (p *purge) countRest(ctx context.Context) error {
	for _, ref := range p.unreferenced() {
		p.done.Blobs++
		p.done.BlobBytes += int64(ref.Size)
	}
	snapshots, err := p.snapshots(ctx)
	p.done.Snapshots = len(snapshots)
	return err
}

// unreferenced returns the large results of the chosen runs that no other run
// refers to. They are stored by digest, so several runs may share one.
func (p *purge) unreferenced() []events.Ref {
	going := map[events.Run]bool{}
	for _, e := range p.chosen {
		going[e.run] = true
	}
	type object struct{ bucket, key string }
	seen := map[object]bool{}
	for run, e := range p.survey.runs {
		for _, ref := range e.refs {
			if !going[run] {
				seen[object{ref.Bucket, ref.Key}] = true
			}
		}
	}
	var refs []events.Ref
	for _, e := range p.chosen {
		for _, ref := range e.refs {
			if at := (object{ref.Bucket, ref.Key}); !seen[at] {
				seen[at] = true
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// snapshots returns the chosen runs that have a snapshot.
func (p *purge) snapshots(ctx context.Context) ([]events.Run, error) {
	all, err := p.bus.Snapshotted(ctx)
	if err != nil {
		return nil, err
	}
	has := map[events.Run]bool{}
	for _, run := range all {
		has[run] = true
	}
	var runs []events.Run
	for _, e := range p.chosen {
		if has[e.run] {
			runs = append(runs, e.run)
		}
	}
	return runs, nil
}

func (p *purge) remove(ctx context.Context) error {
	if err := p.archive(ctx); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	now := p.o.Clock().UTC()
	for _, e := range p.chosen {
		stone := tombstones.Tombstone{Run: e.run.ID, Namespace: e.run.Namespace, PurgedAt: now, Events: e.events, Last: e.hash}
		if err := tombstones.Put(ctx, p.bus, e.run, stone); err != nil {
			return err
		}
	}
	if !retry.Wait(ctx, p.o.Grace) {
		return ctx.Err()
	}
	if err := p.lookAgain(ctx); err != nil {
		return err
	}
	if err := p.removeNotes(ctx); err != nil { // first: nobody finds them once the events are gone
		return err
	}
	if err := p.removeEvents(ctx); err != nil {
		return err
	}
	return errors.Join(p.removeSnapshots(ctx), p.removeBlobs(ctx, now))
}

// lookAgain keeps, after the grace, what was imported or forked meanwhile: nobody
// forks a run behind its tombstone, but a fork may have been on its way.
func (p *purge) lookAgain(ctx context.Context) error {
	if err := p.survey.advance(ctx, p.bus, p.codec); err != nil {
		return err
	}
	err := p.sift(func(e *entry) (string, error) {
		_, err := tombstones.Get(ctx, p.bus, e.run)
		if errors.Is(err, journal.ErrNotFound) {
			return "it was imported while it was being purged", nil
		}
		return "", err
	})
	if err == nil && !p.o.ParentsOfKept {
		forks := p.forkedByStaying()
		err = p.sift(func(e *entry) (string, error) {
			fork, forked := forks[e]
			if !forked {
				return "", nil
			}
			return "run " + fork.ID + " was forked from it while it was being purged", tombstones.Delete(ctx, p.bus, e.run)
		})
	}
	p.count()
	return err
}

// sift keeps the chosen runs for which there is a reason.
func (p *purge) sift(reason func(*entry) (string, error)) error {
	var chosen []*entry
	for _, e := range p.chosen {
		why, err := reason(e)
		if err != nil {
			return err
		}
		if why != "" {
			p.keep(e, why)
			continue
		}
		chosen = append(chosen, e)
	}
	p.chosen = chosen
	return nil
}

// archive exports the chosen runs, those first that others were forked from.
func (p *purge) archive(ctx context.Context) error {
	if p.o.Archive == nil {
		return nil
	}
	runs := make([]events.Run, len(p.chosen))
	for i, e := range p.chosen {
		runs[i] = e.run
	}
	return p.o.Archive(func(sink transfer.Sink) error {
		exported, err := transfer.Export(ctx, p.bus, sink, transfer.ExportOptions{Runs: runs, Blobs: p.bus})
		p.done.Missing = exported.Missing
		return err
	})
}

func (p *purge) removeNotes(ctx context.Context) error {
	going := map[[2]string]bool{}
	for _, e := range p.chosen {
		going[[2]string{e.run.Namespace, e.run.ID}] = true
	}
	return notes.Remove(ctx, p.bus, func(run events.Run) bool { return going[[2]string{run.Namespace, run.ID}] })
}

func (p *purge) removeSnapshots(ctx context.Context) error {
	runs, err := p.snapshots(ctx)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if err := p.bus.DeleteSnapshot(ctx, run); err != nil {
			return err
		}
		p.done.Snapshots++
	}
	return nil
}

// removeBlobs removes what nothing refers to, after a look at what was appended
// meanwhile.
func (p *purge) removeBlobs(ctx context.Context, now time.Time) error {
	refs := p.unreferenced()
	if len(refs) == 0 {
		return nil
	}
	if err := p.survey.advance(ctx, p.bus, p.codec); err != nil {
		return err
	}
	left := len(refs)
	for _, ref := range p.unreferenced() {
		removed, err := p.bus.DeleteBlob(ctx, ref, now.Add(-ports.BlobSafe))
		if err != nil {
			return err
		}
		if removed {
			left--
			p.done.Blobs++
			p.done.BlobBytes += int64(ref.Size)
		}
	}
	p.done.BlobsLeft = left
	return nil
}

// removeEvents removes the records of the chosen runs. A server may need a time for
// each run that grows with the whole log, so those at the front of a shard, before
// the first record that stays, go at once. A run is never there in part, and a fork
// goes before what it was forked from, also if this is cut off: so runs that reach
// over the front, forks and their parents go before that and one by one, and what
// stands behind it goes last, since it may take long.
func (p *purge) removeEvents(ctx context.Context) error {
	fronts, err := p.fronts(ctx)
	if err != nil {
		return err
	}
	due, related := make([]bool, len(fronts)), p.related()
	var behind []*entry
	for _, e := range p.chosen {
		switch front := fronts[e.run.Shard]; {
		case !related[e] && e.seq < front:
			due[e.run.Shard] = true
		case !related[e] && e.first > front:
			behind = append(behind, e)
		default:
			if err := p.removeRun(ctx, e); err != nil {
				return err
			}
		}
	}
	for shard, front := range fronts {
		if !due[shard] {
			continue
		}
		if _, err := p.bus.Trim(ctx, shard, front); err != nil {
			return err
		}
	}
	for _, e := range behind {
		if err := p.removeRun(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (p *purge) removeRun(ctx context.Context, e *entry) error {
	_, err := p.bus.Purge(ctx, e.run, e.seq)
	return err
}

// fronts returns the number of each shard's first record that stays, or of the one
// that comes next. What is appended meanwhile has a larger one. It is 0 where the
// survey has not seen every record, so that it is not known what stands there.
func (p *purge) fronts(ctx context.Context) ([]uint64, error) {
	going := make(map[*entry]bool, len(p.chosen))
	for _, e := range p.chosen {
		going[e] = true
	}
	fronts := make([]uint64, len(p.survey.end))
	for shard, end := range p.survey.end {
		n, last, err := p.bus.Records(ctx, shard)
		switch first := p.survey.ofNoRun[shard]; {
		case err != nil:
			return nil, err
		case n != p.survey.records[shard]+(last-end):
		case first > 0:
			fronts[shard] = first
		default:
			fronts[shard] = end + 1
		}
	}
	for _, e := range p.survey.runs {
		if !going[e] {
			fronts[e.run.Shard] = min(fronts[e.run.Shard], e.first)
		}
	}
	return fronts, nil
}

// related returns the chosen runs that are forks, and what they were forked from.
func (p *purge) related() map[*entry]bool {
	all := map[*entry]bool{}
	for _, e := range p.chosen {
		if line := p.survey.line(e.run); len(line) > 1 {
			for _, relative := range line {
				all[relative] = true
			}
		}
	}
	return all
}
