package e2e

import (
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

// TestActorsThatObserve kills actors with --observe, which no other observer stands beside, in the middle of
// their work. Then separate roles go on with the same bus.
func TestActorsThatObserve(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	c := startCluster(t, setup{actors: 2, observing: true, ackWait: quickAckWait, tools: toolNames(all)})
	s := c.stage()
	t.Run("a call is in flight", func(t *testing.T) {
		calls := c.tools.gate.hold("actor-0")
		s.play(t, all, func() {
			await(t, calls, "actor-0 calls a tool")
			c.replace("actor", 0)
		})
	})
	t.Run("at any moment", func(t *testing.T) {
		var reached []<-chan struct{}
		for n := range int64(6) {
			reached = append(reached, s.milestone(t, 15+25*n))
		}
		s.play(t, all, func() {
			for i, middle := range reached {
				await(t, middle, "some events")
				c.replace("actor", i%2)
			}
		})
	})
	t.Run("roles of their own take over", func(t *testing.T) {
		middle := s.milestone(t, 60)
		s.play(t, all, func() {
			await(t, middle, "some events")
			c.setup.observing, c.setup.observers = false, 1
			c.replace("actor", 0)
			c.replace("actor", 1)
			c.start("observer", 0)
		})
	})
	c.verifyAll()
}

// TestRollingRestart starts every role before there is a bus, and restarts each as an
// operator does, in the middle of all conversations: a process that is asked to end
// finishes what it is doing, so nothing is lost and nothing is repeated.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	c := startCluster(t, setup{late: true, ackWait: time.Hour, tools: toolNames(all)}) // no work comes again by itself
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

// await waits for something that has to happen soon, and returns it.
func await[T any](t *testing.T, happens <-chan T, what string) T {
	t.Helper()
	select {
	case got := <-happens:
		return got
	case <-time.After(startTime):
		t.Fatalf("waited in vain: %s", what)
		panic("unreachable")
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
