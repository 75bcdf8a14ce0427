package control_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

// A call of an agent in an unserved pool is answered, its sub-run ends in the same step, and
// the usage of the sub-run and its own sub-runs is added to the parent.
func TestRunsOfCallsThatNobodyServes(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		parent, child := r.waiting()
		asks := events.Call{ID: "b", Name: "helper", Arguments: `{"task":"dig"}`}
		r.Append(child, events.Planning, answeredWith(events.Usage{Input: 20, Output: 10, Total: 30}, asks))
		below := r.child(child, "b")
		r.Append(below, events.Planning, answeredWith(events.Usage{Input: 7, Output: 5, Total: 12}, asks))
		r.Append(parent, events.Control, &events.Resumed{}) // the call is due once more
		require.NoError(t, announce.NewDirectory(r.Journal, nil).Announce(t.Context(), events.AgentsPool, "gone", nil))
		r.serve(func(c *control.Config) { c.PoolWait = 10 * time.Second })
		sleep(buckets.AnnouncementTTL + 20*time.Second)

		for _, run := range []events.Run{child, below} {
			require.Equal(t, events.Cancelled, r.Memory(run).State, "before a timer would have it looked at")
		}
		mem := r.Memory(parent)
		require.Equal(t, codes.NoActor, mem.Control.Last.Code, "%v", mem.Trace)
		require.Equal(t, child.ID, mem.ToolCalls["a"].Run)
		require.Equal(t, 42, mem.TotalUsage.Total, "it pays for what it got nothing for")
		require.Equal(t, 27, mem.TotalUsage.Input)
	})
}

// A call of an agent whose sub-run has not started costs nothing.
func TestCallsThatNobodyServesAndNobodyBegan(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		start := reducertest.StartOf("ask somebody", events.ModeTask)
		start.Tools = []events.ToolSpec{{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool}}
		parent := r.Start(start)
		r.Append(parent, events.Planning, answeredWith(events.Usage{Total: 1}, events.Call{ID: "a", Name: "helper", Arguments: `{"task":"x"}`}))
		stranger := reducertest.StartOf("mine", events.ModeTask)
		taken := r.Store.Place(parent.Namespace, runid.Child(parent.ID, "a"))
		r.Append(taken, events.Idle, stranger)
		require.NoError(t, announce.NewDirectory(r.Journal, nil).Announce(t.Context(), events.AgentsPool, "gone", nil))
		r.serve(func(c *control.Config) { c.PoolWait = 10 * time.Second })
		sleep(buckets.AnnouncementTTL + 20*time.Second)

		mem := r.Memory(parent)
		require.Equal(t, codes.NoActor, mem.Control.Last.Code, "%v", mem.Trace)
		require.Empty(t, mem.ToolCalls["a"].Run)
		require.Equal(t, 1, mem.TotalUsage.Total)
		require.Equal(t, events.Planning, r.Memory(taken).State, "somebody else's run is left alone")
	})
}

// A call that handed over its conversation says so, even if its pool is unserved.
func TestHandOffsThatNobodyServes(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		start := reducertest.StartOf("ask somebody", events.ModeTask)
		start.Tools = []events.ToolSpec{{Name: "transfer", Effect: "idempotent", Pool: events.AgentsPool}}
		parent := r.Start(start)
		r.Append(parent, events.Planning, answeredWith(events.Usage{}, events.Call{ID: "a", Name: "transfer", Arguments: "{}"}))
		heir := start.Agent
		heir.Name = "heir"
		r.Append(parent, events.Acting, &events.HandedOff{Agent: heir, AgentHash: "x", Tools: start.Tools, CallID: "a"})
		require.NoError(t, announce.NewDirectory(r.Journal, nil).Announce(t.Context(), events.AgentsPool, "gone", nil))
		r.serve(func(c *control.Config) { c.PoolWait = 10 * time.Second })
		sleep(buckets.AnnouncementTTL + 20*time.Second)

		mem := r.Memory(parent)
		require.Equal(t, events.Observing, mem.State, "%v", mem.Trace)
		require.Equal(t, `ERROR: transfer has handed the conversation over; no actor serves its pool "agents" to say so`, *mem.LastObservation)
	})
}

// answeredWith is a reply with one call.
func answeredWith(used events.Usage, call events.Call) *events.LLMToolCall {
	return &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Confidence: 1, Calls: []events.Call{call}, Usage: used}}
}

// A call whose sub-run was purged is answered without it.
func TestCallsThatNobodyServesAndWhoseRunWasPurged(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		start := reducertest.StartOf("ask somebody", events.ModeTask)
		start.Tools = []events.ToolSpec{{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool}}
		parent := r.Start(start)
		r.Append(parent, events.Planning, answeredWith(events.Usage{Total: 1}, events.Call{ID: "a", Name: "helper", Arguments: `{"task":"x"}`}))
		child := r.Store.Place(parent.Namespace, runid.Child(parent.ID, "a"))
		require.NoError(t, tombstones.Put(t.Context(), r.Journal, child, tombstones.Tombstone{Run: child.ID, Namespace: child.Namespace, Events: 3, PurgedAt: time.Now()}))
		require.NoError(t, announce.NewDirectory(r.Journal, nil).Announce(t.Context(), events.AgentsPool, "gone", nil))
		r.serve(func(c *control.Config) { c.PoolWait, c.Tombstones = 10*time.Second, r.Journal })
		sleep(buckets.AnnouncementTTL + 20*time.Second)

		mem := r.Memory(parent)
		require.Equal(t, events.Observing, mem.State, "%v", mem.Trace)
		require.Equal(t, codes.NoActor, mem.Control.Last.Code)
		require.Empty(t, mem.ToolCalls["a"].Run)
	})
}

// watching runs a gateway on a simulated bus, without HTTP, until stop is called.
func watching(t *testing.T, b *simtest.Journal) (g *control.Controller, stop func()) {
	t.Helper()
	return watchingOn(t, b, b)
}

// watchingOn is watching with small values in the store.
func watchingOn(t *testing.T, b *simtest.Journal, store kv.Store) (g *control.Controller, stop func()) {
	t.Helper()
	g, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "test"}, Timers: b, KV: store,
	})
	require.NoError(t, err)
	g.Admission = control.Unbounded{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	return g, func() { cancel(); require.NoError(t, <-done) }
}

// TestFirstAnnouncement: a tool that several pools announce with one definition belongs to the
// pool that announced it first, for gateways that start later too. It goes to another pool
// after the first one has been gone for a while.
func TestFirstAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := simtest.New(simtest.Options{})
		dir := announce.NewDirectory(b, nil)
		_, stop := watching(t, b)
		announce := func(pool string) {
			spec := searchTool
			spec.Name, spec.Pool = "pay", pool
			require.NoError(t, dir.Announce(t.Context(), pool, "x", []events.ToolSpec{spec}))
		}
		first := func() string {
			o, err := dir.Offers(t.Context())
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

		require.NoError(t, dir.Withdraw(t.Context(), "payments", "x"))
		time.Sleep(5 * time.Second) // in the bubble
		require.Equal(t, "payments", first(), "it may only start again")
		announce("attic")
		time.Sleep(10 * time.Second) // in the bubble
		require.Equal(t, "attic", first())
	})
}

// counted counts how often announcements are read.
type counted struct {
	kv.Store
	tools, offers atomic.Int64
}

// ToolPools is called for each list of tools.
func (c *counted) ToolPools(ctx context.Context) (map[string]string, error) {
	c.tools.Add(1)
	return c.Store.ToolPools(ctx)
}

func (c *counted) Get(ctx context.Context, of kv.Bucket, key string) (kv.Item, error) {
	if of.Name == buckets.Offers.Name {
		c.offers.Add(1)
	}
	return c.Store.Get(ctx, of, key)
}

// TestOneReadATick: an idle gateway reads announcements once a second.
func TestOneReadATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := simtest.New(simtest.Options{})
		d := &counted{Store: b}
		_, stop := watchingOn(t, b, d)
		time.Sleep(10*time.Second + time.Millisecond) // in the bubble
		stop()
		require.EqualValues(t, 11, d.tools.Load())
		require.EqualValues(t, 11, d.offers.Load())
	})
}
