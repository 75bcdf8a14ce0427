package natsbus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

var ofTest = ports.RoleKey{Role: "gateway", Name: "test"}

// lead leads until stop is called. began gets the context of each call of the work.
func lead(t *testing.T, bus *Bus, work func(ctx context.Context) error) (began <-chan context.Context, stop func() error) {
	t.Helper()
	calls, ended := make(chan context.Context, 10), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- bus.Lead(ctx, ofTest, func(ctx context.Context) error {
			calls <- ctx
			return work(ctx)
		})
	}()
	return calls, func() error { cancel(); return <-ended }
}

func untilLost(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// One of two leads, and the other one follows as soon as the first gives the lease back.
func TestOneLeads(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	first, stopFirst := lead(t, bus, untilLost)
	<-first
	second, stopSecond := lead(t, bus, untilLost) // which asks at once, and must not get it
	l := lease{b: bus, of: ofTest, holder: "another"}
	require.ErrorIs(t, l.take(t.Context()), journal.ErrConflict)
	require.Empty(t, second)
	require.NoError(t, stopFirst())
	<-second
	require.NoError(t, stopSecond())
}

// A holder whose lease was taken from it stops working, and waits for it again.
func TestALostLeaseEndsTheWork(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	began, stop := lead(t, bus, untilLost)
	working := <-began
	thief := lease{b: bus, of: ofTest, holder: "thief"}
	rec, err := bus.HeadOn(t.Context(), "KV_leases_gateway", "$KV.leases_gateway.test")
	require.NoError(t, err)
	thief.revision = rec.Seq
	require.NoError(t, thief.put(t.Context(), thief.holder))
	select {
	case <-working.Done():
	case <-time.After(time.Minute):
		require.Fail(t, "the work goes on without its lease")
	}
	thief.giveBack(t.Context())
	<-began
	require.NoError(t, stop())
}

// The error of work ends Lead, and the lease is free then.
func TestWorkFails(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	wrong := errors.New("wrong")
	require.ErrorIs(t, bus.Lead(t.Context(), ofTest, func(context.Context) error { return wrong }), wrong)
	began, stop := lead(t, bus, untilLost)
	<-began
	require.NoError(t, stop())
	require.Error(t, bus.Lead(t.Context(), ports.RoleKey{Role: "a.b", Name: "c"}, untilLost))
}

// Who died is followed when the server has forgotten the lease.
func TestTheDeadAreFollowed(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for a lease to end by itself, which takes 12 s
	}
	t.Parallel()
	bus := newBus(t, 1)
	dead := lease{b: bus, of: ofTest, holder: "dead"}
	require.NoError(t, dead.take(t.Context()))
	began, stop := lead(t, bus, untilLost)
	select {
	case <-began:
	case <-time.After(time.Minute):
		require.Fail(t, "nobody follows")
	}
	require.GreaterOrEqual(t, time.Since(dead.sent), leaseTTL)
	require.NoError(t, stop())
}
