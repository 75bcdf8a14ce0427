package gateway_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/pkg/events"
)

// child starts the run that answers a call of another one.
func (r *timed) child(parent events.Run, call string) events.Run {
	r.t.Helper()
	run := r.Store.Place(parent.Namespace, events.ChildID(parent.ID, call))
	start := reducertest.StartOf("help", events.ModeTask)
	start.Tools = append(start.Tools, events.ToolSpec{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool})
	start.Parent = &events.Parent{Run: parent.ID, CallID: call}
	r.Append(run, events.Idle, start)
	return run
}

// A run that its deadline ends takes the runs along that answer its open calls.
func TestDeadlineEndsTheChildren(t *testing.T) {
	inTime(t, simulated.Options{}, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, wallTime(10*time.Minute))
		into["acting"](r, run)
		child := r.child(run, "a")
		sleep(9 * time.Minute)
		require.Equal(t, events.Planning, r.Memory(child).State)
		sleep(2 * time.Minute)
		require.Equal(t, events.Errored, r.Memory(run).State)
		require.Equal(t, events.Cancelled, r.Memory(child).State)
	})
}

// A gateway that dies between the end of a run and that of its children leaves
// them to the run's timer.
func TestTheTimerEndsChildrenThatWereLeft(t *testing.T) {
	inTime(t, simulated.Options{}, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		into["acting"](r, run)
		child := r.child(run, "a")
		r.Append(run, events.Control, &events.CancelledRun{}) // and no more
		sleep(stall + time.Minute)
		require.Equal(t, events.Cancelled, r.Memory(child).State)
	})
}
