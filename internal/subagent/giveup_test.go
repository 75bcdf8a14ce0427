package subagent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

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
		l, err := launch.New(launch.Config{
			Store: store, Source: "subagent/other", Directory: r.journal, Agents: r.journal, Timers: r.journal, FirstCheck: time.Minute,
		})
		require.NoError(t, err)
		start, err := l.Pin(t.Context(), def, launch.Task{Text: "help", Mode: events.ModeTask})
		require.NoError(t, err)
		start.Parent = &events.Parent{Run: run.ID, CallID: "call_1_1", Depth: 1}
		_, _, err = l.Open(t.Context(), child(run, "call_1_1"), launch.Opening{First: start})
		require.NoError(t, err)

		mem := r.ends(run, 5*time.Minute)
		require.Equal(t, "ok", code(mem, "call_1_1"))
		require.Equal(t, "Helped: The work is done.", *mem.FinalAnswer)
		require.Equal(t, 42, mem.TotalUsage.Total)
	})
}
