package runlog

import (
	"bytes"
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxFetched is how many records of a known run are fetched one by one, back from a
	// delivered record, before the tail is read instead. A read of the tail makes the server
	// look through the records of all runs since, for each record that it finds.
	maxFetched = 32
	// maxTraced is how many are fetched back to the first record of an unknown run. A read
	// from the log's beginning finds the run's records by their subjects.
	maxTraced = 4
)

// next is a decoded record of this run.
type next struct {
	rec     journal.Record
	subject events.Subject
	event   *events.Event
	hash    string
}

// nextOf returns a decoded record. It returns false if the record is of another run.
func (r *Run) nextOf(rec journal.Record, e *events.Event) (next, bool) {
	s, err := events.ParseSubject(rec.Subject)
	return next{rec: rec, subject: s, event: e, hash: events.Hash(rec.Body)}, err == nil && s.Run == r.ID
}

// fillGap folds a delivered record and the few before it that other processes appended
// since. It reports whether it did; if not, the run is unchanged.
//
// Each record names the one before it by its hash. The condition under which it was
// appended says where that one is. The place is only the writer's word: it says which
// record to fetch. What is folded comes from the log, and the hashes connect the delivered
// record with the last known one. If nothing of the run is known, they have to reach the
// record that the log took as the run's first. The delivered record then has to be the
// run's head, since a server that was killed may deliver a record again, or lose one that
// it had delivered.
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

// gap returns the records from the delivered one back to the first unknown one. It returns
// false if there are too many, or they cannot be found in this way.
func (r *Run) gap(ctx context.Context, rec journal.Record, e *events.Event) ([]next, bool) {
	log, can := r.store.log.(ports.Fetcher)
	most := uint64(maxFetched)
	if r.seq == 0 {
		most = maxTraced
	}
	if !can || e.N <= r.mem.N+1 || e.N-r.mem.N-1 > most {
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

// applyNext folds a record that directly follows the last known one, by its number in the
// run and by its hash.
func (r *Run) applyNext(ctx context.Context, n next) error {
	// An illegal record is poison, which the memory then holds.
	if err := r.fold.ApplyEvent(ctx, n.subject, n.event, n.hash); err != nil && !Refused(err) {
		return err
	}
	r.advance(n.rec.Seq, len(n.rec.Body))
	return nil
}
