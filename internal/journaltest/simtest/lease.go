package simtest

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
)

// keeping is what [ports.Leases] keep.
type keeping struct {
	leaders map[ports.RoleKey]*Process
}

// leasePoll is how often a process looks whether a lease is free, or still its own.
const leasePoll = time.Second

// Lead calls work while this process has the lease. Nobody else has it before the process crashes or
// work ends.
func (p *Process) Lead(ctx context.Context, of ports.RoleKey, work func(ctx context.Context) error) error {
	for {
		mine := false
		err := p.locked(func(s *stores) {
			if s.keeping.leaders == nil {
				s.keeping.leaders = map[ports.RoleKey]*Process{}
			}
			if l := s.keeping.leaders[of]; l == nil || l.alive() != nil {
				s.keeping.leaders[of], mine = p, true
			}
		})
		if mine {
			err = work(ctx)
			_ = p.locked(func(s *stores) { delete(s.keeping.leaders, of) })
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err != nil {
			return err
		}
		if !retry.Wait(ctx, leasePoll) {
			return nil
		}
	}
}
