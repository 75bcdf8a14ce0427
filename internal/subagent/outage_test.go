package subagent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// away is a bus of which one store is away at times; the log is not.
type away struct {
	*simtest.Process
	agents, stones, timers bool
	until                  atomic.Pointer[time.Time]
	err                    error
}

func (a *away) fails(store bool) error {
	if until := a.until.Load(); store && until != nil && time.Now().Before(*until) {
		return a.err
	}
	return nil
}

func (a *away) Get(ctx context.Context, of kv.Bucket, key string) (kv.Item, error) {
	if err := a.fails(a.agents && of.Name == buckets.Agents.Name || a.stones && of.Name == buckets.Purged.Name); err != nil {
		return kv.Item{}, err
	}
	return a.Process.Get(ctx, of, key)
}

func (a *away) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	if err := a.fails(a.timers); err != nil {
		return err
	}
	return a.Process.SetTimer(ctx, run, kind, at, data)
}

// A store that is away for half a minute costs the call that time, and no attempt; one
// that refuses for good costs the call its attempts.
func TestStoresThatAreAway(t *testing.T) {
	noLeader := errors.New("no leader")
	for name, c := range map[string]struct {
		away *away
		code string
	}{
		"agents":         {&away{agents: true, err: noLeader}, "ok"},
		"tombstones":     {&away{stones: true, err: noLeader}, "ok"},
		"timers":         {&away{timers: true, err: noLeader}, "ok"},
		"refuses agents": {&away{agents: true, err: journal.ErrDenied}, "attempts_exhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, helper, func(t *testing.T, r *rig) {
				r.stop()
				bus := c.away
				bus.Process = r.journal.NewProcess()
				r.beginOn(bus.Process, func(o *host.Options) { o.Bus, o.Tombstones = bus, bus })
				r.define("helper", answers)
				r.define("boss", asksHelper, func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} })
				run := r.start("boss")
				r.wait(5 * time.Second)
				until := time.Now().Add(30 * time.Second)
				bus.until.Store(&until)
				_, err := r.host.Gateway().Decide(t.Context(), "", run.ID, events.Decision{CallID: "call_1_1", Decision: events.DecisionApproved, By: "me"})
				require.NoError(t, err)
				mem := r.ends(run, 2*time.Minute)
				require.Equal(t, c.code, code(mem, "call_1_1"))
				failed := 0
				for _, entry := range mem.Trace {
					if events.Type(entry.Event) == events.TypeLLMAttemptFailed {
						failed++
					}
				}
				require.Equal(t, c.code != "ok", failed > 0, "%v", mem.Trace)
			})
		})
	}
}

// A call that failed too often is not given up where its run has come about: that is
// waited for, and its parent pays for it.
func TestGivingUpFindsTheRun(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.stop()
		bus := &away{Process: r.journal.NewProcess(), agents: true, err: journal.ErrDenied}
		r.beginOn(bus.Process, func(o *host.Options) { o.Bus, o.Tombstones = bus, bus })
		r.define("boss", asksHelper, func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} })
		def := r.define("helper", `[{"calls":[{"name":"work"}],"usage":{"input":5,"output":2}},{"text":"The work is done.","usage":{"input":30,"output":5}}]`)
		run := r.start("boss")
		r.wait(time.Second)
		until := time.Now().Add(time.Hour)
		bus.until.Store(&until)
		_, err := r.host.Gateway().Decide(t.Context(), "", run.ID, events.Decision{CallID: "call_1_1", Decision: events.DecisionApproved, By: "me"})
		require.NoError(t, err)
		failures := func() (n int) {
			for _, entry := range r.memory(run).Trace {
				if events.Type(entry.Event) == events.TypeLLMAttemptFailed {
					n++
				}
			}
			return n
		}
		for failures() < 4 {
			r.wait(50 * time.Millisecond) // in the bubble
		}
		require.Equal(t, events.Acting, r.memory(run).State, "it is about to be given up")

		store := runlog.New(runlog.Options{Log: r.journal.NewProcess()})
		l, err := runstart.New(runstart.Config{
			Store: store, Source: "subagent/other", KV: r.journal, Timers: r.journal, FirstCheck: time.Minute,
		})
		require.NoError(t, err)
		start, err := l.Pin(t.Context(), def, runstart.Task{Text: "help", Mode: events.ModeTask})
		require.NoError(t, err)
		start.Parent = &events.Parent{Run: run.ID, CallID: "call_1_1", Depth: 1}
		_, _, err = l.Open(t.Context(), child(run, "call_1_1"), runstart.Opening{First: start})
		require.NoError(t, err)

		mem := r.ends(run, 5*time.Minute)
		require.Equal(t, "ok", code(mem, "call_1_1"))
		require.Equal(t, "Helped: The work is done.", *mem.FinalAnswer)
		require.Equal(t, 42, mem.TotalUsage.Total)
	})
}
