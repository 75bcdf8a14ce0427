package planner_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// slow is a model whose every reply takes a minute. It counts how often it was asked, and
// how often for a reflection.
type slow struct {
	asked, reflected atomic.Int32
	reply            llm.Response
}

func (s *slow) Call(ctx context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	s.asked.Add(1)
	if req.Purpose == llm.PurposeReflect {
		s.reflected.Add(1)
	}
	select {
	case <-time.After(time.Minute): // in the bubble
		return s.reply, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// twoPlanners runs a test with a planner that takes one delivery at a time, and another
// one that comes when the first is busy.
func twoPlanners(t *testing.T, noStream bool, test func(t *testing.T, r *rig, model *slow, first *simtest.Process, join func())) {
	synctest.Test(t, func(t *testing.T) {
		model := &slow{reply: say("It is done.")}
		r := newBenchRig(t)
		begin := func(instance string) *simtest.Process {
			cfg := r.config(model)
			cfg.Instance, cfg.Concurrency, cfg.NoStream = instance, 1, noStream
			p, err := planner.New(cfg)
			require.NoError(t, err)
			process := cfg.Feed.(*simtest.Process)
			r.GoOn(process, p.Run)
			return process
		}
		test(t, r, model, begin("1"), func() { begin("2") })
	})
}

// interrupt pauses a run whose call is in flight, and resumes it.
func (r *rig) interrupt(run events.Run) {
	r.Append(run, events.Control, &events.Paused{})
	r.Append(run, events.Control, &events.Resumed{})
}

func TestResumedCallsAreLeftToThePlannerThatHasThemInFlight(t *testing.T) {
	for name, noStream := range map[string]bool{"streaming": false, "not streaming": true} {
		t.Run(name, func(t *testing.T) {
			twoPlanners(t, noStream, func(t *testing.T, r *rig, model *slow, _ *simtest.Process, join func()) {
				run := r.begin()
				synctest.Wait()
				join()
				for range 5 {
					r.interrupt(run)
					synctest.Wait()
				}
				require.Equal(t, "It is done.", *r.AwaitEnd(run).FinalAnswer)
				quiet()
				require.EqualValues(t, 1, model.asked.Load())
			})
		})
	}
}

func TestResumedReflectionsAreLeftToThePlannerThatHasThemInFlight(t *testing.T) {
	twoPlanners(t, false, func(t *testing.T, r *rig, model *slow, _ *simtest.Process, join func()) {
		model.reply = ask(call("a", "alpha", "{}"))
		run := r.begin()
		mem := r.AwaitState(run, events.Acting)
		model.reply = say("So far, so good.")
		r.Act(run, mem.CurrentToolCall.ID, "1")
		r.Append(run, events.Observing, &events.NeedsReflection{})
		synctest.Wait()
		join()
		r.interrupt(run)
		r.AwaitType(run, events.TypeReflectDone)
		require.EqualValues(t, 1, model.reflected.Load())
	})
}

// The planner that has the call dies: whoever got the Resumed makes it then.
func TestResumedCallsOfADeadPlannerAreMadeAgain(t *testing.T) {
	twoPlanners(t, false, func(t *testing.T, r *rig, model *slow, first *simtest.Process, join func()) {
		run := r.begin()
		synctest.Wait()
		join()
		r.interrupt(run)
		time.Sleep(10 * time.Second) // in the bubble
		require.EqualValues(t, 1, model.asked.Load())
		first.Kill()
		began := time.Now()
		for model.asked.Load() == 1 {
			time.Sleep(100 * time.Millisecond) // in the bubble
			require.Less(t, time.Since(began), 10*time.Second)
		}
		require.Equal(t, "It is done.", *r.AwaitEnd(run).FinalAnswer)
	})
}

// A re-drive is for work that is lost: whoever says to have it is not believed.
func TestARedriveWaitsForNobody(t *testing.T) {
	twoPlanners(t, false, func(t *testing.T, r *rig, model *slow, _ *simtest.Process, join func()) {
		run := r.begin()
		synctest.Wait()
		join()
		r.Append(run, events.Control, &events.Resumed{Redrive: true})
		time.Sleep(time.Second) // in the bubble
		require.EqualValues(t, 2, model.asked.Load())
		r.AwaitEnd(run)
	})
}
