package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// Somebody resumes a run, and all that follows is a dispatch whose delivery is lost.
// What somebody asked for is no re-drive, even with a reason that looks like one: the
// gateway drives the work itself before it gives up.
func TestAPersonsResumedIsNoRedrive(t *testing.T) {
	for name, by := range map[string]events.By{
		"nobody":   {},
		"somebody": {By: "jan", Reason: "look again"},
		"forged":   {By: "gateway/test", Reason: "nothing happened for 1h15m0s while tool search (call a) was due"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, r *timed) {
				g, _ := r.serve(nil)
				r.lose(events.Planning, events.Acting, events.ParallelActing)
				run := r.start(g, nil)
				calls := called("a", "b")
				calls.Calls[1].Name = "fetch" // of another pool
				r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: calls})
				sleep(stall / 2)
				_, err := g.Pause(t.Context(), run.Namespace, run.ID, by)
				require.NoError(t, err)
				_, err = g.Resume(t.Context(), run.Namespace, run.ID, by)
				require.NoError(t, err)
				r.Append(run, events.Planning, &events.ToolCallDispatched{CallID: "a"})
				last, n := r.Memory(run).Updated, len(r.Types(run))
				sleep(3 * stall)
				require.Equal(t, []string{"Resumed", "FatalError"}, r.Types(run)[n:])
				driven, given := r.Events(run)[n], r.Events(run)[n+1]
				require.True(t, driven.Data.(*events.Resumed).Redrive)
				r.stalled(last, driven.Time)
				r.stalled(driven.Time, given.Time)
			})
		})
	}
}

// Somebody who resumes a run that was driven again in vain gives it another chance.
func TestAResumedAfterTheRedrive(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		r.lose(events.Planning)
		run := r.start(g, nil)
		sleep(stall + stall/2)
		require.Equal(t, []string{"Start", "Resumed"}, r.Types(run))
		_, err := g.Pause(t.Context(), run.Namespace, run.ID, events.By{})
		require.NoError(t, err)
		_, err = g.Resume(t.Context(), run.Namespace, run.ID, events.By{})
		require.NoError(t, err)
		sleep(stall + stall/4 + time.Minute)
		require.Equal(t, []string{"Start", "Resumed", "Paused", "Resumed", "Resumed"}, r.Types(run))
		sleep(stall + stall/4)
		require.Equal(t, []string{"Start", "Resumed", "Paused", "Resumed", "Resumed", "FatalError"}, r.Types(run))
	})
}
