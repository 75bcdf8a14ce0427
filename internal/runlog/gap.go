package runlog

import (
	"bytes"
	"context"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// maxFetched is how many records are fetched one by one, from a delivered record
// back to what is known, before the tail is read instead.
const maxFetched = 4

// next is a record of this run that is decoded, so that it can be folded.
type next struct {
	rec     journal.Record
	subject events.Subject
	event   *events.Event
	hash    string
}

// nextOf returns a decoded record, or false if it is none of the run's.
func (r *Run) nextOf(rec journal.Record, e *events.Event) (next, bool) {
	s, err := events.ParseSubject(rec.Subject)
	return next{rec: rec, subject: s, event: e, hash: events.Hash(rec.Body)}, err == nil && s.Run == r.ID
}

// fillGap folds a delivered record and the few before it that other processes have
// appended since. It reports whether it did; if not, the run is as it was.
//
// Each record names the one before it by its hash, and where that lies by the condition
// under which it was appended. The place is the writer's word and only says which
// record to fetch. What is folded comes from the log, and the hashes connect the
// delivered record with the last one that was known. If nothing of the run is known,
// they have to reach the record that the log took as the run's first, and the delivered
// record has to be the run's head: a server that was killed delivers a record again, or
// loses one that it had delivered.
func (r *Run) fillGap(ctx context.Context, rec journal.Record, e *events.Event) (bool, error) {
	gap, ok := r.gap(ctx, rec, e)
	if !ok {
		return false, nil
	}
	for _, n := range slices.Backward(gap) {
		if err := r.applyNext(ctx, n); err != nil {
			return false, err
		}
	}
	return true, nil
}

// gap returns the records from the delivered one back to the first that is not
// known, or false where they are too many, or are not found in that way.
func (r *Run) gap(ctx context.Context, rec journal.Record, e *events.Event) ([]next, bool) {
	log, can := r.store.log.(journal.Fetcher)
	if !can || e.N <= r.mem.N+1 || e.N-r.mem.N-1 > maxFetched {
		return nil, false
	}
	if r.seq == 0 {
		head, err := r.store.log.Head(ctx, r.ID)
		if err != nil || head.Seq != rec.Seq || head.Subject != rec.Subject || !bytes.Equal(head.Body, rec.Body) {
			return nil, false
		}
	}
	last, own := r.nextOf(rec, e)
	gap := []next{last}
	for own {
		if last.event.N == r.mem.N+1 {
			return gap, last.event.Prev == r.mem.Control.Head && (r.seq > 0 || last.rec.First)
		}
		if last.rec.After <= r.seq || last.rec.After >= last.rec.Seq {
			return nil, false
		}
		before, err := log.Fetch(ctx, r.ID, last.rec.After)
		if err != nil {
			return nil, false // whatever it is, reading says so as well
		}
		event, err := r.store.machine.Codec().Decode(before.Body)
		if err != nil || event.N != last.event.N-1 {
			return nil, false
		}
		prev := last.event.Prev
		if last, own = r.nextOf(before, event); last.hash != prev {
			return nil, false
		}
		gap = append(gap, last)
	}
	return nil, false
}

// applyNext folds a record that comes right after what is known, by its number in the
// run and by its hash.
func (r *Run) applyNext(ctx context.Context, n next) error {
	// An illegal record is poison, which the memory holds then.
	if err := r.fold.ApplyEvent(ctx, n.subject, n.event, n.hash); err != nil && !Refused(err) {
		return err
	}
	r.advance(n.rec.Seq, len(n.rec.Body))
	return nil
}
