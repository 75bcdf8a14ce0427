package e2e

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// quickAckWait is how soon the work of a killed process goes on, where that is
// what a test waits for.
const quickAckWait = 2 * time.Second

// TestKill9 kills a process of each role in the middle of its work, or of all
// conversations, and starts it again: everything ends as recorded.
func TestKill9(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	c := startCluster(t, setup{planners: 2, actors: 2, observers: 2, gateways: 2, ackWait: quickAckWait, tools: toolNames(all)})
	s := c.stage()
	t.Run("planner", func(t *testing.T) {
		asks := c.model.gate.hold("planner-0")
		s.play(t, all, func() {
			await(t, asks, "planner-0 asks the model")
			c.replace("planner", 0)
		})
	})
	t.Run("actor", func(t *testing.T) {
		calls := c.tools.gate.hold("actor-0")
		s.play(t, all, func() {
			await(t, calls, "actor-0 calls a tool")
			c.replace("actor", 0)
		})
	})
	t.Run("observer", func(t *testing.T) {
		early, later := s.milestone(t, 30), s.milestone(t, 90)
		s.play(t, all, func() {
			await(t, early, "some events")
			c.replace("observer", 0)
			await(t, later, "more events")
			c.replace("observer", 1)
		})
	})
	t.Run("gateway", func(t *testing.T) {
		middle := s.milestone(t, 60)
		s.play(t, all, func() {
			await(t, middle, "some events")
			c.replace("gateway", 0)
		})
	})
	c.verifyAll()
}

// TestRollingRestart restarts each role as an operator does, in the middle of all
// conversations: a process that is asked to end finishes what it is at, so
// nothing is lost and nothing is repeated.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	c := startCluster(t, setup{ackWait: time.Hour, tools: toolNames(all)}) // no work comes again by itself
	s := c.stage()
	s.gentle = true
	for _, role := range []string{"planner", "actor", "observer", "gateway"} {
		t.Run(role, func(t *testing.T) {
			middle := s.milestone(t, 60)
			s.play(t, all, func() {
				await(t, middle, "some events")
				require.NoError(t, c.roles[instance(role, 0)].terminate())
				c.start(role, 0)
			})
		})
	}
	c.verifyAll()
}

// TestKill9OnceTool kills an actor in the middle of a call that must not run
// twice: the model is told that nobody knows how it went.
func TestKill9OnceTool(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{ackWait: quickAckWait, tools: []string{"pay"}, toolSettings: map[string]string{"pay": "effect: once"}})
	s := c.stage()
	var paid atomic.Int64
	begun := make(chan struct{}, 16)
	c.tools.handle("pay", func(_ http.ResponseWriter, r *http.Request) {
		paid.Add(1)
		begun <- struct{}{}
		<-r.Context().Done()
	})
	run := s.begin(t, script{asks("pay-1", "pay", `{"crowns": 12}`), says("Whether it was paid is unknown.")}, "pay")
	await(t, begun, "the tool is called")
	c.replace("actor", 0)
	end, view := s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Len(t, view.Memory.History, 1)
	require.Equal(t, "outcome_unknown", view.Memory.History[0].Code)
	require.False(t, view.Memory.History[0].Success)
	require.EqualValues(t, 1, paid.Load(), "the tool ran twice")
	c.verifyAll()
}

// await waits for something that has to happen soon.
func await[T any](t *testing.T, happens <-chan T, what string) {
	t.Helper()
	select {
	case <-happens:
	case <-time.After(startTime):
		t.Fatalf("waited in vain: %s", what)
	}
}

// milestone returns a channel that is closed when the stage has shown n further
// events.
func (s *stage) milestone(t *testing.T, n int64) <-chan struct{} {
	reached := make(chan struct{})
	var count atomic.Int64
	before := s.seen
	s.seen = func(e *event) {
		if before != nil {
			before(e)
		}
		if count.Add(1) == n {
			close(reached)
		}
	}
	t.Cleanup(func() { s.seen = before })
	return reached
}
