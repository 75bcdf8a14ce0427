package replay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// VerifyOptions say what to verify.
type VerifyOptions struct {
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
	// Snapshots are held to the fold; nil: there are none.
	Snapshots journal.Snapshots
}

func (o VerifyOptions) check() error {
	if o.All == (len(o.Runs) > 0) {
		return errors.New("verify: name runs, or ask for all of them, but not both")
	}
	return nil
}

// Verify reads runs from the log and checks every record; [Report] has what was
// found. The error is the log's or the context's, [journal.ErrNotFound] for a
// run that is not there; what is wrong with a run is no error.
//
// All of the log is read once, a shard at a time by each reader, and folded by
// the workers as it comes. What is held in memory meanwhile is the fold of every
// run that has begun and not ended at that place of the log, and about 200 bytes
// for a run that has: so much as ran at the same time, not so much as ever ran.
func Verify(ctx context.Context, log journal.Log, machine *reducer.Machine, o VerifyOptions) (*Report, error) {
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

// verifier is one call of Verify.
type verifier struct {
	log     journal.Log
	machine *reducer.Machine
	o       VerifyOptions

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
func (v *verifier) checker(ctx context.Context, run events.Run) *checker {
	c := newChecker(v.log, v.machine, run)
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
	g := newGroup(ctx)
	for range min(v.o.Workers, len(v.o.Runs)) {
		g.run(func(ctx context.Context) error {
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
	g.run(func(ctx context.Context) error {
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
	return g.wait()
}

func (v *verifier) one(ctx context.Context, run events.Run, part *Report) error {
	c := v.checker(ctx, run)
	read := false
	var last journal.Record
	for rec, err := range v.log.Read(ctx, run, 0) {
		if err != nil {
			return err
		}
		read = true
		s, reason := place(v.log, run.Shard, rec.Subject)
		if reason != "" {
			part.addStray(Stray{Shard: run.Shard, Seq: rec.Seq, Subject: rec.Subject, Reason: reason})
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
	c.end(last, nil)
	part.add(c)
	return nil
}

// place returns the parsed subject of a record of a shard, or why it belongs to
// no run.
func place(log journal.Log, shard int, subject string) (events.Subject, string) {
	s, err := events.ParseSubject(subject)
	if err == nil {
		err = s.CheckShard(log.Shards())
	}
	if err == nil && s.Run.Shard != shard {
		err = fmt.Errorf("subject %q: lies in shard %d", subject, shard)
	}
	if err != nil {
		return events.Subject{}, err.Error()
	}
	return s, ""
}

// routed is a record on its way to the worker that folds its run.
type routed struct {
	rec     journal.Record
	subject events.Subject
}

// batchSize is how many records go to a worker at a time: a channel operation a
// record would cost as much as folding it.
const batchSize = 64

// all verifies the whole log: readers split it by shard, workers by run.
func (v *verifier) all(ctx context.Context) error {
	inputs := make([]chan []routed, v.o.Workers)
	for i := range inputs {
		inputs[i] = make(chan []routed, 8)
	}
	g := newGroup(ctx)
	for _, input := range inputs {
		g.run(func(ctx context.Context) error { return v.fold(ctx, input) })
	}
	shards := make(chan int, v.log.Shards())
	for shard := range v.log.Shards() {
		shards <- shard
	}
	close(shards)
	var readers sync.WaitGroup
	for range min(v.o.Workers, v.log.Shards()) {
		readers.Add(1)
		g.run(func(ctx context.Context) error {
			defer readers.Done()
			for shard := range shards {
				if err := v.scan(ctx, shard, inputs); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.run(func(context.Context) error {
		readers.Wait()
		for _, input := range inputs {
			close(input)
		}
		return nil
	})
	return g.wait()
}

// scan reads a shard and hands each record to its run's worker. A run lies in one
// shard, so its records stay in their order.
func (v *verifier) scan(ctx context.Context, shard int, inputs []chan []routed) error {
	part := newReport(false)
	defer func() { v.merge(part) }()
	batches := make([][]routed, len(inputs))
	send := func(to int) error {
		select {
		case inputs[to] <- batches[to]:
			batches[to] = nil
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for rec, err := range v.log.Scan(ctx, shard, journal.Filter{Namespace: v.o.Namespace}, 0) {
		if err != nil {
			return err
		}
		s, reason := place(v.log, shard, rec.Subject)
		if reason != "" {
			part.addStray(Stray{Shard: shard, Seq: rec.Seq, Subject: rec.Subject, Reason: reason})
			continue
		}
		to := events.ShardOf(s.Run.ID, len(inputs))
		if batches[to] = append(batches[to], routed{rec, s}); len(batches[to]) == batchSize {
			if err := send(to); err != nil {
				return err
			}
		}
	}
	for to, batch := range batches {
		if len(batch) == 0 {
			continue
		}
		if err := send(to); err != nil {
			return err
		}
	}
	return nil
}

// fold is a worker: it folds the runs that it is given, record by record.
func (v *verifier) fold(ctx context.Context, input <-chan []routed) error {
	type tail struct {
		*checker
		last journal.Record
	}
	runs := map[events.Run]*tail{}
	for batch := range input {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, r := range batch {
			t := runs[r.subject.Run]
			if t == nil {
				t = &tail{checker: v.checker(ctx, r.subject.Run)}
				runs[r.subject.Run] = t
			}
			if err := t.next(ctx, r.rec, r.subject); err != nil {
				return err
			}
			t.last = journal.Record{Subject: r.rec.Subject, Seq: r.rec.Seq}
		}
	}
	part := newReport(false)
	for _, t := range runs {
		t.end(t.last, nil)
		part.add(t.checker)
	}
	v.merge(part)
	return ctx.Err()
}

// group runs functions until all have returned; the first error ends the context
// of the others.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error
}

func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel}
}

func (g *group) run(fn func(ctx context.Context) error) {
	g.wg.Go(func() {
		if err := fn(g.ctx); err != nil {
			g.once.Do(func() { g.err = err })
			g.cancel()
		}
	})
}

// wait returns the first error.
func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return g.err
}
