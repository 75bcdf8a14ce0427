package runlog

import (
	"bytes"
	"context"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// maxFetched is how many records are fetched one by one, from a delivered record
// back to what is known, before the tail is read instead.
const maxFetched = 4

// link is a record of the chain from a delivered record back to what is known.
type link struct {
	rec     journal.Record
	subject events.Subject
	event   *events.Event
	hash    string
}

// linkOf returns the link that a record makes, or false if it is none of the run's.
func (r *Run) linkOf(rec journal.Record, e *events.Event) (link, bool) {
	s, err := events.ParseSubject(rec.Subject)
	return link{rec: rec, subject: s, event: e, hash: events.Hash(rec.Body)}, err == nil && s.Run == r.ID
}

// bridge folds a delivered record and the few before it that other processes have
// appended since. It reports whether it did; if not, the run is as it was.
//
// Each record names the one before it by its hash, and where it lies by the
// condition under which it was appended. The latter is the writer's word, and only
// says which record is fetched: what is folded was handed out by the log, and the
// chain of hashes reaches from the delivered record to the one that was known to
// be the last. Of a run of which nothing is known it has to reach to the record that
// the log took as the run's first, and to begin with its head: what is delivered may
// have been delivered before, to somebody else, and a server that was killed may have
// lost it.
func (r *Run) bridge(ctx context.Context, rec journal.Record, e *events.Event) (bool, error) {
	missing, ok := r.missing(ctx, rec, e)
	if !ok {
		return false, nil
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := r.follow(ctx, missing[i]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// missing returns the records from the delivered one back to the first that is not
// known, or false where they are too many, or are not found in that way.
func (r *Run) missing(ctx context.Context, rec journal.Record, e *events.Event) ([]link, bool) {
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
	last, own := r.linkOf(rec, e)
	chain := []link{last}
	for own {
		if last.event.N == r.mem.N+1 {
			return chain, last.event.Prev == r.mem.Control.Head && (r.seq > 0 || last.rec.First)
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
		if last, own = r.linkOf(before, event); last.hash != prev {
			return nil, false
		}
		chain = append(chain, last)
	}
	return nil, false
}

// follow folds a record that comes right after what is known, by its number in the
// run and by its hash.
func (r *Run) follow(ctx context.Context, l link) error {
	// An illegal record is poison, which the memory holds then.
	if err := r.fold.ApplyEvent(ctx, l.subject, l.event, l.hash); err != nil && !Refused(err) {
		return err
	}
	r.advance(l.rec.Seq, len(l.rec.Body))
	return nil
}
