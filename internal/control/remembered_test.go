package control_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// watching runs a gateway on a simulated bus, without HTTP, until stop is called.
func watching(t *testing.T, b *simulated.Journal) (g *control.Controller, stop func()) {
	t.Helper()
	return watchingOn(t, b, b)
}

// watchingOn is watching with announcements in the directory.
func watchingOn(t *testing.T, b *simulated.Journal, d journal.Directory) (g *control.Controller, stop func()) {
	t.Helper()
	g, err := control.New(control.Config{
		Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Timers: b, Directory: d, Agents: b, Instance: "test",
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	return g, func() { cancel(); require.NoError(t, <-done) }
}

// TestFirstAnnouncement: a tool that several pools announce with one definition belongs to the one that
// announced it first, whatever their names and however often they announce it, also for
// a gateway that starts later. When that pool has gone for a while, it is another one's.
func TestFirstAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := simulated.New(simulated.Options{})
		_, stop := watching(t, b)
		announce := func(pool string) {
			spec := searchTool
			spec.Name, spec.Pool = "pay", pool
			require.NoError(t, b.Announce(t.Context(), pool, "x", []events.ToolSpec{spec}))
		}
		first := func() string {
			o, err := b.Offers(t.Context())
			require.NoError(t, err)
			return o.First["pay"]
		}
		announce("payments")
		time.Sleep(3 * time.Second) // in the bubble
		announce("attic")
		for range 4 {
			time.Sleep(10 * time.Second) // in the bubble
			announce("attic")
			announce("payments")
			require.Equal(t, "payments", first())
		}
		stop()
		_, stop = watching(t, b)
		defer stop()
		announce("attic")
		time.Sleep(3 * time.Second) // in the bubble
		require.Equal(t, "payments", first())

		require.NoError(t, b.Withdraw(t.Context(), "payments", "x"))
		time.Sleep(5 * time.Second) // in the bubble
		require.Equal(t, "payments", first(), "it may only start again")
		announce("attic")
		time.Sleep(10 * time.Second) // in the bubble
		require.Equal(t, "attic", first())
	})
}

// counted counts how often announcements are read.
type counted struct {
	journal.Directory
	tools, offers atomic.Int64
}

func (c *counted) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	c.tools.Add(1)
	return c.Directory.Tools(ctx)
}

func (c *counted) Offers(ctx context.Context) (journal.Offers, error) {
	c.offers.Add(1)
	return c.Directory.Offers(ctx)
}

// TestOneReadATick: a gateway that has nothing to do reads announcements once a second.
func TestOneReadATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := simulated.New(simulated.Options{})
		d := &counted{Directory: b}
		_, stop := watchingOn(t, b, d)
		time.Sleep(10*time.Second + time.Millisecond) // in the bubble
		stop()
		require.EqualValues(t, 11, d.tools.Load())
		require.EqualValues(t, 11, d.offers.Load())
	})
}
