package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// gated is a planning worker of three slots behind a gate.
func gated(r *rig, gate *worker.Gate, h worker.Handler) {
	r.spawn(handlers{effects.KindPlan: h}, func(c *worker.Config) {
		c.Gate, c.Concurrency = gate, 3
		c.Inboxes = []journal.Inbox{{States: []events.State{events.Planning}, Pool: events.DefaultPool}}
	})
}

func TestGateHoldsDeliveriesBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, gate := newHanging(), &worker.Gate{}
		gated(r, gate, h)
		inWork := r.start()
		<-h.began
		gate.Shut(time.Now().Add(time.Hour))
		gate.Shut(time.Now().Add(time.Minute)) // it stays shut for the hour
		var later []events.Run
		for range 5 {
			later = append(later, r.start())
		}
		time.Sleep(59 * time.Minute) // in the bubble
		synctest.Wait()
		require.Empty(t, h.began, "nothing is taken")
		gate.Open() // of a call that was begun before
		synctest.Wait()
		require.Empty(t, h.began)
		h.let <- worker.Done(answer("It is done."))
		require.Equal(t, events.Done, r.AwaitEnd(inWork).State, "what is in work goes on")

		time.Sleep(61 * time.Second) // in the bubble
		synctest.Wait()
		require.Len(t, h.began, 1, "then one at a time")
		<-h.began
		h.let <- worker.Done(answer("It is done."))
		synctest.Wait()
		require.Len(t, h.began, 1)
		time.Sleep(worker.ProbeInterval) // in the bubble
		synctest.Wait()
		require.Len(t, h.began, 2, "and a further one while that one takes long")
		gate.Open()
		synctest.Wait()
		require.Len(t, h.began, 3, "then all slots")
		for range 4 {
			h.let <- worker.Done(answer("It is done."))
		}
		for _, run := range later {
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
			require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run))
		}
	})
}

// The slots of deliveries from before the gate shut are used again as soon as those end.
func TestGateUsesFreedSlotsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, gate := newHanging(), &worker.Gate{}
		gated(r, gate, h)
		for range 6 {
			r.start()
		}
		for range 3 {
			<-h.began
		}
		gate.Shut(time.Now().Add(time.Second))
		time.Sleep(2 * time.Second) // in the bubble
		gate.Open()
		synctest.Wait()
		require.Empty(t, h.began, "all slots are in use")
		for more := 1; more <= 3; more++ {
			h.let <- worker.Done(answer("It is done."))
			synctest.Wait()
			if more != 2 { // one of two slots that are missing is not worth to begin again
				require.Len(t, h.began, more)
			}
		}
		for range 3 {
			h.let <- worker.Done(answer("It is done."))
		}
	})
}

// Never more than the slots are in work, however often the gate opens and shuts,
// and in the end all of them are used.
func TestGateKeepsToTheSlots(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		gate := &worker.Gate{}
		var now, most, last atomic.Int64
		gated(r, gate, work(func(context.Context) worker.Result {
			last.Store(now.Add(1))
			most.Store(max(most.Load(), last.Load()))
			time.Sleep(10 * time.Second) // in the bubble
			now.Add(-1)
			return worker.Done(answer("It is done."))
		}))
		var runs []events.Run
		for range 60 {
			runs = append(runs, r.start())
		}
		for range 40 {
			time.Sleep(700 * time.Millisecond) // in the bubble
			gate.Shut(time.Now().Add(300 * time.Millisecond))
			time.Sleep(400 * time.Millisecond) // in the bubble
			gate.Open()
		}
		began := time.Now()
		for _, run := range runs {
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
			require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run), "nothing was counted as lost")
		}
		require.EqualValues(t, 3, most.Load())
		require.Less(t, time.Since(began), 210*time.Second, "with all slots")
	})
}
