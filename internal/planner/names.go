package planner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// names are the names that a planner uses for providers and agents, and whether they are
// claimed.
type names struct {
	providers []string
	claims    []journal.Claim

	mu      sync.Mutex
	claimed bool
	// warned says that a contradiction was logged. blind says that this planner may not
	// read what others announce.
	warned, blind bool
}

func newNames(cfg Config) *names {
	n := &names{providers: slices.Sorted(maps.Keys(cfg.Providers))}
	for _, name := range slices.Sorted(maps.Keys(cfg.Agents)) {
		n.claims = append(n.claims, journal.Claim{Kind: journal.ClaimAgent, Name: name, Digest: cfg.Agents[name]})
	}
	for _, name := range n.providers {
		sum := sha256.Sum256([]byte(Identity(cfg.Providers[name])))
		n.claims = append(n.claims, journal.Claim{Kind: journal.ClaimProvider, Name: name, Digest: hex.EncodeToString(sum[:16])})
	}
	return n
}

// Announce announces once which providers this planner reaches. Run repeats it. The first
// time it waits until the names are free, as [announce.Claim] does, and fails with a
// *[journal.NameTakenError] if they are not.
func (p *Planner) Announce(ctx context.Context) error {
	p.lookForMissing(ctx)
	if err := p.claim(ctx); err != nil {
		return err
	}
	if err := p.announce(ctx); err != nil {
		return err
	}
	p.warnOfOthers(ctx)
	return nil
}

func (p *Planner) announce(ctx context.Context) error {
	return p.directory.AnnounceProviders(ctx, p.cfg.Instance, p.names.providers, p.names.claims...)
}

// claim claims the names, once. Of two planners that begin at the same moment, each sees
// the other after it has announced its own names, and gives way.
func (p *Planner) claim(ctx context.Context) error {
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	if p.names.claimed {
		return nil
	}
	dir, claims := p.directory, p.names.claims
	if err := announce.Claim(ctx, p.cfg.Logger, dir, p.cfg.Instance, claims); err != nil {
		return err
	}
	if err := p.announce(ctx); err != nil {
		return err
	}
	err := announce.Claimed(ctx, dir, p.cfg.Instance, claims)
	p.names.blind = errors.Is(err, journal.ErrDenied)
	if err != nil && !p.names.blind {
		return errors.Join(err, dir.WithdrawProviders(ctx, p.cfg.Instance))
	}
	p.names.claimed = true
	return nil
}

// claimNames repeats claim until it is known whether the names are taken. A bus that
// accepts no announcements does not stop a planner.
func (p *Planner) claimNames(ctx context.Context) error {
	var said sync.Once
	err := retry.Policy{First: time.Second}.Do(ctx, func(ctx context.Context) error {
		err := p.claim(ctx)
		var taken *journal.NameTakenError
		switch {
		case errors.As(err, &taken):
			return retry.Stop(err)
		case ctx.Err() != nil, errors.Is(err, journal.ErrDenied), errors.Is(err, journal.ErrNotReady), errors.Is(err, journal.ErrFull):
			return nil
		}
		return err
	}, func(err error, _ time.Duration) {
		said.Do(func() {
			p.cfg.Logger.Warn("cannot see whether other processes use the same names; it will be retried", "reason", err)
		})
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// warnOfOthers logs that another process uses a name for something else. That happens if
// one of the two had no connection to the bus.
func (p *Planner) warnOfOthers(ctx context.Context) {
	p.names.mu.Lock()
	blind := p.names.blind
	p.names.mu.Unlock()
	if blind {
		return
	}
	err := announce.Claimed(ctx, p.directory, p.cfg.Instance, p.names.claims)
	var taken *journal.NameTakenError
	if err != nil && !errors.As(err, &taken) {
		return
	}
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	if taken != nil && !p.names.warned {
		p.cfg.Logger.Error("another process uses the same name for something else: runs may be answered by the wrong process", "reason", err)
	}
	p.names.warned = taken != nil
}

// Withdraw withdraws the announcement, and with it the names: another process may use them
// for something else at once. The error is the bus's; then the announcement expires.
func (p *Planner) Withdraw(ctx context.Context) error {
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	p.names.claimed = false
	return p.directory.WithdrawProviders(ctx, p.cfg.Instance)
}
