package natsbus

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// paceWindow is how many answers are looked at together, paceWindows in how many
	// such windows a decision is made.
	paceWindow  = 32
	paceWindows = 4
	// flushTime tells the servers apart: measured, one that does not flush stores an
	// append in 20 to 60 us and one that does in 180 us and more, on a disk that is
	// quick to flush.
	flushTime = 100 * time.Microsecond
	// closeEnough is how many more records that were stored closer than a flush to the
	// one before them than others show that none are flushed, for closeFor.
	closeEnough = 32
	closeFor    = 30 * time.Second
)

// pace tells from the time that appends take whether the server flushes each of
// them to the disk. It goes by the quickest that it saw: nothing is quicker than a
// flush where each is flushed, while where none is a busy processor makes some slow
// and others not. It looks at appends that met no other one, without the way there and
// back, and at how closely answers follow on each other while appends are under
// way. Where other processes keep the server busy as well, both are slow for their
// sake; then it tells by the times of records that lie beside each other, as far as
// they are delivered here: the server has one clock, and flushes a record before it
// stores the next one. The zero value looks at nothing.
type pace struct {
	// looking is set where it is to be found out.
	looking bool
	trip    time.Duration
	slow    atomic.Bool

	mu       sync.Mutex
	inFlight int
	// mark is the last answer, or the first append after a time without any.
	mark time.Time
	// fresh says that nothing was answered since then.
	fresh bool
	// busy is how long appends were under way in this window of so many answers.
	busy    time.Duration
	answers int

	windows  int
	quickest time.Duration

	// closely counts records that were stored right after the one before them, until
	// they are enough; then unflushed is how long that is taken for shown.
	closely   int
	unflushed time.Time
}

// begin lets the pace be looked at, given how long the way to the server and back
// takes.
func (p *pace) begin(trip time.Duration) { p.looking, p.trip, p.quickest = true, trip, unseen }

// unseen is more than any append takes.
const unseen = time.Hour

// flushes reports whether each append is flushed, as far as is known.
func (p *pace) flushes() bool { return p.slow.Load() }

// sent notes an append on its way.
func (p *pace) sent() {
	if p.looking {
		p.sentAt(time.Now())
	}
}

func (p *pace) sentAt(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inFlight++; p.inFlight == 1 {
		p.mark, p.fresh = now, true
	}
}

// answered notes the end of one; counts says whether its time says anything.
func (p *pace) answered(counts bool) {
	if p.looking {
		p.answeredAt(time.Now(), counts)
	}
}

func (p *pace) answeredAt(now time.Time, counts bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := now.Sub(p.mark)
	p.inFlight--
	p.mark = now
	if !counts {
		p.busy, p.answers = 0, 0 // a window is one of answers
		return
	}
	if p.fresh {
		took = max(took-p.trip, 0)
		if p.inFlight == 0 {
			p.quickest = min(p.quickest, took)
		}
	}
	p.fresh = false
	p.busy += took
	if p.answers++; p.answers == paceWindow {
		p.decide(now)
	}
}

// stored notes that a record was stored so long after the one before it, which is not
// of the same batch.
func (p *pace) stored(after time.Duration) {
	switch {
	case !p.looking || after < 0:
	case after < flushTime:
		p.storedAt(time.Now())
	default:
		p.storedApart()
	}
}

// storedApart counts a record that a flush fits before. A busy server that flushes
// notes the time of a record late now and then, so a few close ones among many show
// nothing.
func (p *pace) storedApart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closely = max(0, p.closely-1)
}

func (p *pace) storedAt(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closely++; p.closely >= closeEnough {
		p.closely, p.unflushed = 0, now.Add(closeFor)
		p.slow.Store(false)
	}
}

// decide ends a window, and says what is known after some. The lock is held.
func (p *pace) decide(now time.Time) {
	p.quickest = min(p.quickest, p.busy/paceWindow)
	p.busy, p.answers = 0, 0
	if p.windows++; p.windows == paceWindows {
		p.slow.Store(p.quickest >= flushTime && now.After(p.unflushed))
		p.windows, p.quickest = 0, unseen
	}
}

// reset forgets what was seen: the server may be another one.
func (p *pace) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.answers, p.windows, p.quickest = 0, 0, 0, unseen
	p.closely, p.unflushed = 0, time.Time{}
	p.slow.Store(false)
}

// roundTrip is the quickest of some ways to the server and back; 0 if it is away.
func roundTrip(conn *nats.Conn) time.Duration {
	quickest := unseen
	for range 5 {
		took, err := conn.RTT()
		if err != nil {
			return 0
		}
		quickest = min(quickest, took)
	}
	return quickest
}
