package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// An end that somebody put onto an edge of his own is none: the run is ended as
// poisoned when its timer fires, and is not listed as ended before.
func TestForgedEnd(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run, other := r.start(g, nil), r.start(g, nil)
		into["waiting_for_human"](r, other)
		into["acting"](r, run)
		controltest.Forge(t, r.Journal, run, events.Control, &events.CancelledRun{}, events.Acting, events.Nobody)
		page, err := g.Runs(t.Context(), "", "", 0, run.ID)
		require.NoError(t, err)
		require.Empty(t, page.Runs)
		page, err = g.Runs(t.Context(), "", "", 0, "")
		require.NoError(t, err)
		states := map[string]events.State{}
		for _, info := range page.Runs {
			states[info.RunID] = info.State
		}
		require.Equal(t, map[string]events.State{run.ID: events.Acting, other.ID: events.WaitingForHuman}, states)

		// An end that its worker may publish, of a run that is elsewhere.
		at := r.Memory(other)
		body, err := events.DefaultCodec().Encode(&events.Event{
			ID: runlog.NewID(), Source: "moorebus/test/1", Run: other.ID, Time: time.Now(), N: at.N + 1, From: events.Acting, To: events.Errored,
			Cause: at.Control.LastID, Prev: at.Control.Head, Data: &events.FatalError{Outcome: events.Outcome{Code: "x", Message: "x"}},
		})
		require.NoError(t, err)
		r.Journal.Inject(other.Shard, events.Subject{Run: other, From: events.Acting, To: events.Errored, Pool: "default"}.String(), body)
		sleep(stall + time.Minute)
		for _, run := range []events.Run{run, other} {
			mem, err := r.Fold(run)
			require.Error(t, err)
			require.Equal(t, events.Errored, mem.State)
			require.Equal(t, reducer.CodePoison, mem.Error.Code)
		}
		require.Zero(t, r.Journal.Timers())
	})
}

// An end on its worker's own edge, of a run that is in another state, ends nothing.
// Nor does it behind a step that the state does not allow either.
func TestForgedEndOfAnotherState(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		inject := func(run events.Run, e *events.Event) *events.Event {
			e.ID, e.Source, e.Run, e.Time = runlog.NewID(), "moorebus/test/1", run.ID, time.Now()
			body, err := events.DefaultCodec().Encode(e)
			require.NoError(t, err)
			r.Journal.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: e.To, Pool: "default"}.String(), body)
			e.Prev = events.Hash(body)
			return e
		}
		answer := func(n uint64, cause, prev string) *events.Event {
			return &events.Event{N: n, From: events.Planning, To: events.Done, Cause: cause, Prev: prev, Data: answered("x")}
		}
		plain, hidden, fair := r.start(g, nil), r.start(g, nil), r.start(g, nil)
		r.Append(fair, events.Planning, answered("x"))
		into["waiting_for_human"](r, plain)
		into["waiting_for_human"](r, hidden)
		at := r.Memory(plain)
		inject(plain, answer(at.N+1, at.Control.LastID, at.Control.Head))
		states := map[string]events.State{}
		page, err := g.Runs(t.Context(), "", "", 0, "")
		require.NoError(t, err)
		for _, info := range page.Runs {
			states[info.RunID] = info.State
		}
		require.Equal(t, events.WaitingForHuman, states[plain.ID])
		require.Equal(t, events.Done, states[fair.ID])

		at = r.Memory(hidden)
		step := inject(hidden, &events.Event{
			N: at.N + 1, From: events.Planning, To: events.Planning, Cause: at.Control.LastID, Prev: at.Control.Head,
			Data: &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"},
		})
		inject(hidden, answer(step.N+1, step.ID, step.Prev))
		sleep(stall)
		for _, run := range []events.Run{plain, hidden} {
			mem, err := r.Fold(run)
			require.Error(t, err)
			require.Equal(t, events.Errored, mem.State)
			require.Equal(t, reducer.CodePoison, mem.Error.Code)
		}
		require.Zero(t, r.Journal.Timers())
	})
}

// A step that repeats a number of a run that waits is looked at.
func TestForgedNumberOfAWaitingRun(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		into["waiting_for_human"](r, run)
		sleep(2 * stall)
		at := r.Memory(run)
		body, err := events.DefaultCodec().Encode(&events.Event{
			ID: runlog.NewID(), Source: "moorebus/test/1", Run: run.ID, Time: time.Now(), N: at.N, From: events.Planning, To: events.Planning,
			Cause: at.Control.LastID, Prev: at.Control.Head, Data: &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"},
		})
		require.NoError(t, err)
		r.Journal.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: "default"}.String(), body)
		sleep(stall)
		mem, err := r.Fold(run)
		require.Error(t, err)
		require.Equal(t, events.Errored, mem.State)
	})
}
