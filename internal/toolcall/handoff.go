package toolcall

import (
	"context"
	"fmt"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// inForce returns what holds for the run's calls after its event until (0: now): what its
// first record or its last hand-off pins. Only the role subagent can have published a
// hand-off.
func (g *Guard) inForce(ctx context.Context, run events.Run, until uint64) (*pin, error) {
	for {
		first, err := g.pinned(ctx, run)
		if err != nil || !first.delegates {
			return first, err
		}
		p, err := g.handedOff(ctx, run, until)
		if err != nil || p != nil {
			return p, err
		}
		if first.fork == nil || first.fork.Agent != nil || events.CheckID(first.fork.Run) != nil {
			return first, nil
		}
		// [Guard.pinned] has bounded how many ancestors there are.
		run, until = events.NewRun(run.Namespace, first.fork.Run, g.log.Shards()), first.fork.At
	}
}

// handedOff returns what the run's last hand-off up to an event (0: its head) pins,
// nil if there is none.
func (g *Guard) handedOff(ctx context.Context, run events.Run, until uint64) (*pin, error) {
	var last *pin
	filter := journal.Filter{Namespace: run.Namespace, From: events.Acting, To: events.Nobody, Pool: events.AgentsPool, Run: run.ID}
	for rec, err := range g.log.Scan(ctx, run.Shard, filter, 0) {
		if err != nil {
			return nil, fmt.Errorf("reading the hand-offs of run %s: %w", run.ID, err)
		}
		e, err := g.machine.Codec().Decode(rec.Body)
		if err != nil || e.Run != run.ID || until > 0 && e.N > until {
			continue
		}
		if p, ok := e.Data.(*events.HandedOff); ok {
			last = newPin(p.Agent.Approval, p.Tools)
		}
	}
	return last, nil
}
