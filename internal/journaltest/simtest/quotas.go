package simtest

import (
	"context"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// keeping is what [ports.Quotas] and [ports.Leases] keep.
type keeping struct {
	quotas   []byte
	revision uint64
	leaders  map[ports.Keep]*Process
}

// leasePoll is how often a process looks whether a lease is free, or still its own.
const leasePoll = time.Second

// Quotas returns the document of all quotas.
func (p *Process) Quotas(context.Context) (document []byte, revision uint64, err error) {
	err = p.locked(func(s *stores) { document, revision = slices.Clone(s.keeping.quotas), s.keeping.revision })
	if err == nil && revision == 0 {
		err = journal.ErrNotFound
	}
	return document, revision, err
}

// PutQuotas replaces the document, if it has the revision.
func (p *Process) PutQuotas(_ context.Context, document []byte, revision uint64) error {
	conflict := false
	err := p.locked(func(s *stores) {
		if conflict = s.keeping.revision != revision; !conflict {
			s.keeping.quotas, s.keeping.revision = slices.Clone(document), revision+1
		}
	})
	if conflict {
		return journal.ErrConflict
	}
	return err
}

// Lead calls work while this process has the lease. Nobody else has it before the process crashes or
// work ends.
func (p *Process) Lead(ctx context.Context, of ports.Keep, work func(ctx context.Context) error) error {
	for {
		mine := false
		err := p.locked(func(s *stores) {
			if s.keeping.leaders == nil {
				s.keeping.leaders = map[ports.Keep]*Process{}
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
