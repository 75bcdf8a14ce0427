package list

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The log can only be read forwards. To list it backwards, it is read in windows of sequence
// numbers, each wide enough for a few records.
const (
	firstWindow = 1024
	// fewEntries is how many entries a window should find, maxEntries how many it may hold.
	fewEntries = 64
	maxEntries = 4096
)

// entry is a record that represents its run in a list, without its body.
type entry struct {
	run    events.Run
	seq    uint64
	stored time.Time
	// first says that the record is the run's first event, which info is made from.
	first bool
	info  Run
}

func (l *Lister) entry(shard int, rec journal.Record) entry {
	e := entry{seq: rec.Seq, stored: rec.Stored}
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil || subject.CheckShard(l.a.Log.Shards()) != nil {
		e.run.Shard = shard
		return e // it belongs to no run
	}
	e.run = subject.Run
	e.info.RunID = e.run.ID
	if subject.From != l.a.Table.Initial() {
		return e
	}
	e.first = true
	if first, err := l.a.Store.Machine().Codec().Decode(rec.Body); err == nil {
		e.info.Started = first.Time
		e.info.addFirst(first.Data)
	}
	return e
}

// compare orders entries of several shards by time, then by id.
func (e *entry) compare(other *entry) int {
	return cmp.Or(e.stored.Compare(other.stored), cmp.Compare(e.run.ID, other.run.ID))
}

// newestFirst yields the entries of all shards' matching records, newest first. With before it
// yields only those after it in that order.
func (l *Lister) newestFirst(ctx context.Context, filter journal.Filter, before *entry) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		shards := make([]shardEntries, l.a.Log.Shards())
		for shard := range shards {
			s := &shards[shard]
			below := uint64(0)
			if before != nil && shard == before.run.Shard {
				below = before.seq
			}
			var stop func()
			s.next, stop = iter.Pull2(l.backwards(ctx, shard, filter, below))
			defer stop()
			if err := s.advance(before); err != nil {
				yield(entry{}, err)
				return
			}
		}
		for {
			var first *shardEntries
			for i := range shards {
				if s := &shards[i]; !s.done && (first == nil || s.head.compare(&first.head) > 0) {
					first = s
				}
			}
			if first == nil || !yield(first.head, nil) {
				return
			}
			if err := first.advance(nil); err != nil {
				yield(entry{}, err)
				return
			}
		}
	}
}

// shardEntries are the entries of one shard; head is the next one.
type shardEntries struct {
	next func() (entry, error, bool)
	head entry
	done bool
}

// advance goes to the next entry that is older than before.
func (s *shardEntries) advance(before *entry) error {
	for {
		e, err, ok := s.next()
		switch {
		case !ok || err != nil:
			s.done = true
			return err
		case e.run.ID != "" && (before == nil || e.compare(before) < 0):
			s.head = e
			return nil
		}
	}
}

// backwards yields the entries of a shard's matching records below a sequence number, newest
// first; 0: from the end.
func (l *Lister) backwards(ctx context.Context, shard int, filter journal.Filter, below uint64) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		if below == 0 {
			last, err := l.a.Log.Last(ctx, shard)
			if err != nil {
				yield(entry{}, err)
				return
			}
			below = last + 1
		}
		for width := uint64(firstWindow); below > 1; {
			after := uint64(0)
			if below-1 > width {
				after = below - 1 - width
			}
			found, fits, err := l.window(ctx, shard, filter, after, below)
			if err != nil {
				yield(entry{}, err)
				return
			}
			if !fits {
				width = max(width/4, firstWindow)
				continue
			}
			for i := len(found) - 1; i >= 0; i-- {
				if !yield(found[i], nil) {
					return
				}
			}
			if len(found) < fewEntries {
				width *= 4
			}
			below = after + 1
		}
	}
}

// window reads the records between two sequence numbers. It returns false if there are more than
// maxEntries.
func (l *Lister) window(ctx context.Context, shard int, filter journal.Filter, after, below uint64) ([]entry, bool, error) {
	var found []entry
	for rec, err := range l.a.Log.Scan(ctx, shard, filter, after) {
		if err != nil {
			return nil, false, err
		}
		if rec.Seq >= below {
			break
		}
		if len(found) == maxEntries {
			return nil, false, nil
		}
		found = append(found, l.entry(shard, rec))
	}
	return found, true, nil
}

// firstReach is how far back the search for a run's last but one record begins, in sequence
// numbers. Each further attempt goes reachFactor times as far.
const (
	firstReach  = 16
	reachFactor = 8
)

// follows reports whether the run's last event follows the record before it: by number, hash and
// state. That does not prove that the event is legal: earlier records may not be.
func (l *Lister) follows(ctx context.Context, run events.Run, seq uint64, e *events.Event) (bool, error) {
	for reach := uint64(firstReach); ; reach *= reachFactor {
		after := seq - min(seq, reach)
		before, err := l.lastBetween(ctx, run, after, seq)
		if err != nil {
			return false, err
		}
		if before.Seq > 0 {
			p := l.a.Decode(before)
			return p != nil && p.To == e.From && p.N+1 == e.N && events.Hash(before.Body) == e.Prev, nil
		}
		if after == 0 {
			return false, nil
		}
	}
}

// lastBetween returns the run's last record between two sequence numbers, or the zero Record.
func (l *Lister) lastBetween(ctx context.Context, run events.Run, after, before uint64) (last journal.Record, err error) {
	for rec, err := range l.a.Log.Read(ctx, run, after) {
		if err != nil {
			return journal.Record{}, err
		}
		if rec.Seq >= before {
			break
		}
		if !runs.NotOfLog(rec) {
			last = rec
		}
	}
	return last, nil
}

func isUnknownTable(err error) bool {
	var unknown *reducer.TableError
	return errors.As(err, &unknown)
}
