package verify

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Options say what to verify.
type Options struct {
	// Runs are the runs to verify. Each has to be there.
	Runs []events.Run
	// All verifies every run of the log instead, of Namespace alone if that is
	// not empty.
	All       bool
	Namespace string
	// Strict makes poisoned runs count as bad, see [Report.Clean].
	Strict bool
	// Workers is how many runs are folded at once; 0: one for every core.
	Workers int
	// Snapshots are compared with the fold; nil: there are none.
	Snapshots ports.Snapshots
}

func (o Options) check() error {
	if o.All == (len(o.Runs) > 0) {
		return errors.New("verify: name runs, or ask for all of them, but not both")
	}
	return nil
}

// Log reads runs from the log and checks every record; [Report] has what was
// found. The error is the log's or the context's, [journal.ErrNotFound] for a
// run that is not there; what is wrong with a run is no error.
//
// All of the log is read once, a shard at a time by each reader, and folded by
// the workers as it comes. What is held in memory meanwhile is the fold of every
// run that has begun and not ended at that place of the log, and about 200 bytes
// for a run that has: so much as ran at the same time, not so much as ever ran.
func Log(ctx context.Context, log journal.Log, machine *reducer.Machine, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	began := time.Now()
	v := &verifier{log: log, machine: machine, o: o, report: newReport(o.Strict)}
	if err := v.lookForSnapshots(ctx); err != nil {
		return nil, err
	}
	verify := v.runs
	if o.All {
		verify = v.all
	}
	if err := verify(ctx); err != nil {
		return nil, err
	}
	v.report.sort()
	v.report.Elapsed = time.Since(began)
	return v.report, nil
}

// verifier is one call of Log.
type verifier struct {
	log     journal.Log
	machine *reducer.Machine
	o       Options

	// snapshotted are the runs that have a snapshot.
	snapshotted map[events.Run]bool

	mu     sync.Mutex
	report *Report
}

// lookForSnapshots lists the runs that have one.
func (v *verifier) lookForSnapshots(ctx context.Context) error {
	if v.o.Snapshots == nil {
		return nil
	}
	runs, err := v.o.Snapshots.Snapshotted(ctx)
	v.snapshotted = make(map[events.Run]bool, len(runs))
	for _, run := range runs {
		v.snapshotted[run] = true
	}
	return err
}

// checker returns the checker of a run, with its snapshot. One that cannot be
// read is none, as it is for everybody else.
func (v *verifier) checker(ctx context.Context, run events.Run, room *room) *checker {
	c := newChecker(v.log, v.machine, run, room)
	if v.snapshotted[run] {
		if s, err := v.o.Snapshots.Snapshot(ctx, run); err == nil {
			c.keep(s)
		}
	}
	return c
}

func (v *verifier) merge(part *Report) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.merge(part)
}

// runs verifies the runs that were named, several at once.
func (v *verifier) runs(ctx context.Context) error {
	queue := make(chan events.Run)
	g := logwalk.NewGroup(ctx)
	for range min(v.o.Workers, len(v.o.Runs)) {
		g.Go(func(ctx context.Context) error {
			part := newReport(false)
			defer func() { v.merge(part) }()
			for run := range queue {
				if err := v.one(ctx, run, part); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func(ctx context.Context) error {
		defer close(queue)
		for _, run := range v.o.Runs {
			select {
			case queue <- run:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return g.Wait()
}

func (v *verifier) one(ctx context.Context, run events.Run, part *Report) error {
	c := v.checker(ctx, run, new(room))
	read := false
	var last journal.Record
	for rec, err := range v.log.Read(ctx, run, 0) {
		if err != nil {
			return err
		}
		read = true
		s, reason := logwalk.Place(v.log, run.Shard, rec.Subject)
		if reason != "" {
			part.addMisplaced(logwalk.Misplaced{Shard: run.Shard, Seq: rec.Seq, Subject: rec.Subject, Reason: reason})
			continue
		}
		if err := c.next(ctx, rec, s); err != nil {
			return err
		}
		last = rec
	}
	if !read {
		return fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound)
	}
	c.compare(last, nil)
	part.add(c)
	return nil
}

// all verifies the entire log: readers split it by shard, workers by run.
func (v *verifier) all(ctx context.Context) error {
	w := logwalk.Walk{Log: v.log, Namespace: v.o.Namespace, Workers: v.o.Workers, Work: v.fold, Misplaced: func(messages []logwalk.Misplaced) {
		part := newReport(false)
		for _, m := range messages {
			part.addMisplaced(m)
		}
		v.merge(part)
	}}
	return w.Run(ctx)
}

// fold is a worker: it folds the runs that it is given, record by record.
func (v *verifier) fold(ctx context.Context, input <-chan []logwalk.Routed, done func([]logwalk.Routed)) error {
	type tail struct {
		*checker
		last journal.Record
	}
	runs, room := map[events.Run]*tail{}, new(room)
	var t *tail
	for batch := range input {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for i := range batch {
			r := &batch[i]
			if t == nil || t.run != r.Subject.Run { // a run's records often lie side by side
				t = runs[r.Subject.Run]
			}
			if t == nil {
				t = &tail{checker: v.checker(ctx, r.Subject.Run, room)}
				runs[r.Subject.Run] = t
			}
			if err := t.next(ctx, r.Record, r.Subject); err != nil {
				return err
			}
			t.last = journal.Record{Subject: r.Record.Subject, Seq: r.Record.Seq}
		}
		done(batch)
	}
	part := newReport(false)
	for _, t := range runs {
		t.compare(t.last, nil)
		part.add(t.checker)
	}
	v.merge(part)
	return ctx.Err()
}
