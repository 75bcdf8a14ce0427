package control_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// poolsRig is a gateway on a real bus with the unserved pools default, near and far. Only the
// test plans and observes.
func poolsRig(t *testing.T, wait time.Duration) *rig {
	return newRig(t, poolsBus(t), func(c *control.Config) { c.PoolWait = wait })
}

func poolsBus(t *testing.T) journal.Bus { return natsBus(t, "near", "far") }

// begin opens a run with a tool in each of the pools and makes the calls: "near"
// and "far" are pure, "far_once" is not.
func (r *rig) begin(calls ...events.Call) string {
	r.T.Helper()
	id := runlog.NewID()
	start := reducertest.StartOf("call", events.ModeTask)
	start.Tools = []events.ToolSpec{
		{Name: "near", Effect: "pure", Pool: "near"}, {Name: "far", Effect: "pure", Pool: "far"}, {Name: "far_once", Effect: "once", Pool: "far"},
	}
	start.Agent.Tools = []string{"near", "far", "far_once"}
	r.Happens(id, events.Idle, start)
	reply := events.ToolCallReply{Calls: calls, Confidence: 1}
	if len(calls) == 1 {
		r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: reply})
	} else {
		r.Happens(id, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
	}
	return id
}

func calling(id, tool string) events.Call { return events.Call{ID: id, Name: tool, Arguments: "{}"} }

// dispatch sends calls of a batch to their pools, as a planner does.
func (r *rig) dispatch(id string, calls ...string) {
	for _, call := range calls {
		r.Happens(id, events.Planning, &events.ToolCallDispatched{CallID: call})
	}
}

// arrives waits until the run is in a state and returns its memory.
func (r *rig) arrives(id string, state events.State) *reducer.Memory {
	r.T.Helper()
	var mem *reducer.Memory
	require.Eventually(r.T, func() bool {
		mem = r.Fold(id)
		return mem.State == state
	}, patience, 20*time.Millisecond, "the run does not reach %s: %v", state, r.Types(id))
	return mem
}

// actor runs an actor of a pool until the test ends. Its one tool returns the pool.
func (r *rig) actor(pool string) {
	r.T.Helper()
	made, err := typed.New(tool.Definition{Name: pool, Description: "says its pool", Pool: pool, Effect: tool.Pure},
		func(context.Context, struct{}) (string, error) { return pool, nil })
	require.NoError(r.T, err)
	registry, err := toolset.New(made)
	require.NoError(r.T, err)
	a, err := actor.New(actor.Config{
		Base: worker.Base{Instance: "a", Store: runlog.New(runlog.Options{Log: r.Bus}), Queue: r.Bus, Feed: r.Bus, Concurrency: 2}, KV: r.Bus, Tools: registry,
	})
	require.NoError(r.T, err)
	require.NoError(r.T, a.Announce(r.T.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	r.T.Cleanup(func() {
		cancel()
		require.NoError(r.T, <-ended)
	})
}

// from returns the `<from>` of the run's last event of a type.
func (r *rig) from(id, typ string) events.State {
	r.T.Helper()
	var from events.State
	for _, rec := range r.Records(id) {
		if controltest.TypeOf(r.T, rec) == typ {
			s, err := events.ParseSubject(rec.Subject)
			require.NoError(r.T, err)
			from = s.From
		}
	}
	return from
}

func TestCallOfAPoolThatNobodyServes(t *testing.T) {
	t.Parallel()
	r := poolsRig(t, 200*time.Millisecond)
	for name, says := range map[string]string{"far": "has no result", "far_once": "was not run"} {
		id := r.begin(calling("a", name))
		mem := r.arrives(id, events.Observing)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolFailure"}, r.Types(id))
		require.Equal(t, events.Control, r.from(id, "ToolFailure"))
		require.Equal(t, codes.NoActor, mem.Control.Last.Code)
		require.Contains(t, *mem.LastObservation, codes.ErrorPrefix+name+" "+says)
		require.Contains(t, *mem.LastObservation, `"far"`)
	}
}

func TestBatchThatNobodyServes(t *testing.T) {
	t.Parallel()
	r := poolsRig(t, 200*time.Millisecond)
	one := r.begin(calling("a", "far"), calling("b", "far_once"))
	two := r.begin(calling("a", "near"), calling("b", "far"))
	r.dispatch(two, "a", "b")
	for _, id := range []string{one, two} {
		mem := r.arrives(id, events.Observing)
		require.Len(t, mem.ParallelResults, 2)
		for _, result := range mem.ParallelResults {
			require.Equal(t, codes.NoActor, result.Code)
		}
		require.Equal(t, "ToolFailure", r.Types(id)[int(mem.N)-1])
		require.Equal(t, events.Control, r.from(id, "ToolFailure"))
		r.Happens(id, events.Observing, &events.Continue{})
		require.Len(t, r.Fold(id).History, 2)
	}
}

// With one of two pools served, that pool's calls run, and its actor ends the batch.
func TestBatchOfWhichOnePoolIsServed(t *testing.T) {
	t.Parallel()
	r := poolsRig(t, 200*time.Millisecond)
	r.actor("near")
	for name, order := range map[string][]string{"unserved last": {"a", "b"}, "unserved first": {"b", "a"}} {
		t.Run(name, func(t *testing.T) {
			id := r.begin(calling("a", "near"), calling("b", "far"))
			for i, call := range order {
				r.dispatch(id, call)
				require.Eventually(t, func() bool { return len(r.Fold(id).ParallelResults) > i || r.Fold(id).State == events.Observing },
					patience, 10*time.Millisecond)
			}
			r.arrives(id, events.Observing)
			require.Equal(t, "ToolSuccess", r.Types(id)[len(r.Types(id))-1], "as its results are")
			require.Equal(t, events.ParallelActing, r.from(id, "ToolSuccess"))
			r.Happens(id, events.Observing, &events.Continue{})
			ended := map[string]string{}
			for _, h := range r.Fold(id).History {
				ended[h.Tool.ID] = h.Code
			}
			require.Equal(t, map[string]string{"a": codes.OK, "b": codes.NoActor}, ended)
		})
	}
}

func TestActorThatComesBackInTime(t *testing.T) {
	t.Parallel()
	r := poolsRig(t, time.Minute)
	id := r.begin(calling("a", "far"))
	r.actor("far")
	mem := r.arrives(id, events.Observing)
	require.Equal(t, codes.OK, mem.Control.Last.Code)
	require.Equal(t, events.Acting, r.from(id, "ToolSuccess"))
}

// Each call is answered once, by the actor or the gateway, and later calls run.
func TestActorThatComesBackMeanwhile(t *testing.T) {
	t.Parallel()
	r := poolsRig(t, 200*time.Millisecond)
	var runs []string
	for i := range 60 {
		runs = append(runs, r.begin(calling("a", "far")))
		if i == 20 {
			r.arrives(runs[0], events.Observing)
			r.actor("far")
		}
	}
	ended := map[string]int{}
	for _, id := range runs {
		mem := r.arrives(id, events.Observing)
		// nats-server 2.15.2 counts a delivery whose pull request had just ended, so it reached no
		// worker. The actor counts it as a lost worker.
		answered := slices.DeleteFunc(r.Types(id), func(typ string) bool { return typ == "LlmAttemptFailed" })
		require.Len(t, answered, 3, "%v", r.Types(id))
		ended[mem.Control.Last.Code]++
	}
	require.Positive(t, ended[codes.NoActor])
	require.Positive(t, ended[codes.OK])
	require.Eventually(t, func() bool {
		return r.arrives(r.begin(calling("a", "far")), events.Observing).Control.Last.Code == codes.OK
	}, patience, time.Millisecond, "an actor that lives is left to its work")
}

func TestSeveralGatewaysAnswerOnce(t *testing.T) {
	t.Parallel()
	b := poolsBus(t)
	var r *rig
	for i := range 3 {
		r = newRig(t, b, func(c *control.Config) { c.PoolWait, c.Instance = 200*time.Millisecond, fmt.Sprint(i) })
	}
	var runs []string
	for range 30 {
		runs = append(runs, r.begin(calling("a", "far")), r.begin(calling("a", "far"), calling("b", "far")))
	}
	for _, id := range runs {
		mem := r.arrives(id, events.Observing)
		require.EqualValues(t, 3+2*len(mem.ParallelResults)/2, mem.N, "%v", r.Types(id))
	}
}

// A call that an actor had started before it died may have taken effect.
func TestStartedCallOfAPoolThatNobodyServes(t *testing.T) {
	t.Parallel()
	b := poolsBus(t)
	r := newRig(t, b, func(c *control.Config) { c.PoolWait = time.Hour })
	id := r.begin(calling("a", "far_once"))
	// An actor that starts the call and is gone.
	ctx, die := context.WithCancel(t.Context())
	require.NoError(t, b.Consume(ctx, journal.Inbox{States: []events.State{events.Acting}, Pool: "far"}, 1, func(journal.Delivery) {
		r.Happens(id, events.Acting, &events.ToolCallStarted{CallID: "a"})
		die()
	}))
	newRig(t, b, func(c *control.Config) { c.PoolWait, c.Instance = 100*time.Millisecond, "2" })
	mem := r.arrives(id, events.Observing)
	require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolFailure"}, r.Types(id))
	require.Equal(t, codes.NoActor, mem.Control.Last.Code)
	require.Contains(t, *mem.LastObservation, "the outcome of far_once is unknown")
}

// The call of a paused run is answered only after it is resumed.
func TestPausedCallOfAPoolThatNobodyServes(t *testing.T) {
	t.Parallel()
	b := poolsBus(t)
	r := newRig(t, b, func(c *control.Config) { c.PoolWait = time.Hour })
	id := r.begin(calling("a", "far"))
	r.Happens(id, events.Control, &events.Paused{})
	newRig(t, b, func(c *control.Config) { c.PoolWait, c.Instance = 100*time.Millisecond, "2" })
	other := r.begin(calling("a", "far"))
	r.arrives(other, events.Observing)
	require.Equal(t, events.Acting, r.Fold(id).State)
	_, err := r.control.Resume(t.Context(), "default", id, events.By{By: "me"})
	require.NoError(t, err)
	require.Equal(t, codes.NoActor, r.arrives(id, events.Observing).Control.Last.Code)
}

// Poison in an unserved pool ends its run too.
func TestPoisonInAPoolThatNobodyServes(t *testing.T) {
	t.Parallel()
	r := poolsRig(t, 200*time.Millisecond)
	id := r.begin(calling("a", "far_once"))
	r.arrives(id, events.Observing)
	run := r.At(id)
	recs := r.Records(id)
	_, err := r.Bus.Append(t.Context(), run, recs[len(recs)-1].Seq, journal.Entry{
		Subject: events.Subject{Run: run, From: events.Planning, To: events.Acting, Pool: "far"}, Body: []byte("?"),
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(r.Records(id)) == 5 }, patience, 10*time.Millisecond)
	end := r.Records(id)[4]
	require.Equal(t, "FatalError", controltest.TypeOf(t, end))
	s, err := events.ParseSubject(end.Subject)
	require.NoError(t, err)
	require.Equal(t, events.Control, s.From)
}

// The time begins when the last announcement expires.
func TestHowLongAPoolIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := simtest.New(simtest.Options{})
		r := &rig{World: controltest.NewWorld(t, j)}
		g, err := control.New(control.Config{
			Base: worker.Base{Store: runlog.New(runlog.Options{Log: j}), Queue: j, Feed: j, Instance: "1"}, Timers: j, KV: j,
		})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		require.NoError(t, announce.NewDirectory(j, nil).Announce(t.Context(), "far", "dies", []events.ToolSpec{{Name: "far", Pool: "far"}}))
		id := r.begin(calling("a", "far"))
		time.Sleep(buckets.AnnouncementTTL + 10*time.Minute - time.Second) // in the bubble
		require.Equal(t, events.Acting, r.Fold(id).State)
		time.Sleep(3 * time.Second) // in the bubble
		require.Equal(t, events.Observing, r.Fold(id).State)
		stop()
		require.NoError(t, <-ended)
	})
}
