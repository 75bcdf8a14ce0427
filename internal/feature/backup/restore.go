package backup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Target is where a backup is restored.
type Target interface {
	transfer.Target
	ports.Archive
}

// RestoreOptions say how a backup is restored.
type RestoreOptions struct {
	// CallsMayRunAgain says that nothing has run behind the end of the backup. Else a call of
	// class once that was about to begin there ends with an unknown outcome.
	CallsMayRunAgain bool
	// Hold says which runs that have not ended come back paused; empty: none.
	Hold Hold
	// Diverged restores runs, too, whose events do not follow from one another.
	Diverged bool
	// Source names the process in the events that it appends.
	Source string
	// Machine folds the runs; nil: the built-in one.
	Machine *reducer.Machine
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Hold says which runs that have not ended come back paused.
type Hold string

// The values of [Hold] but for the empty one.
const (
	// HoldOnce holds runs with a tool of class once, or with an agent to call that has one.
	HoldOnce Hold = "once"
	HoldAll  Hold = "all"
	HoldNone Hold = "none"
)

// Restored says what was restored, over all calls of [Restore] for this backup.
type Restored struct {
	Backup string    `json:"backup"`
	Until  time.Time `json:"until"`
	// Already says that an earlier call has restored it, so that nothing was done.
	Already bool   `json:"already"`
	Runs    int    `json:"runs"`
	Events  uint64 `json:"events"`
	Objects int    `json:"objects"`
	Values  int    `json:"values"`
	// Waiting are the runs that wait for a human or a user, Resumed those that got a Resumed.
	Waiting int `json:"waiting"`
	Resumed int `json:"resumed"`
	// Held are the runs that are paused until somebody lets them go on.
	Held []HeldRun `json:"held"`
	// Unknown are the calls of class once whose outcome is unknown.
	Unknown []Call `json:"unknown_calls"`
	// Orphans are forks whose parent the backup does not have; nobody works on them.
	Orphans []string `json:"orphans"`
	// Removed are runs that were purged, and so are not restored.
	Removed int           `json:"removed"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

// HeldRun is a run that a restore paused.
type HeldRun struct {
	Run       string `json:"run"`
	Namespace string `json:"namespace"`
}

// Call counts a run's calls whose outcome is unknown.
type Call struct {
	Run       string `json:"run"`
	Namespace string `json:"namespace"`
	Calls     int    `json:"calls"`
}

// notes has the note of the last restore into a bus. It is not in the backups of that bus.
var notes = kv.Bucket{Name: "restored", About: "what was restored into this bus", Keys: "last"}

// note is what a bus keeps of a restore, so that one that was cut off goes on.
type note struct {
	Backup string `json:"backup"`
	// Increment is the last one of the backup: it may have grown since.
	Increment int       `json:"increment"`
	Until     time.Time `json:"until"`
	Began     time.Time `json:"began"`
	Stage     stage     `json:"stage"`
	// Again is [RestoreOptions].CallsMayRunAgain.
	Again bool `json:"calls_may_run_again"`
	// Hold is [RestoreOptions].Hold; empty: a build that held nothing began it.
	Hold Hold `json:"hold,omitempty"`
}

// holds returns which runs the restore holds.
func (n note) holds() Hold { return cmp.Or(n.Hold, HoldNone) }

// stage is how far a restore is: values are being put, then runs, and then it is done.
type stage string

const (
	stageValues stage = "values"
	stageRuns   stage = "runs"
	stageDone   stage = "done"
)

// ErrNotEmpty says that a bus has something already.
var ErrNotEmpty = errors.New("a backup is restored into an empty bus only")

// importers is how many runs are restored at once: enough to fill a batch of the log with short runs.
const importers = 256

// Verify folds every run of a backup that was opened.
func Verify(ctx context.Context, a *Archive, machine *reducer.Machine) (*verify.Report, error) {
	return verify.Log(ctx, a, machine, verify.Options{All: true})
}

// Restore writes a backup into an empty bus: first values and objects, then the runs, each under
// the conditions of an import, and last what starts runs. A restore of the same backup and time that was cut off goes on.
// Before anything is written, all of it is verified; nothing is written if a run diverges.
func Restore(ctx context.Context, a *Archive, to Target, o RestoreOptions) (Restored, error) {
	if o.Machine == nil {
		o.Machine = reducer.NewMachine(reducer.MachineOptions{})
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	began := o.Now()
	r := &restorer{a: a, to: to, o: o, done: Restored{Backup: a.manifest.ID, Until: a.until, Removed: a.gone, Held: []HeldRun{}, Unknown: []Call{}, Orphans: []string{}}}
	report, err := Verify(ctx, a, o.Machine)
	if err != nil {
		return r.done, err
	}
	if n := report.Outcomes[verify.Diverged]; n > 0 && !o.Diverged {
		return r.done, fmt.Errorf("%d runs diverge, run %s at event %d: %s: nothing was restored", n, firstDiverged(report).Run, firstDiverged(report).N, firstDiverged(report).Reason)
	}
	if err := r.begin(ctx); err != nil {
		return r.done, err
	}
	if r.note.Stage == stageDone {
		r.done.Already = true
		return r.done, nil
	}
	early := func(ctx context.Context) error { return r.values(ctx, false) }
	late := func(ctx context.Context) error { return r.values(ctx, true) }
	for _, step := range []func(context.Context) error{early, r.objects, r.runs, late} {
		if err := step(ctx); err != nil {
			return r.done, err
		}
	}
	if err := r.write(ctx, stageDone); err != nil {
		return r.done, err
	}
	r.done.Elapsed = o.Now().Sub(began)
	return r.done, nil
}

func firstDiverged(report *verify.Report) verify.Finding {
	for _, f := range report.Findings {
		if f.Outcome == verify.Diverged {
			return f
		}
	}
	return verify.Finding{}
}

// restorer is one call of Restore.
type restorer struct {
	a    *Archive
	to   Target
	o    RestoreOptions
	note note
	done Restored
}

// begin checks that the bus is empty, or has a part of this restore.
func (r *restorer) begin(ctx context.Context) error {
	want := note{Backup: r.a.manifest.ID, Increment: r.a.manifest.last().Number, Until: r.a.until.UTC(), Began: r.o.Now().UTC(), Stage: stageValues, Again: r.o.CallsMayRunAgain, Hold: r.o.Hold}
	has, err := r.to.Get(ctx, notes, notes.Keys)
	if err == nil {
		err = json.Unmarshal(has.Value, &r.note)
	}
	switch {
	case errors.Is(buckets.OrNone(err), journal.ErrNotFound):
		if err := r.checkEmpty(ctx); err != nil {
			return err
		}
		r.note = want
		return r.write(ctx, stageValues)
	case err != nil:
		return err
	case r.note.Backup == want.Backup && r.note.Increment == want.Increment && r.note.Until.Equal(want.Until) && r.note.Again == want.Again && r.note.holds() == want.holds():
		return nil
	}
	fate := "was cut off: repeat that one, or begin with a new bus"
	if r.note.Stage == stageDone {
		fate = "is complete"
	}
	return fmt.Errorf("%w: a restore into this one, of backup %s as of its increment %d (until %s, calls may run again: %t, hold %s), began at %s and %s",
		ErrNotEmpty, r.note.Backup, r.note.Increment, r.note.Until.Format(time.RFC3339Nano), r.note.Again, r.note.holds(), r.note.Began.Format(time.RFC3339), fate)
}

// offersBucket has what live gateways remember by themselves.
const offersBucket = "KV_offers"

func (r *restorer) checkEmpty(ctx context.Context) error {
	for shard := range r.to.Shards() {
		last, err := r.to.Last(ctx, shard)
		if err != nil {
			return err
		}
		if last > 0 {
			return fmt.Errorf("%w: shard %d has had %d events", ErrNotEmpty, shard, last)
		}
	}
	all, err := r.to.Buckets(ctx)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Messages > 0 && b.Name != offersBucket && strings.HasPrefix(b.Name, "KV_") {
			return fmt.Errorf("%w: bucket %s has %d values", ErrNotEmpty, b.Name, b.Messages)
		}
	}
	return nil
}

func (r *restorer) write(ctx context.Context, s stage) error {
	r.note.Stage = s
	text, err := json.Marshal(r.note)
	if err != nil {
		return err
	}
	_, err = r.to.Put(ctx, notes, kv.Item{Key: notes.Keys, Value: text})
	return err
}

// startsRuns reports whether gateways that are at work start runs because of a bucket. Such a run
// may be in the backup, and could not be restored then.
func startsRuns(bucket string) bool {
	return bucket == "MOORE_TIMERS" || slices.ContainsFunc(rows.All(), func(f row.Row) bool {
		return f.Alarms && slices.ContainsFunc(f.Buckets, func(of kv.Bucket) bool { return bucket == "KV_"+of.Name })
	})
}

// values makes the buckets and puts their values: early those that start no runs, late the others. Roles
// that are at work may change the early ones once runs are there, so it is not done again then.
func (r *restorer) values(ctx context.Context, late bool) error {
	for _, b := range r.a.buckets {
		if startsRuns(b.Name) != late {
			continue
		}
		if !late && r.note.Stage != stageValues {
			r.done.Values += lines(b)
			continue
		}
		if err := r.to.MakeBucket(ctx, b.ArchivedBucket); err != nil {
			return err
		}
		if b.Objects || b.File == nil {
			continue
		}
		err := r.a.values(ctx, b, func(v ports.Value) error { return r.to.PutValue(ctx, v) })
		if err != nil {
			return err
		}
		r.done.Values += lines(b)
	}
	return nil
}

func lines(b Bucket) int {
	if b.Objects || b.File == nil {
		return 0
	}
	return b.File.Lines
}

// objects stores the objects, several at once.
func (r *restorer) objects(ctx context.Context) error {
	r.done.Objects = len(r.a.refs)
	if r.note.Stage != stageValues {
		return nil
	}
	queue := make(chan events.Ref, len(r.a.refs))
	for _, ref := range r.a.refs {
		queue <- ref
	}
	close(queue)
	g := logwalk.NewGroup(ctx)
	for range fetchers {
		g.Go(func(ctx context.Context) error {
			for ref := range queue {
				data, err := readObject(ctx, r.a.from, ref.SHA256)
				if err != nil {
					return err
				}
				_, pool, _ := strings.Cut(ref.Bucket, "_")
				if _, err := r.to.PutBlob(ctx, pool, data); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return r.write(ctx, stageRuns)
}

// runs imports the runs.
func (r *restorer) runs(ctx context.Context) error {
	if len(r.a.order) > 0 {
		r.to.Gather()
		results, err := transfer.Import(ctx, r.a, r.to, transfer.ImportOptions{
			Hold: r.holder(), CallsMayHaveRun: !r.o.CallsMayRunAgain, Orphans: true, Entire: true, Size: r.a.size, Parallel: importers, Source: r.o.Source, Machine: r.o.Machine,
		})
		for _, result := range results {
			if result.Fate == transfer.FateRefused {
				err = errors.Join(err, fmt.Errorf("run %s: %s", result.Run.ID, result.Reason))
			}
		}
		if err != nil {
			return err
		}
		for _, result := range results {
			if err := r.count(ctx, result); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *restorer) count(ctx context.Context, result transfer.ImportedRun) error {
	r.done.Runs++
	r.done.Events += uint64(len(r.a.runs[result.Run].places))
	if result.Resumed {
		r.done.Resumed++
	}
	if result.Held {
		r.done.Held = append(r.done.Held, HeldRun{result.Run.ID, result.Run.Namespace})
	}
	if result.Orphan {
		r.done.Orphans = append(r.done.Orphans, result.Run.ID)
	}
	if result.Begun > 0 {
		r.done.Unknown = append(r.done.Unknown, Call{result.Run.ID, result.Run.Namespace, result.Begun})
	}
	head, err := r.a.Head(ctx, result.Run)
	if err != nil {
		return err
	}
	if e, err := new(events.Codec).Decode(head.Body); err == nil && (e.To == events.WaitingForHuman || e.To == events.WaitingForUser) {
		r.done.Waiting++
	}
	return nil
}
