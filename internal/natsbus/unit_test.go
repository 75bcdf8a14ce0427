package natsbus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestDurables(t *testing.T) {
	names := func(in journal.Inbox) (all []string) {
		for _, d := range durablesOf(in) {
			all = append(all, d.name+fmt.Sprint(d.filters(0)))
		}
		return all
	}
	require.Equal(t, []string{"acting_web[moore.0.*.*.acting.web.* moore.0.*.*.parallel_acting.web.*]"},
		names(journal.Inbox{States: []events.State{events.ParallelActing, events.Acting}, Pool: "web"}))
	require.Equal(t, []string{"planning[moore.0.*.*.planning.*.*]", "reflecting[moore.0.*.*.reflecting.*.*]"},
		names(journal.Inbox{States: []events.State{events.Planning, events.Reflecting}}))
	require.Equal(t, []string{"done_agents[moore.0.*.*.done.agents.*]"},
		names(journal.Inbox{States: []events.State{events.Done}, Pool: events.AgentsPool}))
}

// TestObjectStore reads and writes results with the client library's own object
// store, as its tools do.
func TestObjectStore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bus := newBus(t, 1)
	data := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	ref, err := bus.PutBlob(ctx, "web", data)
	require.NoError(t, err)
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	store, err := js.ObjectStore(ctx, ref.Bucket)
	require.NoError(t, err)
	got, err := store.GetBytes(ctx, ref.Key)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))

	other := []byte("by the library")
	key := events.Hash(other)
	_, err = store.PutBytes(ctx, key, other)
	require.NoError(t, err)
	got, err = bus.Blob(ctx, events.Ref{Bucket: ref.Bucket, Key: key, Size: len(other), SHA256: key})
	require.NoError(t, err)
	require.Equal(t, other, got)
	require.NoError(t, store.Delete(ctx, key))
	_, err = bus.Blob(ctx, events.Ref{Bucket: ref.Bucket, Key: key, Size: len(other), SHA256: key})
	require.ErrorIs(t, err, journal.ErrNotFound)
}

// TestAnnouncementsExpire holds the buckets to their time to live.
func TestAnnouncementsExpire(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	for _, name := range []string{"KV_tools_web", "KV_providers"} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, journal.AnnouncementTTL, stream.CachedInfo().Config.MaxAge)
	}
}

// TestAnnouncedInANewPool announces a tool as another process: whoever looks for it then
// finds it, though the pool is new and the pools were listed a moment before.
func TestAnnouncedInANewPool(t *testing.T) {
	t.Parallel()
	bus := embeddedBus(t, 1)
	other := patient(t, bus, GroupCommitAuto)
	for i := range 5 {
		pool := fmt.Sprint("new", i)
		spec := events.ToolSpec{Name: "look", Pool: pool}
		_, err := bus.Tools(t.Context())
		require.NoError(t, err)
		require.NoError(t, other.Announce(t.Context(), pool, "a", []events.ToolSpec{spec}))
		found, err := bus.Tools(t.Context())
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(found, func(s events.ToolSpec) bool { return s.Pool == pool }), "pool %s, found %v", pool, found)
	}
}

// What the feed tells of and the log does not bring is looked for for a while
// only: anybody may have said so.
func TestFollowerForgetsWhatDoesNotCome(t *testing.T) {
	t.Parallel()
	f := follower{bus: &Bus{opts: Options{FollowPoll: time.Minute}}, cursor: 5, told: 1 << 60, until: time.Now().Add(time.Hour)}
	require.Equal(t, lagPoll, f.pause())
	f.until = time.Now()
	require.Equal(t, time.Minute, f.pause())
	f.until = time.Now().Add(time.Hour)
	require.Equal(t, time.Minute, f.pause(), "and not again")
}
