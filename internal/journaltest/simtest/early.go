package simtest

import (
	"context"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var (
	_ ports.Early   = (*Process)(nil)
	_ ports.Revised = (*Process)(nil)
)

// Revision implements [ports.Revised].
func (p *Process) Revision() int { return p.j.opts.Revision }

// AppendThen implements [ports.Early]. As often as [Faults.UnknownOutcome] says, nobody knows
// afterwards whether the disk has the entries. Half of these times the next read of the run fails.
func (p *Process) AppendThen(ctx context.Context, run events.Run, last uint64, then func(seq uint64), entries ...journal.Entry) (uint64, error) {
	seq, err := p.Append(ctx, run, last, entries...)
	if err != nil {
		return 0, err
	}
	then(seq)
	if err := p.alive(); err != nil {
		return 0, err
	}
	if !p.j.opts.happens(p.j.opts.Faults.UnknownOutcome, "flush", run.ID, seq) {
		return seq, nil
	}
	if p.j.opts.happens(0.5, "stall", run.ID, seq) {
		p.stalled.Store(run, true)
	}
	return 0, journal.ErrUnknownOutcome
}
