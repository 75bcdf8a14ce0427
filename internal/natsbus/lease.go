package natsbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// A lease is a key that the server forgets after leaseTTL. Its holder renews it every leaseRenew,
// and stops working when leaseHeld has passed since it sent the last renewal that the server took:
// the server counts from a later moment, so nobody else has the lease before leaseTTL.
const (
	leaseTTL   = 12 * time.Second
	leaseRenew = 3 * time.Second
	leaseHeld  = 8 * time.Second
	// leasePoll is how often a process that waits looks whether the lease is free.
	leasePoll = time.Second
)

// leasesPrefix begins the names of the buckets of leases, one for each role.
const leasesPrefix = "leases_"

func leases(role string) kv.Bucket {
	return kv.Bucket{Name: leasesPrefix + role, About: "what one " + role + " at a time does", Keys: "*", Lifetime: leaseTTL}
}

// Lead calls work while this process has the lease.
func (b *Bus) Lead(ctx context.Context, of ports.RoleKey, work func(ctx context.Context) error) error {
	if err := checkRoleKey(of); err != nil {
		return err
	}
	l := lease{b: b, of: of, holder: nats.NewInbox()}
	for {
		err := l.take(ctx)
		switch {
		case ctx.Err() != nil:
			l.giveBack(ctx)
			return nil
		case err == nil:
			if done, err := l.hold(ctx, work); done {
				return err
			}
		case errors.Is(err, journal.ErrDenied), errors.Is(err, journal.ErrNotReady), errors.Is(err, nats.ErrConnectionClosed):
			return fmt.Errorf("lease %s of %s: %w", of.Name, of.Role, err)
		}
		if !retry.Wait(ctx, leasePoll) {
			return nil
		}
	}
}

func checkRoleKey(of ports.RoleKey) error {
	if !events.ValidToken(of.Role) || !events.ValidToken(of.Name) {
		return fmt.Errorf("%q of role %q: not names of [a-z0-9][a-z0-9_-]{0,62}", of.Name, of.Role)
	}
	return nil
}

// lease is a lease that this process has or wants. A key without a value is free.
type lease struct {
	b  *Bus
	of ports.RoleKey
	// holder distinguishes this process's values from those of others.
	holder string
	// revision is that of the key when it was last this process's, sent when that was asked for.
	revision uint64
	sent     time.Time
}

// take takes the lease if it is free, or still this process's. Otherwise the error is
// journal.ErrConflict.
func (l *lease) take(ctx context.Context) error {
	has, err := l.b.Get(ctx, leases(l.of.Role), l.of.Name)
	switch {
	case errors.Is(buckets.OrNone(err), journal.ErrNotFound): // put makes the bucket, if it may
		l.revision = 0
	case err != nil:
		return api.Classify(err)
	case string(has.Value) != l.holder:
		return journal.ErrConflict
	default:
		l.revision = has.Revision
	}
	return l.put(ctx, l.holder)
}

// put writes the key on condition that nobody else did.
func (l *lease) put(ctx context.Context, value string) error {
	sent := time.Now()
	revision, err := l.b.Update(ctx, leases(l.of.Role), kv.Item{Key: l.of.Name, Value: []byte(value), Revision: l.revision})
	if err == nil {
		l.revision, l.sent = revision, sent
	}
	return err
}

// hold works until the lease is lost. done says that Lead is to end with the error.
func (l *lease) hold(ctx context.Context, work func(ctx context.Context) error) (done bool, err error) {
	working, lose := context.WithCancel(ctx)
	defer lose()
	ended := make(chan error, 1)
	go func() { ended <- work(working) }()
	lost := l.renew(working, ended)
	if lost == nil { // work ended, or ctx
		lose()
		err = <-ended
		l.giveBack(ctx)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil
		}
		return true, err
	}
	l.b.Log.Warn("a lease was lost; another process continues its work", "lease", l.of.Name, "reason", lost)
	lose()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return true, err
	}
	return ctx.Err() != nil, nil
}

// renew renews the lease until working ends or work has ended, whose error it leaves in the
// channel. If the lease is lost before, it returns why.
func (l *lease) renew(working context.Context, ended chan error) error {
	tick := time.NewTicker(leaseRenew)
	defer tick.Stop()
	for {
		select {
		case <-working.Done():
			return nil
		case err := <-ended:
			ended <- err
			return nil
		case <-tick.C:
		}
		if err := l.renewOnce(working); err != nil && working.Err() == nil {
			return err
		}
	}
}

// renewOnce renews the lease, again and again while the bus is away and the lease may be held.
func (l *lease) renewOnce(working context.Context) error {
	ctx, stop := context.WithDeadline(working, l.sent.Add(leaseHeld))
	defer stop()
	for {
		err := l.put(ctx, l.holder)
		if errors.Is(err, journal.ErrConflict) {
			err = l.take(ctx) // it may be this process's own renewal whose answer was lost
		}
		if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrDenied) || errors.Is(err, journal.ErrNotReady) {
			return err
		}
		if !retry.Wait(ctx, leasePoll/4) {
			return err
		}
	}
}

// giveBack frees the lease if it is this process's. Otherwise the server forgets it in time.
func (l *lease) giveBack(ctx context.Context) {
	if l.sent.IsZero() {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), leasePoll)
	defer stop()
	_ = l.put(ctx, "")
}

// UseLease allows to hold a lease, and to keep positions of its name.
func (g *Grants) UseLease(of ports.RoleKey) {
	for _, bucket := range []kv.Bucket{leases(of.Role), buckets.Positions(of.Role)} {
		g.ReadBucket(bucket)
		g.WriteKeys(bucket, of.Name)
	}
}
