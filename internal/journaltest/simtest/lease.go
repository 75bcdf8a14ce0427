package simtest

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
)

// held is a lease: who has it, and how often it was given.
type held struct {
	by  *Process
	nth int
}

// leasePoll is how often a process looks whether a lease is free.
const leasePoll = time.Second

// Lead calls work while this process has the lease. Nobody else has it before the process
// crashes, work ends, or the fault Lease takes it away: then another process may begin while
// work still notices that its context ended.
func (p *Process) Lead(ctx context.Context, of ports.RoleKey, work func(ctx context.Context) error) error {
	for {
		nth := 0
		err := p.locked(func(s *stores) {
			if l := s.leases[of]; l.by == nil || l.by.alive() != nil {
				nth = l.nth + 1
				s.leases[of] = held{p, nth}
			}
		})
		if err != nil {
			return err
		}
		if nth > 0 {
			err, lost := p.lead(ctx, of, nth, work)
			if ctx.Err() != nil {
				return nil
			}
			if !lost {
				return err
			}
		}
		if !retry.Wait(ctx, leasePoll) {
			return nil
		}
	}
}

// lead calls work until it ends, and reports whether the lease was lost before.
func (p *Process) lead(ctx context.Context, of ports.RoleKey, nth int, work func(ctx context.Context) error) (err error, lost bool) {
	giveBack := func() {
		_ = p.locked(func(s *stores) { // a dead process has it no more
			if s.leases[of] == (held{p, nth}) {
				s.leases[of] = held{nth: nth}
			}
		})
	}
	defer giveBack()
	if o := p.j.opts; o.happens(o.Faults.Lease, "lease", of, nth) {
		var end func()
		ctx, end = context.WithTimeout(ctx, o.part(4*o.AckWait, "lease for", of, nth))
		defer end()
		defer context.AfterFunc(ctx, giveBack)()
	}
	err = work(ctx)
	return err, ctx.Err() != nil
}
