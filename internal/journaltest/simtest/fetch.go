package simtest

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var _ journal.Fetcher = (*Process)(nil)

// ErrFetchAway is what a fetch answers by [Faults.Fetch].
var ErrFetchAway = errors.New("simulated fault: nobody answers the fetch")

// Fetch returns the record with that sequence number in the run's shard. By
// [Faults.Delay] it takes up to a hundredth of MaxDelay, and by [Faults.Fetch] it
// fails after that.
func (p *Process) Fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	rec, err := p.fetch(ctx, run, seq)
	if err != nil {
		return journal.Record{}, fmt.Errorf("fetch record %d: %w", seq, err)
	}
	return rec, nil
}

func (p *Process) fetch(ctx context.Context, run events.Run, seq uint64) (journal.Record, error) {
	if err := p.readable(ctx, journalcheck.Run(p.Shards(), run)); err != nil {
		return journal.Record{}, err
	}
	rec, key, found := p.j.lookAt(run.Shard, seq)
	if !found {
		return journal.Record{}, journal.ErrNotFound
	}
	o := p.j.opts
	if o.happens(o.Faults.Delay, "fetch delay", key...) {
		if err := p.hold(ctx, o.part(o.Faults.MaxDelay/100, "fetch delay for", key...)); err != nil {
			return journal.Record{}, err
		}
	}
	if o.happens(o.Faults.Fetch, "fetch", key...) {
		return journal.Record{}, ErrFetchAway
	}
	return rec, nil
}

// lookAt returns a shard's record, and what names this try to fetch it: the
// record's run, its place there, and how often it was fetched.
func (j *Journal) lookAt(shard int, seq uint64) (rec journal.Record, key []any, found bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.shards[shard]
	if seq == 0 || seq > uint64(len(s.records)) {
		return journal.Record{}, nil, false
	}
	rec = s.records[seq-1]
	of, _ := runOf(rec.Subject)
	at := try{of, sort.SearchInts(s.runs[of], int(seq-1))}
	j.fetches[at]++
	return rec, []any{at.run, at.nth, j.fetches[at]}, true
}

// hold waits. It returns early when the process dies or the context ends, and why.
func (p *Process) hold(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.dead:
		return ErrCrashed
	case <-ctx.Done():
		return ctx.Err()
	}
}
