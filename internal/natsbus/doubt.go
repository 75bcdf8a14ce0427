package natsbus

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// unansweredAfter is how long an append to several replicas waits for its answer
// before it looks what became of it. After each try that came to nothing the next one
// waits twice as long, and so does the pause before it.
const unansweredAfter = time.Second

// doubt is what an append, or a batch of some, does about an answer that does not
// come. Where a stream has replicas, nobody answers what its leader had under way
// when another one was elected: an append that reached the old leader too late is
// dropped, and one that it had proposed is stored or not. So after a while the log
// itself is asked, and where it does not hold the append, that is sent again under
// the same condition, by which it cannot be stored twice, unless its run is purged
// meanwhile. On one server no answer means that the server is away, and whoever asks
// waits for it.
type doubt struct {
	bus      *Bus
	deadline time.Time
	// wait is how long the next try waits, pause how long there is none before it.
	wait, pause time.Duration
	// open says that a try was not answered, and may be stored whatever the later
	// ones come to.
	open bool
}

func (b *Bus) newDoubt(deadline time.Time) doubt {
	d := doubt{bus: b, deadline: deadline, wait: unansweredAfter, pause: appendRetry}
	if b.Replicas <= 1 {
		d.wait = time.Until(deadline)
	}
	return d
}

// until returns when a try that begins now, or a look, is given up.
func (d *doubt) until() time.Time {
	if at := time.Now().Add(d.wait); at.Before(d.deadline) {
		return at
	}
	return d.deadline
}

// opens notes how a try failed, and reports whether the append may be stored. What
// was not sent to its end is not.
func (d *doubt) opens(err error) bool {
	d.open = d.open || d.bus.Replicas > 1 && errors.Is(err, nats.ErrTimeout) && !errors.Is(err, errUncommitted)
	return d.open
}

// errAgain says that an append is to be sent again.
var errAgain = errors.New("the append is to be sent again")

// settle returns what appends came to that are in doubt, given how the last try
// failed: the last record's sequence number if they are stored, ErrConflict if they
// are not and never will be, errAgain, or at the end of the time ErrInDoubt.
func (d *doubt) settle(ctx context.Context, failed error, all ...groupcommit.Pending) (uint64, error) {
	code, _ := api.Code(failed)
	lost := code == api.CodeWrongLastSequence || code == api.CodeWrongLastConstant
	if !lost && !unsent(failed) && !errors.Is(failed, nats.ErrTimeout) {
		return 0, api.Join(journal.ErrInDoubt, failed)
	}
	d.bus.Log.Debug("an append was not answered", "run", all[0].Run.ID, "after", all[0].Last, "appends", len(all), "last try", failed)
	look, cancel := context.WithDeadline(ctx, d.until())
	defer cancel()
	last, err := d.bus.standing(look, all, lost)
	if err == nil || errors.Is(err, journal.ErrConflict) {
		return last, err
	}
	if !d.again(ctx) {
		return 0, api.Join(journal.ErrInDoubt, failed)
	}
	return 0, errAgain
}

// again pauses before the next try, and reports false where the time is over.
func (d *doubt) again(ctx context.Context) bool {
	if !pauseUntil(ctx, d.deadline, d.pause) {
		return false
	}
	d.wait, d.pause = 2*d.wait, 2*d.pause
	return true
}

// standing returns the sequence number of the last record of appends that are
// stored, together if they are several. The error is ErrConflict if another record
// stands where one of them belongs, so that they never will be, and ErrNotFound if
// none does as far as the replica knows that answers. Of several all are stored or
// none, so that the first and the last one say it; the others are looked for if one
// of them is known to be refused.
func (b *Bus) standing(ctx context.Context, all []groupcommit.Pending, refused bool) (uint64, error) {
	last, err := b.standingOne(ctx, all[len(all)-1])
	if err == nil && len(all) > 1 {
		var first uint64
		if first, err = b.standingOne(ctx, all[0]); err == nil && last-first != between(all) {
			err = journal.ErrConflict // they are others' records, though the same
		}
	}
	if err == nil || !refused || !errors.Is(err, journal.ErrNotFound) {
		return last, err
	}
	for _, p := range all[:len(all)-1] {
		if _, other := b.standingOne(ctx, p); other != nil && !errors.Is(other, journal.ErrNotFound) {
			return 0, other
		}
	}
	return 0, err
}

// between is how many entries there are behind the first append.
func between(all []groupcommit.Pending) (entries uint64) {
	for _, p := range all[1:] {
		entries += uint64(len(p.Entries))
	}
	return entries
}

// standingOne is standing for one append. Records are compared by their subjects and
// bodies: an event has an id of its own in its body.
func (b *Bus) standingOne(ctx context.Context, p groupcommit.Pending) (uint64, error) {
	n := 0
	for rec, err := range b.Read(ctx, p.Run, p.Last) {
		if err != nil {
			return 0, err
		}
		if e := p.Entries[n]; rec.Subject != e.Subject.String() || !bytes.Equal(rec.Body, e.Body) {
			return 0, journal.ErrConflict
		}
		if n++; n == len(p.Entries) {
			return rec.Seq, nil
		}
	}
	return 0, journal.ErrNotFound
}
