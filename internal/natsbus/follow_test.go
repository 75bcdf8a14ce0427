package natsbus

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// follow returns the bodies that a follower of all runs yields.
func follow(ctx context.Context, t *testing.T, bus *Bus) <-chan string {
	bodies, ended := make(chan string), make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for rec, err := range bus.Follow(ctx, 0, journal.Filter{Namespace: events.DefaultNamespace}, 0) {
			if err != nil {
				return
			}
			select {
			case bodies <- string(rec.Body):
			case <-ctx.Done():
				return
			}
		}
	}()
	return bodies
}

// TestFollowThroughAConsumer shows that a follower of many runs reads through one consumer, misses
// and repeats nothing when that is removed, and leaves none behind.
func TestFollowThroughAConsumer(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	ctx, cancel := context.WithCancel(patiently(t))
	defer cancel()
	run := journaltest.NewRun(t, bus)
	bodies := follow(ctx, t, bus)
	var last uint64
	for i := range 40 {
		seq, err := persist(ctx, bus, run, last, entryTo(run, events.Observing, "default", fmt.Append(nil, i)))
		require.NoError(t, err)
		last = seq
		require.Equal(t, fmt.Sprint(i), <-bodies)
		if i%10 == 0 {
			var names []string
			require.Eventually(t, func() bool { names = consumersToRead(t, bus, 0); return len(names) == 1 }, patience, time.Millisecond)
			require.NoError(t, bus.JS.DeleteConsumer(ctx, events.StreamName(0), names[0]))
		}
	}
	cancel()
	requireNoReaders(t, bus)
}

// TestFollowWithoutConsumers shows that a user that may create no consumer, or one that brings
// nothing, follows all the same.
func TestFollowWithoutConsumers(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string][]string{
		"may not create one": nil,
		"may not pull":       {"$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DELETE.>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			operator, conn := guardedServer(t, append([]string{"$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.MOORE_0"}, allowed...)...)
			writer, reader := openBus(t, operator, 1), reopenBus(t, conn, GroupCommitAuto)
			ctx := patiently(t)
			run := journaltest.NewRun(t, writer)
			bodies := follow(ctx, t, reader)
			var last uint64
			for i := range 3 {
				seq, err := persist(ctx, writer, run, last, entryTo(run, events.Observing, "default", fmt.Append(nil, i)))
				require.NoError(t, err)
				last = seq
				require.Equal(t, fmt.Sprint(i), <-bodies)
			}
			require.True(t, reader.Unordered.Load())
		})
	}
}
