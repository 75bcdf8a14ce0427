package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// hanging is work that says when it begins and ends, and goes on until it is
// cancelled or let go.
type hanging struct {
	began chan string
	ended chan error
	let   chan worker.Result
}

func newHanging() *hanging {
	return &hanging{began: make(chan string, 100), ended: make(chan error, 100), let: make(chan worker.Result)}
}

func (h *hanging) Prepare(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
	return func(ctx context.Context) worker.Result {
		h.began <- e.Key
		select {
		case <-ctx.Done():
			h.ended <- ctx.Err()
			return worker.Done(answer("of a cancelled effect")) // must be dropped
		case result := <-h.let:
			h.ended <- nil
			return result
		}
	}
}

func TestCancelledRunCancelsItsWork(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		run, other := r.start(), r.start()
		<-h.began
		<-h.began
		began := time.Now()
		r.Append(run, events.Control, &events.CancelledRun{})
		require.ErrorIs(t, <-h.ended, context.Canceled)
		require.Zero(t, time.Since(began), "at once, not when its outcome is refused")
		settled()
		require.Equal(t, []string{"Start", "Cancelled"}, r.Types(run))
		require.Equal(t, []string{"Start"}, r.Types(other), "other runs go on")
		h.let <- worker.Done(answer("It is done."))
		require.Equal(t, events.Done, r.AwaitEnd(other).State)
		require.Empty(t, h.began, "nothing was delivered again")
	})
}

// lossyFeed loses every record, and says so when it is told to.
type lossyFeed struct {
	journal.Feed
	lost func()
}

func (f *lossyFeed) Watch(_ journal.Filter, _ func(journal.Record), lost func()) (func(), error) {
	f.lost = lost
	return func() {}, nil
}

// Control events that the feed lost are read in the log.
func TestLostControlEvents(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		feed := &lossyFeed{}
		r.spawn(handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Feed = feed })
		run, other := r.start(), r.start()
		<-h.began
		<-h.began
		r.Append(run, events.Control, &events.CancelledRun{})
		settled()
		require.Empty(t, h.ended)
		feed.lost()
		feed.lost()
		require.ErrorIs(t, <-h.ended, context.Canceled)
		synctest.Wait()
		require.Empty(t, h.ended, "the other run goes on")
		require.Equal(t, []string{"Start"}, r.Types(other))
	})
}

// A control event that comes between the fold and the start of the work is seen, since the
// run is held already.
func TestCancelledBeforeItStarts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		reading, read := make(chan struct{}), make(chan struct{})
		log := &workertest.Log{}
		h := newHanging()
		run := r.start()
		p := r.Journal.NewProcess()
		log.Log = p
		log.OnRead = func(events.Run) error {
			log.OnRead = nil
			close(reading)
			<-read
			return nil
		}
		w := r.worker(p, handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Store = r.NewStore(log) })
		r.Go(w.Run)
		<-reading
		r.Append(run, events.Control, &events.CancelledRun{})
		close(read)
		settled()
		require.Empty(t, h.began)
		require.Equal(t, []string{"Start", "Cancelled"}, r.Types(run))
	})
}

func TestUserMessageReArmsPlanning(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		run := r.start()
		require.Equal(t, "plan/1", <-h.began)
		r.Append(run, events.Control, &events.UserMessage{MessageID: "m", Content: "no, this"})
		require.ErrorIs(t, <-h.ended, context.Canceled)
		require.Equal(t, "plan/2", <-h.began)
		synctest.Wait()
		h.let <- worker.Done(answer("That then."))
		mem := r.AwaitEnd(run)
		require.Equal(t, "That then.", *mem.FinalAnswer)
		settled()
		require.Equal(t, []string{"Start", "UserMessage", "LlmFinalAnswer"}, r.Types(run), "no failure is counted")
	})
}

// A user's message while a tool runs does not make the call obsolete.
func TestUserMessageLeavesToolsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: always(single("a", "alpha")), effects.KindTool: h})
		run := r.start()
		<-h.began
		r.Append(run, events.Control, &events.UserMessage{MessageID: "m", Content: "hurry"})
		synctest.Wait()
		require.Empty(t, h.ended)
		h.let <- worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
		r.AwaitState(run, events.Observing)
		require.Equal(t, []string{"Start", "LlmToolCall", "UserMessage", "ToolSuccess"}, r.Types(run))
	})
}

func TestPausedRunStartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		run := r.start()
		r.Append(run, events.Control, &events.Paused{})
		r.spawn(handlers{effects.KindPlan: h})
		settled()
		require.Empty(t, h.began)
		r.Append(run, events.Control, &events.Resumed{})
		require.Equal(t, "plan/1", <-h.began)
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		require.Equal(t, []string{"Start", "Paused", "Resumed", "LlmFinalAnswer"}, r.Types(run),
			"the delivery was acknowledged, not lost")
	})
}

func TestPauseLeavesStartedWorkAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		run := r.start()
		<-h.began
		r.Append(run, events.Control, &events.Paused{})
		synctest.Wait()
		require.Empty(t, h.ended)
		h.let <- worker.Done(single("a", "alpha"))
		r.AwaitState(run, events.Acting)
		settled()
		require.Equal(t, []string{"Start", "Paused", "LlmToolCall"}, r.Types(run), "its result is taken, the tool waits")
		r.Append(run, events.Control, &events.Resumed{})
		settled()
		require.Equal(t, codes.NoHandler, r.Memory(run).Error.Code, "now the tool is due")
	})
}

// Resumed drives work that is in flight once more; the second delivery joins it.
func TestResumedJoinsWhatRuns(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		run := r.start()
		<-h.began
		r.Append(run, events.Control, &events.Resumed{})
		settled()
		require.Empty(t, h.began)
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		settled()
		require.Empty(t, h.began)
		require.Equal(t, []string{"Start", "Resumed", "LlmFinalAnswer"}, r.Types(run))
	})
}

// A delivery that joined a failed attempt waits for the same delay.
func TestJoinedAttemptKeepsItsDelay(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		run := r.start()
		<-h.began
		r.Append(run, events.Control, &events.Resumed{})
		synctest.Wait()
		h.let <- worker.Retry(events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow down"}, 5*time.Minute)
		began := time.Now()
		<-h.began
		require.Equal(t, 5*time.Minute, time.Since(began))
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		require.Equal(t, []string{"rate_limited"}, kinds(r.failures(run)))
	})
}

func TestDuplicateDeliveriesRunOnce(t *testing.T) {
	o := simtest.Options{Faults: simtest.Faults{Duplicate: 1, MaxDelay: time.Second}}
	bubbleWith(t, o, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		run := r.start()
		<-h.began
		settled()
		require.Empty(t, h.began, "the key runs already")
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		settled()
		require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run))
	})
}

// startThenRun is a tool that must not run twice.
func startThenRun(h *hanging) worker.Handler {
	return worker.HandlerFunc(func(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
		if e.Started > 0 {
			o := events.ToolOutcome{CallID: e.CallID, Code: codes.OutcomeUnknown, Observation: "ERROR: unknown"}
			return func(context.Context) worker.Result { return worker.Done(&events.ToolFailure{Outcome: &o}) }
		}
		return func(context.Context) worker.Result {
			return worker.Then(&events.ToolCallStarted{CallID: e.CallID}, h.Prepare(run, mem, e))
		}
	})
}

// A call that is planned but not started when the run is paused does not start:
// no ToolCallStarted follows Paused.
func TestPausedBeforeToolCallStarted(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		run := r.start()
		r.Append(run, events.Planning, single("a", "beta"))
		p, log := r.firstAppend(func() { r.Append(run, events.Control, &events.Paused{}) }) // wins the race
		w := r.worker(p, handlers{effects.KindTool: startThenRun(h)}, func(c *worker.Config) { c.Store = r.NewStore(log) })
		r.Go(w.Run)
		settled()
		require.Empty(t, h.began)
		require.Equal(t, []string{"Start", "LlmToolCall", "Paused"}, r.Types(run))
		r.Append(run, events.Control, &events.Resumed{})
		<-h.began
		h.let <- worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
		r.AwaitState(run, events.Observing)
		require.Equal(t, []string{"Start", "LlmToolCall", "Paused", "Resumed", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
	})
}

// A started call stays valid while the run is paused, also when its worker dies:
// the delivery that started it concludes it, and no other one.
func TestStartedCallSurvivesPauseAndDeath(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		tools := handlers{effects.KindTool: startThenRun(h)}
		run := r.start()
		r.Append(run, events.Planning, single("a", "beta"))
		p, _ := r.spawn(tools)
		<-h.began
		r.Append(run, events.Control, &events.Paused{})
		r.Append(run, events.Control, &events.Resumed{}) // goes to acting, and must not conclude anything
		r.Append(run, events.Control, &events.Paused{})
		synctest.Wait()
		require.Empty(t, h.ended)
		p.Kill()
		r.spawn(tools)
		mem := r.AwaitState(run, events.Observing)
		require.Equal(t, codes.OutcomeUnknown, mem.Control.Last.Code)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "Paused", "Resumed", "Paused", "LlmAttemptFailed", "ToolFailure"}, r.Types(run))
		require.Empty(t, h.began, "it ran once")
	})
}

// actingOn is the one inbox of a tool's calls. A worker whose append a test holds
// up must get nothing else of the run: it would wait for the run's lock, and
// virtual time does not pass while anybody waits for a lock.
func (r *rig) actingOn(run events.Run, tool string) []journal.Inbox {
	pool := r.Memory(run).Tools[tool].Pool
	return []journal.Inbox{{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool}}
}

// Two workers may be about to start the same call, under two messages: the
// second one finds it started and leaves it alone.
func TestCallIsStartedByOneWorkerOnly(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		slow, fast := newHanging(), newHanging()
		run := r.start()
		r.Append(run, events.Planning, single("a", "beta"))
		reached, let := make(chan struct{}), make(chan struct{})
		p, log := r.firstAppend(func() { close(reached); <-let })
		w := r.worker(p, handlers{effects.KindTool: startThenRun(slow)}, func(c *worker.Config) {
			c.Store, c.Concurrency, c.Inboxes = r.NewStore(log), 1, r.actingOn(run, "beta")
		})
		r.Go(w.Run)
		<-reached
		r.Append(run, events.Control, &events.Resumed{})
		r.spawn(handlers{effects.KindTool: startThenRun(fast)})
		<-fast.began
		close(let)
		settled()
		require.Empty(t, slow.began)
		require.Equal(t, []string{"Start", "LlmToolCall", "Resumed", "ToolCallStarted"}, r.Types(run))
		fast.let <- worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
		r.AwaitState(run, events.Observing)
		require.Equal(t, []string{"Start", "LlmToolCall", "Resumed", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
	})
}

// A worker that was frozen finds its call started by whoever got the message
// after it. It neither runs the call nor concludes anything, and it does not
// take the message away from the one that runs it.
func TestFrozenWorkerLeavesTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		frozen, alive := newHanging(), newHanging()
		run := r.start()
		r.Append(run, events.Planning, single("a", "beta"))
		reached, release := make(chan struct{}), make(chan struct{})
		p, log := r.firstAppend(func() { close(reached); <-release })
		w := r.worker(p, handlers{effects.KindTool: startThenRun(frozen)}, func(c *worker.Config) {
			c.Store, c.Concurrency, c.Inboxes = r.NewStore(log), 1, r.actingOn(run, "beta")
			c.Queue = mute{p} // no sign of life
		})
		r.Go(w.Run)
		<-reached
		living, _ := r.spawn(handlers{effects.KindTool: startThenRun(alive)})
		<-alive.began
		close(release)
		settled()
		require.Empty(t, frozen.began)
		require.Equal(t, []string{"Start", "LlmToolCall", "LlmAttemptFailed", "ToolCallStarted"}, r.Types(run))
		living.Kill() // its message comes again, since nobody took it away
		mem := r.AwaitState(run, events.Observing)
		require.Equal(t, codes.OutcomeUnknown, mem.Control.Last.Code)
	})
}

// mute is a queue whose deliveries give no sign of life.
type mute struct{ *simtest.Process }

func (m mute) Consume(ctx context.Context, in journal.Inbox, slots int, handle func(journal.Delivery)) error {
	return m.Process.Consume(ctx, in, slots, func(d journal.Delivery) { handle(muted{d}) })
}

type muted struct{ journal.Delivery }

func (muted) Extend() error { return nil }

// A failure of a cancelled effect is dropped, like its result.
func TestFailureOfCancelledEffectIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began := make(chan struct{})
		r.spawn(handlers{effects.KindPlan: work(func(ctx context.Context) worker.Result {
			close(began)
			<-ctx.Done()
			return worker.Fail(errors.Join(errors.New("cut short"), ctx.Err()))
		})})
		run := r.start()
		<-began
		r.Append(run, events.Control, &events.CancelledRun{})
		settled()
		require.Equal(t, []string{"Start", "Cancelled"}, r.Types(run))
	})
}

// forgedFeed gives a test the way in that other users of the bus have.
type forgedFeed struct {
	journal.Feed
	say func(journal.Record)
}

func (f *forgedFeed) Watch(filter journal.Filter, fn func(journal.Record), lost func()) (func(), error) {
	f.say = fn
	return f.Feed.Watch(filter, fn, lost)
}

// A control event that the feed tells of but the log does not hold changes
// nothing, however well it fits.
func TestForgedControlEvent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h, feed := newHanging(), &forgedFeed{}
		r.spawn(handlers{effects.KindPlan: h}, func(c *worker.Config) {
			feed.Feed = c.Feed
			c.Feed = feed
		})
		run := r.start()
		<-h.began
		// A journal of the forger's own makes a record that goes on from the run's.
		forger := workertest.New(t, simtest.Options{}, nil)
		var last uint64
		for _, rec := range r.Records(run) {
			subject, err := events.ParseSubject(rec.Subject)
			require.NoError(t, err)
			last, err = forger.Journal.Append(t.Context(), run, last, journal.Entry{Subject: subject, Body: rec.Body})
			require.NoError(t, err)
		}
		forger.Append(run, events.Control, &events.CancelledRun{})
		records := forger.Records(run)
		feed.say(records[len(records)-1])
		synctest.Wait()
		require.Empty(t, h.ended, "its work goes on")
		h.let <- worker.Done(answer("It is done."))
		require.NoError(t, <-h.ended)
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run), "no delivery was needed again")
	})
}
