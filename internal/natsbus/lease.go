package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// The buckets of leases and positions, one for each role: who may write one key of a bucket can
// empty it.
const (
	leasesPrefix    = "leases_"
	positionsPrefix = "positions_"
)

// keepingRoles are the roles that have such buckets.
var keepingRoles = []string{"gateway", "telemetry"}

func leasesConfig(role string, replicas int) jetstream.KeyValueConfig {
	cfg := bucketConfig(leasesPrefix+role, "Moorebus: what one "+role+" at a time does", replicas)
	cfg.TTL = leaseTTL
	return cfg
}

func positionsConfig(role string, replicas int) jetstream.KeyValueConfig {
	return bucketConfig(positionsPrefix+role, "Moorebus: where readers of the log are, of role "+role, replicas)
}

// Lead calls work while this process has the lease.
func (b *Bus) Lead(ctx context.Context, of ports.Keep, work func(ctx context.Context) error) error {
	if err := checkKeep(of); err != nil {
		return err
	}
	l := lease{b: b, of: of, subject: kvSubjectPrefix + leasesPrefix + of.Role + "." + of.Name, holder: nats.NewInbox()}
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

func checkKeep(of ports.Keep) error {
	if !events.ValidToken(of.Role) || !events.ValidToken(of.Name) {
		return fmt.Errorf("%q of role %q: not names of [a-z0-9][a-z0-9_-]{0,62}", of.Name, of.Role)
	}
	return nil
}

// lease is a lease that this process has or wants. A key without a value is free.
type lease struct {
	b       *Bus
	of      ports.Keep
	subject string
	// holder tells this process's values from those of others.
	holder string
	// revision is that of the key when it was last this process's, sent when that was asked for.
	revision uint64
	sent     time.Time
}

// take takes the lease if it is free, or still this process's. Otherwise the error is
// journal.ErrConflict.
func (l *lease) take(ctx context.Context) error {
	rec, err := l.b.HeadOn(ctx, kvStreamPrefix+leasesPrefix+l.of.Role, l.subject)
	switch {
	case errors.Is(err, journal.ErrNotFound), errors.Is(err, journal.ErrNotReady): // put makes the bucket, if it may
		l.revision = 0
	case err != nil:
		return api.Classify(err)
	case len(rec.Body) > 0 && string(rec.Body) != l.holder:
		return journal.ErrConflict
	default:
		l.revision = rec.Seq
	}
	return l.put(ctx, l.holder)
}

// put writes the key on condition that nobody else did.
func (l *lease) put(ctx context.Context, value string) error {
	msg := nats.NewMsg(l.subject)
	msg.Data = []byte(value)
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(l.revision, 10))
	sent := time.Now()
	revision, err := l.b.putMsg(ctx, msg, func() error { return l.b.createBucket(ctx, leasesConfig(l.of.Role, l.b.Replicas)) })
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
	l.b.Log.Warn("a lease was lost, and what it stands for goes on elsewhere", "lease", l.of.Name, "reason", lost)
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

// Position returns what is kept under a name.
func (b *Bus) Position(ctx context.Context, of ports.Keep) (value []byte, revision uint64, err error) {
	if err := checkKeep(of); err != nil {
		return nil, 0, err
	}
	bucket := positionsPrefix + of.Role
	rec, err := b.HeadOn(ctx, kvStreamPrefix+bucket, kvSubjectPrefix+bucket+"."+of.Name)
	if errors.Is(err, journal.ErrNotReady) {
		err = fmt.Errorf("no bucket %s: %w", bucket, journal.ErrNotFound) // PutPosition makes it
	}
	if err != nil {
		return nil, 0, fmt.Errorf("position %s of %s: %w", of.Name, of.Role, err)
	}
	return rec.Body, rec.Seq, nil
}

// PutPosition replaces what is kept under a name, if it has the revision.
func (b *Bus) PutPosition(ctx context.Context, of ports.Keep, value []byte, revision uint64) (uint64, error) {
	if err := checkKeep(of); err != nil {
		return 0, err
	}
	msg := nats.NewMsg(kvSubjectPrefix + positionsPrefix + of.Role + "." + of.Name)
	msg.Data = value
	msg.Header.Set(api.HeaderExpectSeq, strconv.FormatUint(revision, 10))
	revision, err := b.putMsg(ctx, msg, func() error { return b.createBucket(ctx, positionsConfig(of.Role, b.Replicas)) })
	if err != nil {
		return 0, fmt.Errorf("position %s of %s: %w", of.Name, of.Role, err)
	}
	return revision, nil
}

// Keep allows to hold a lease, and to keep positions of its name.
func (g *Grants) Keep(of ports.Keep) {
	for _, bucket := range []string{leasesPrefix + of.Role, positionsPrefix + of.Role} {
		g.read(kvStreamPrefix + bucket)
		g.api("STREAM.MSG.GET." + kvStreamPrefix + bucket)
		g.publish[kvSubjectPrefix+bucket+"."+of.Name] = true
	}
}
