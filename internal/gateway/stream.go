package gateway

import (
	"context"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// tail follows a run's records as far as a reader needs to know: how many there
// are, what each of them is called, and whether the run has ended. It holds each
// event to the chain, the table and its subject, as the fold does, but keeps no memory.
type tail struct {
	table *reducer.Table

	n        uint64
	head     string
	state    events.State
	poisoned bool
	// forked says that the last event was a Forked.
	forked bool
}

// fits reports whether an event may be where it is. Where a fork begins only its
// parent's log says: its word is taken for it.
func (t *tail) fits(subject string, e *events.Event) bool {
	s, err := events.ParseSubject(subject)
	return err == nil && reducer.CheckEdge(t.table, s, e) == nil && (e.Type() != events.TypeForked || t.n == 1)
}

// next takes the run's next record.
func (t *tail) next(f *frame) {
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
		// The fork was not legal: who read its parent took it for poison.
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

// position is a tail with the sequence number of its last record.
type position struct {
	tail
	run events.Run
	seq uint64
}

// start is the position before a run's first event.
func (g *Gateway) start(at events.Run) position {
	return position{tail: tail{table: g.table, state: g.table.Initial()}, run: at}
}

// end is the position after a run's last event.
func (g *Gateway) end(ctx context.Context, ns, id string) (position, error) {
	var p position
	err := g.look(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		p = g.start(run.ID)
		p.n, p.head, p.state = mem.N, mem.Control.Head, mem.State
		p.poisoned, p.seq = mem.Control.Poison != nil, run.Seq()
		return nil
	})
	return p, err
}

// follow sends a shard's records to out until the context ends.
func (g *Gateway) follow(ctx context.Context, shard int, filter journal.Filter, after uint64, out chan<- shardRecord) error {
	for rec, err := range g.followed.Follow(ctx, shard, filter, after) {
		if err != nil {
			return err
		}
		select {
		case out <- shardRecord{shard, rec}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

type shardRecord struct {
	shard int
	journal.Record
}
