package httpapi

import (
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// tail follows a run's records for a stream: it numbers them and knows when the run has ended.
// It checks each event against the chain, the table and its subject, as the fold does, but
// keeps no memory.
type tail struct {
	table *reducer.Table
	run   events.Run

	n        uint64
	head     string
	state    events.State
	poisoned bool
	// forked says that the last event was a Forked.
	forked bool
}

// newTail is a tail before the run's first event.
func (s *Server) newTail(run events.Run) tail {
	table := s.control.Table
	return tail{table: table, run: run, state: table.Initial()}
}

// fits reports whether an event may be where it is. The state in which a fork begins is not
// checked: only its parent's log has it.
func (t *tail) fits(subject string, e *events.Event) bool {
	s, err := events.ParseSubject(subject)
	return err == nil && reducer.CheckEdge(t.table, s, e) == nil && (e.Type() != events.TypeForked || t.n == 1)
}

// advance applies the run's next record.
func (t *tail) advance(f *frame) {
	t.n++
	prev := t.head
	t.head = f.hash
	e := f.event
	if e == nil {
		t.poisoned = true
		return
	}
	typ := e.Type()
	if t.forked && t.n == 2 && e.From == t.table.Initial() {
		// The fork was not legal: readers of its parent found it to be poison.
		t.state, t.poisoned = e.From, true
	}
	legal := t.fits(f.record.Subject, e) && e.N == t.n && e.Prev == prev && e.From == t.state
	if legal && t.poisoned {
		legal = typ == events.TypeFatalError || typ == events.TypeCancelled
	}
	if legal {
		t.state, t.forked = e.To, typ == events.TypeForked
	} else {
		t.poisoned = true
	}
}

func (t *tail) ended() bool { return t.table.Terminal(t.state) }
