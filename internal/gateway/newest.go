package gateway

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The log is read forwards only. To go through it backwards it is read in
// windows of sequence numbers, each as wide as it takes to find a few records.
const (
	firstWindow = 1024
	// fewMarks is how many a window should find, maxMarks how many may be in
	// memory.
	fewMarks = 64
	maxMarks = 4096
)

// mark is a record that stands for its run in a list. It does not hold the
// record's body.
type mark struct {
	run    events.Run
	seq    uint64
	stored time.Time
	// first says that the record is the run's first event, and info was made
	// of it.
	first bool
	info  RunInfo
}

// mark makes a mark of a record.
func (g *Gateway) mark(shard int, rec journal.Record) mark {
	m := mark{seq: rec.Seq, stored: rec.Stored}
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil || subject.CheckShard(g.log.Shards()) != nil {
		m.run.Shard = shard
		return m // it belongs to no run
	}
	m.run = subject.Run
	m.info.RunID = m.run.ID
	if subject.From != g.table.Initial() {
		return m
	}
	m.first = true
	e, err := g.machine.Codec().Decode(rec.Body)
	if err != nil {
		return m
	}
	m.info.Started = e.Time
	m.info.open(e.Data)
	return m
}

// cut shortens a text to a number of characters.
func cut(text string, limit int) string {
	count := 0
	for i := range text {
		if count == limit {
			return text[:i] + "…"
		}
		count++
	}
	return text
}

// newer orders marks of several shards by time, then by id.
func newer(a, b *mark) int {
	return cmp.Or(a.stored.Compare(b.stored), cmp.Compare(a.run.ID, b.run.ID))
}

// newest yields marks of every shard's matching records, the newest first; with
// before only those that come after it in that order.
func (g *Gateway) newest(ctx context.Context, filter journal.Filter, before *mark) iter.Seq2[mark, error] {
	return func(yield func(mark, error) bool) {
		shards := make([]shardMarks, g.log.Shards())
		for shard := range shards {
			s := &shards[shard]
			below := uint64(0)
			if before != nil && shard == before.run.Shard {
				below = before.seq
			}
			var stop func()
			s.next, stop = iter.Pull2(g.backwards(ctx, shard, filter, below))
			defer stop()
			if !s.advance(before) {
				yield(mark{}, s.err)
				return
			}
		}
		for {
			var first *shardMarks
			for i := range shards {
				if s := &shards[i]; !s.done && (first == nil || newer(&s.head, &first.head) > 0) {
					first = s
				}
			}
			if first == nil || !yield(first.head, nil) {
				return
			}
			if !first.advance(nil) {
				yield(mark{}, first.err)
				return
			}
		}
	}
}

// shardMarks is one shard's marks, of which head comes next.
type shardMarks struct {
	next func() (mark, error, bool)
	head mark
	err  error
	done bool
}

// advance goes to the next mark that is older than before. It returns false on
// an error.
func (s *shardMarks) advance(before *mark) bool {
	for {
		m, err, ok := s.next()
		if !ok {
			s.done = true
			return true
		}
		if err != nil {
			s.err = err
			return false
		}
		if m.run.ID == "" || (before != nil && newer(&m, before) >= 0) {
			continue
		}
		s.head = m
		return true
	}
}

// backwards yields marks of a shard's matching records from the newest on, below
// a sequence number; 0: from the end.
func (g *Gateway) backwards(ctx context.Context, shard int, filter journal.Filter, below uint64) iter.Seq2[mark, error] {
	return func(yield func(mark, error) bool) {
		if below == 0 {
			last, err := g.log.Last(ctx, shard)
			if err != nil {
				yield(mark{}, err)
				return
			}
			below = last + 1
		}
		for width := uint64(firstWindow); below > 1; {
			after := uint64(0)
			if below-1 > width {
				after = below - 1 - width
			}
			marks, fits, err := g.window(ctx, shard, filter, after, below)
			if err != nil {
				yield(mark{}, err)
				return
			}
			if !fits {
				width = max(width/4, firstWindow)
				continue
			}
			for i := len(marks) - 1; i >= 0; i-- {
				if !yield(marks[i], nil) {
					return
				}
			}
			if len(marks) < fewMarks {
				width *= 4
			}
			below = after + 1
		}
	}
}

// window reads the records between two sequence numbers. It reports false if
// there are too many to hold.
func (g *Gateway) window(ctx context.Context, shard int, filter journal.Filter, after, below uint64) ([]mark, bool, error) {
	var marks []mark
	for rec, err := range g.log.Scan(ctx, shard, filter, after) {
		if err != nil {
			return nil, false, err
		}
		if rec.Seq >= below {
			break
		}
		if len(marks) == maxMarks {
			return nil, false, nil
		}
		marks = append(marks, g.mark(shard, rec))
	}
	return marks, true, nil
}
