package retention

import (
	"context"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// entry is what a survey knows of one run.
type entry struct {
	run    events.Run
	events uint64
	// first is the number of the first record.
	first uint64
	// bytes are those of subjects and bodies.
	bytes int64
	// seq, state and at are those of the last record; state and at are empty if
	// that is not an end.
	seq   uint64
	state events.State
	at    time.Time
	// hash is that of the last body. It is there for chosen runs only.
	hash string
	// parent is the run that it was forked from, if forked is set.
	parent events.Run
	forked bool
	refs   []events.Ref
}

// survey is the whole log, run by run. It is made by reading all of it once, and
// takes about 300 bytes for each run.
type survey struct {
	table *reducer.Table
	runs  map[events.Run]*entry
	// end is up to where each shard was read, records how many that were, and ofNoRun
	// the first of them that belongs to no run, 0 if there is none.
	end, records, ofNoRun []uint64
}

// advance reads the log from where the survey ended.
func (s *survey) advance(ctx context.Context, log journal.Log, codec *events.Codec) error {
	if s.runs == nil {
		s.table = reducer.DefaultTable()
		s.runs = map[events.Run]*entry{}
		for _, of := range []*[]uint64{&s.end, &s.records, &s.ofNoRun} {
			*of = make([]uint64, log.Shards())
		}
	}
	for shard := range log.Shards() {
		for rec, err := range log.Scan(ctx, shard, journal.Filter{}, s.end[shard]) {
			if err != nil {
				return err
			}
			s.end[shard] = rec.Seq
			s.records[shard]++
			subject, err := events.ParseSubject(rec.Subject)
			if err != nil || subject.CheckShard(log.Shards()) != nil || subject.Run.Shard != shard {
				if s.ofNoRun[shard] == 0 {
					s.ofNoRun[shard] = rec.Seq
				}
				continue // it belongs to no run
			}
			s.add(subject, rec, codec)
		}
	}
	return nil
}

func (s *survey) add(subject events.Subject, rec journal.Record, codec *events.Codec) {
	run := subject.Run
	e := s.runs[run]
	if e == nil {
		e = &entry{run: run, first: rec.Seq}
		s.runs[run] = e
		e.parent, e.forked = transfer.Parent(codec, run, rec.Body, len(s.end))
	}
	e.events++
	e.bytes += int64(len(rec.Subject) + len(rec.Body))
	e.seq, e.state, e.at = rec.Seq, "", time.Time{}
	// Only ends are decoded, and they say in their subject that they are.
	if s.table.Terminal(subject.To) {
		e.decodeEnd(rec, codec)
	}
	e.refs = append(e.refs, recordline.Refs(codec, rec.Body)...)
}

func (e *entry) decodeEnd(rec journal.Record, codec *events.Codec) {
	if end, err := codec.Decode(rec.Body); err == nil {
		e.state, e.at = end.To, end.Time
	}
}

// endsByItself reports whether a run's last record is an end by itself: on its own
// subject, and from where its type may come. It stands in for the fold of a run
// that cannot be folded.
func (s *survey) endsByItself(ctx context.Context, log journal.Log, codec *events.Codec, e *entry) (bool, error) {
	rec, err := log.Head(ctx, e.run)
	if err != nil {
		return false, err
	}
	end, err := codec.Decode(rec.Body)
	if err != nil {
		return false, nil
	}
	subject, err := events.ParseSubject(rec.Subject)
	if err != nil || end.Run != e.run.ID || subject.To != end.To || !s.table.Terminal(end.To) {
		return false, nil
	}
	if end.Type() != events.TypeFatalError && !reducer.MayCome(s.table, end.Type(), end.From, subject.From) {
		return false, nil // any worker may end a poisoned run
	}
	e.seq, e.state, e.at, e.hash = rec.Seq, end.To, end.Time, events.Hash(rec.Body)
	return true, nil
}

// line returns a run and what it was forked from, as far as that is in the log.
func (s *survey) line(run events.Run) []*entry {
	var all []*entry
	for e := s.runs[run]; e != nil && !slices.Contains(all, e); e = s.runs[e.parent] {
		all = append(all, e)
		if !e.forked {
			break
		}
	}
	return all
}
