package natsbus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestParseReply(t *testing.T) {
	for _, reply := range []string{
		"$JS.ACK.MOORE_0.planning.3.77.12.1700000000000000001.5",
		"$JS.ACK.dom.ACCHASH.MOORE_0.planning.3.77.12.1700000000000000001.5",
		"$JS.ACK.dom.ACCHASH.MOORE_0.planning.3.77.12.1700000000000000001.5.rand",
	} {
		attempt, seq, stored, err := parseReply(reply)
		require.NoError(t, err, reply)
		require.Equal(t, 3, attempt)
		require.EqualValues(t, 77, seq)
		require.Equal(t, time.Unix(0, 1700000000000000001).UTC(), stored)
	}
	for _, reply := range []string{"", "$JS.ACK.", "_INBOX.a.b.c.d.e.f.g.h", "$JS.ACK.S.c.x.77.12.17.5", "$JS.ACK.S.c.1.2.3"} {
		_, _, _, err := parseReply(reply)
		require.Error(t, err, reply)
	}
}

func TestClassify(t *testing.T) {
	code := func(n int) error { return &apiError{Code: 400, ErrCode: n, Description: "x"} }
	for _, c := range []struct{ err, want error }{
		{code(10071), journal.ErrConflict}, {code(10164), journal.ErrConflict}, {code(10201), journal.ErrConflict},
		{code(10054), journal.ErrTooLarge}, {code(10199), journal.ErrTooLarge}, {nats.ErrMaxPayload, journal.ErrTooLarge},
		{code(10002), journal.ErrFull}, {code(10023), journal.ErrFull}, {code(10047), journal.ErrFull}, {code(10077), journal.ErrFull},
		{code(10059), journal.ErrNotReady}, {code(10014), journal.ErrNotReady}, {code(10076), journal.ErrNotReady},
		{&jetstream.APIError{ErrorCode: 10071}, journal.ErrConflict},
		{jetstream.ErrKeyNotFound, journal.ErrNotFound}, {jetstream.ErrBucketNotFound, journal.ErrNotReady},
		{&deniedError{"a.b"}, journal.ErrDenied}, {nats.ErrPermissionViolation, journal.ErrDenied},
	} {
		require.ErrorIs(t, classify(c.err), c.want, "%v", c.err)
		if c.want != journal.ErrNotFound {
			require.ErrorIs(t, inDoubt(c.err), c.want, "%v", c.err)
		}
		require.ErrorIs(t, classify(fmt.Errorf("wrapped: %w", c.err)), c.want)
	}
	for _, err := range []error{
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected, nats.ErrConnectionClosed, context.Canceled,
		context.DeadlineExceeded, &apiError{Code: 503, ErrCode: 10008}, code(10176),
	} {
		require.ErrorIs(t, inDoubt(err), journal.ErrInDoubt, "%v", err)
		require.ErrorIs(t, inDoubt(err), err)
	}
	refused := inDoubt(code(10077))
	require.NotErrorIs(t, refused, journal.ErrInDoubt, "the server said that it did not store it")
	require.NoError(t, classify(nil))
}

func TestDeniedSubject(t *testing.T) {
	const publish = `publish to "`
	subject, ok := deniedSubject(fmt.Errorf(`%w: Permissions Violation for Publish to "a.b.c"`, nats.ErrPermissionViolation), publish)
	require.True(t, ok)
	require.Equal(t, "a.b.c", subject)
	_, ok = deniedSubject(fmt.Errorf(`%w: Permissions Violation for Subscription to "a"`, nats.ErrPermissionViolation), publish)
	require.False(t, ok)
	_, ok = deniedSubject(errors.New(`publish to "a"`), publish)
	require.False(t, ok)
}

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

// TestTurn takes the turns to ask for pages: they are bounded, released once each,
// and not waited for longer than the context goes.
func TestTurn(t *testing.T) {
	t.Parallel()
	b := &Bus{asking: make(chan struct{}, 2)}
	first, err := b.turn(t.Context())
	require.NoError(t, err)
	_, err = b.turn(t.Context())
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.turn(ended)
	require.ErrorIs(t, err, context.Canceled)
	first()
	first()
	require.Len(t, b.asking, 1, "a turn ends once")
	_, err = b.turn(t.Context())
	require.NoError(t, err)
	free, err := new(Bus).turn(ended)
	require.NoError(t, err, "a bus that was not opened has no turns")
	free()
}
