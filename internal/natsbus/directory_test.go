package natsbus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
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
		require.Equal(t, buckets.AnnouncementTTL, stream.CachedInfo().Config.MaxAge)
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
		_, err := announce.NewDirectory(bus, nil).Tools(t.Context())
		require.NoError(t, err)
		require.NoError(t, announce.NewDirectory(other, nil).Announce(t.Context(), pool, "a", []events.ToolSpec{spec}))
		found, err := announce.NewDirectory(bus, nil).Tools(t.Context())
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

// A state of an application's own has a consumer like any other: one for the state,
// whose command names it where it is missing.
func TestConsumersOfStatesOfOnesOwn(t *testing.T) {
	t.Parallel()
	o := InitOptions{States: []events.State{"reviewing"}}
	var found *durable
	for _, d := range o.durables() {
		if d.name == "reviewing" {
			found = &d
		}
	}
	require.NotNil(t, found)
	require.Equal(t, []string{"moore.0.*.*.reviewing.*.*"}, found.filters(0))
	require.Equal(t, *found, durablesOf(journal.Inbox{States: []events.State{"reviewing"}, Pool: events.DefaultPool})[0])
	require.Equal(t, api.InitCommand+" --states reviewing", createCommand(*found))
	require.Equal(t, api.InitCommand, createCommand(durablesOf(journal.Inbox{States: []events.State{events.Planning}})[0]))
}

// Runs that answer calls may end in a state of their own graph: the pool of agents hears
// of that end as of every other one.
func TestConsumersOfEndsOfOnesOwn(t *testing.T) {
	t.Parallel()
	ends := journal.Inbox{States: append(slices.Clone(endStates), "refused"), Pool: events.AgentsPool}
	o := InitOptions{States: []events.State{"refused"}, Pools: []string{"web", events.AgentsPool}}
	require.Subset(t, o.durables(), durablesOf(ends))
	for _, d := range o.durables() {
		require.NotEqual(t, "refused_web", d.name)
	}
	own := durablesOf(ends)[len(endStates)]
	require.Equal(t, "refused_agents", own.name)
	require.Equal(t, []string{"moore.0.*.*.refused.agents.*"}, own.filters(0))
	require.Equal(t, api.InitCommand+" --pools agents --states refused", createCommand(own))
	require.Equal(t, api.InitCommand+" --pools agents", createCommand(durablesOf(ends)[0]))
	require.Equal(t, api.InitCommand+" --pools web", createCommand(actingDurable("web")))
}

func TestStatesThatCanHaveNoConsumer(t *testing.T) {
	t.Parallel()
	require.NoError(t, checkStates([]events.State{"reviewing", events.Acting, events.ParallelActing}))
	require.ErrorContains(t, checkStates([]events.State{"Reviewing"}), "is not a token")
	require.ErrorContains(t, checkStates([]events.State{"acting_web"}), "pools' consumers")
	_, err := checkInbox(journal.Inbox{States: []events.State{"acting_web"}})
	require.Error(t, err)
}

// TestLoanWithoutAnswer: who was asked may have begun, even if the lender ends before
// it hears so.
func TestLoanWithoutAnswer(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := bus.Conn().Subscribe("loan.default.ask.tool", func(*nats.Msg) { cancel() })
	require.NoError(t, err)
	_, err = bus.Lend(ctx, &delivery{conn: bus.NC}, ports.Loan{Pool: events.DefaultPool, Name: "tool"})
	require.ErrorIs(t, err, ports.ErrPeerHolds)
	require.ErrorIs(t, err, context.Canceled)
}

// TestWhoIs: what is said of a user is what is missing between it and the log.
func TestWhoIs(t *testing.T) {
	t.Parallel()
	check := func(allowed ...string) Finding {
		_, conn := guardedServer(t, append(allowed, natsconn.UserInfoSubject)...)
		id, err := natsconn.WhoIs(t.Context(), conn, 0, quiet)
		require.NoError(t, err)
		require.Equal(t, "worker", id.User)
		require.True(t, id.Limited())
		require.False(t, id.MayPublish("anything"))
		return CheckUser(id)
	}
	sameAccount := check("moore.*.*.acting.>")
	require.Equal(t, Warning, sameAccount.Level)
	require.Contains(t, sameAccount.What, "reply subject")
	makesConsumers := check("moore.*.*.acting.>", "$JS.API.CONSUMER.>")
	require.Equal(t, Warning, makesConsumers.Level)
	require.Contains(t, makesConsumers.What, "$JS.API.CONSUMER.CREATE")

	all, err := natsconn.WhoIs(t.Context(), newBus(t, 1).Conn(), 0, quiet)
	require.NoError(t, err)
	require.False(t, all.Limited())
	require.Equal(t, Warning, CheckUser(all).Level)
	require.Contains(t, CheckUser(all).What, "no accounts")

	_, conn := guardedServer(t, "moore.*.*.acting.>")
	_, err = natsconn.WhoIs(t.Context(), conn, patience, quiet)
	require.ErrorIs(t, err, journal.ErrDenied)
	require.ErrorContains(t, err, natsconn.UserInfoSubject)
}

// TestPoolTools: what the operator assigns to a pool is announced by that pool alone,
// until the operator says otherwise; no announcement changes that.
func TestPoolTools(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	set := func(lists map[string][]string) error {
		return Init(t.Context(), conn, InitOptions{Pools: []string{"web", "bank"}, PoolTools: lists})
	}
	listed := func() []string {
		bus := reopenBus(t, conn, GroupCommitAuto)
		for _, pool := range []string{"bank", "web"} {
			for _, instance := range []string{"a", "b"} {
				spec := events.ToolSpec{Name: "pay", Pool: pool, Description: "pays", Effect: "once", Risk: "high"}
				require.NoError(t, announce.NewDirectory(bus, nil).Announce(t.Context(), pool, instance, []events.ToolSpec{spec}))
			}
		}
		tools, err := announce.NewDirectory(bus, nil).Tools(t.Context())
		require.NoError(t, err)
		var pools []string
		for _, tool := range tools {
			pools = append(pools, tool.Pool+"/"+tool.Name)
		}
		return pools
	}
	require.NoError(t, set(nil))
	require.Equal(t, []string{"bank/pay", "web/pay"}, listed())
	require.NoError(t, set(map[string][]string{"bank": {"pay", "refund"}}))
	require.Equal(t, []string{"bank/pay"}, listed())
	require.NoError(t, set(map[string][]string{"web": {"search"}}), "other pools keep theirs")
	require.NoError(t, set(nil))
	require.Equal(t, []string{"bank/pay"}, listed())
	require.ErrorContains(t, set(map[string][]string{"web": {"pay"}}), "assigned to the pools bank and web")
	require.NoError(t, set(map[string][]string{"web": {"pay"}, "bank": {}}))
	require.Equal(t, []string{"web/pay"}, listed())
}
