package simtest

import (
	"context"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Batch is what a batch of several runs came to.
type Batch struct {
	Process *Process
	// Runs is how many there were.
	Runs int
	// Outcome is one of [BatchStored], [BatchRefused], [BatchUnknown], [BatchLost],
	// [BatchCrashedBefore], [BatchCrashedAfter], or it is no batch but [TwoOfOneRun].
	Outcome string
}

// The outcomes of a batch: one member's condition does not hold; it is stored or
// not and its acknowledgement is lost; its process dies before or after it is stored.
const (
	BatchStored        = "stored"
	BatchRefused       = "refused"
	BatchUnknown       = "in doubt, stored"
	BatchLost          = "in doubt, not stored"
	BatchCrashedBefore = "crash before"
	BatchCrashedAfter  = "crash after"
	// TwoOfOneRun is a process that appends to one run twice at the same moment.
	TwoOfOneRun = "two appends of one run"
)

// group appends by the process's group of the shard.
func (p *Process) group(ctx context.Context, a groupcommit.Pending) (uint64, error) {
	p.appending(a.Run, 1)
	defer p.appending(a.Run, -1)
	return p.groups[a.Run.Shard].Append(ctx, a)
}

// appending counts the appends of a run that are in flight.
func (p *Process) appending(run events.Run, change int) {
	p.j.mu.Lock()
	p.atOnce[run] += change
	two := change > 0 && p.atOnce[run] > 1
	p.j.mu.Unlock()
	if two {
		p.tell(Batch{Process: p, Runs: 1, Outcome: TwoOfOneRun})
	}
}

func (p *Process) tell(b Batch) {
	if told := p.j.opts.Grouped; told != nil {
		told(b)
	}
}

// appender appends to one shard in the name of a process, and takes its time.
type appender struct {
	p     *Process
	shard int
}

// work waits for the shard and for as long as it takes to append. A process that
// died meanwhile has not appended.
func (a *appender) work(ctx context.Context) (done func(), err error) {
	disk := a.p.j.shards[a.shard].disk
	select {
	case disk <- struct{}{}:
	case <-a.p.dead:
		return nil, ErrCrashed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	timer := time.NewTimer(a.p.j.opts.AppendTime)
	defer timer.Stop()
	select {
	case <-timer.C:
		return func() { <-disk }, nil
	case <-a.p.dead:
		<-disk
		return nil, ErrCrashed
	}
}

// One appends for one run.
func (a *appender) One(ctx context.Context, p groupcommit.Pending) (uint64, error) {
	done, err := a.work(ctx)
	if err != nil {
		return 0, fmt.Errorf("append to run %s: %w", p.Run.ID, err)
	}
	defer done()
	return a.p.append(p)
}

// Batch appends for several runs, all or nothing. Who comes while it works joins.
func (a *appender) Batch(_ []groupcommit.Pending, join func() []groupcommit.Pending) (uint64, error) {
	done, err := a.work(context.Background())
	if err != nil {
		return 0, unknownOutcome(err)
	}
	defer done()
	all := join()
	b := batch{p: a.p, shard: a.shard, all: all}
	seq, outcome, err := b.append()
	a.p.tell(Batch{Process: a.p, Runs: len(all), Outcome: outcome})
	return seq, err
}

// unknownOutcome makes an error after which nobody tries again.
func unknownOutcome(err error) error { return fmt.Errorf("%w: %w", journal.ErrUnknownOutcome, err) }

// batch is one on its way.
type batch struct {
	p     *Process
	shard int
	all   []groupcommit.Pending
	at    []Moment
}

func (b *batch) append() (seq uint64, outcome string, err error) {
	for _, p := range b.all {
		at := b.p.j.moment(p.Run, p.Entries)
		at.Together = len(b.all)
		b.at = append(b.at, at)
	}
	if err := b.crash(BeforeAppend); err != nil {
		return 0, BatchCrashedBefore, err
	}
	seq, outcome, err = b.store()
	if outcome == BatchLost || outcome == BatchRefused {
		return 0, outcome, err
	}
	if err := b.crash(AfterAppend); err != nil {
		return 0, BatchCrashedAfter, err
	}
	return seq, outcome, err
}

// crash kills the process if it is to crash at one of the members.
func (b *batch) crash(point string) error {
	for _, at := range b.at {
		at.Point = point
		if err := b.p.crash(at); err != nil {
			return unknownOutcome(err)
		}
	}
	return nil
}

// store stores all entries, unless a condition does not hold or the batch is lost.
func (b *batch) store() (seq uint64, outcome string, err error) {
	j := b.p.j
	j.mu.Lock()
	defer j.mu.Unlock()
	key := []any{b.at[0].Run.ID, b.at[0].Nth, b.at[0].Attempt}
	if j.opts.happens(j.opts.Faults.BatchLost, "batch lost", key...) {
		return 0, BatchLost, journal.ErrUnknownOutcome
	}
	for _, p := range b.all {
		if err := j.expect(p.Run, p.Last); err != nil {
			return 0, BatchRefused, err
		}
	}
	for i, p := range b.all {
		before := len(j.shards[b.shard].records)
		seq = j.storeAll(p, i > 0)
		j.announce(b.shard, before)
	}
	if j.opts.happens(j.opts.Faults.BatchUnknown, "batch in doubt", key...) {
		return 0, BatchUnknown, journal.ErrUnknownOutcome
	}
	return seq, BatchStored, nil
}
