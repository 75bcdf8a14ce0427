package planner_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// interruptible says "It is " and then nothing until its first call is cancelled, or
// for so long if it is stubborn. Later calls answer at once.
type interruptible struct {
	stubborn time.Duration
	calls    atomic.Int64
	requests [2]llm.Request
}

func (c *interruptible) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	n := c.calls.Add(1)
	if n <= int64(len(c.requests)) {
		c.requests[n-1] = req
	}
	if n > 1 {
		return say("Then so be it."), nil
	}
	if stream != nil {
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "It "})
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "is "})
	}
	if c.stubborn == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(c.stubborn) // in the bubble
	if stream != nil {
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "said too late."})
	}
	return say("It is said too late."), nil
}

// hears waits until a listener of the run has heard the text.
func (r *rig) hears(run events.Run, text string) *heard {
	r.T.Helper()
	h, l := r.listen(run)
	require.Eventually(r.T, func() bool { l.Ask(); return h.now() == text }, time.Minute, time.Second)
	return h
}

func user(id, text string) *events.UserMessage {
	return &events.UserMessage{MessageID: id, Content: text}
}

// conversation is what the messages say, one a line.
func conversation(mem *reducer.Memory) string {
	var b strings.Builder
	for _, m := range mem.Messages {
		b.WriteString(m.Role + ": " + m.Content)
		if m.Interrupted {
			b.WriteString(" (interrupted)")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestWhatWasReadOfAnInterruptedReplyIsKept(t *testing.T) {
	caller := &interruptible{}
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		h := r.hears(run, "It is ")
		message := h.raw[0].MessageID
		r.Append(run, events.Control, user("u2", "No, wait."))
		mem := r.AwaitState(run, events.WaitingForUser)
		require.Equal(t, []string{"Start", "UserMessage", "LlmAttemptFailed", "LlmMessageComplete"}, r.Types(run))
		require.Equal(t, "user: find it\nassistant: It is  (interrupted)\nuser: No, wait.\nassistant: Then so be it.\n", conversation(mem))
		require.Equal(t, message, mem.Messages[1].ID, "as the live feed names it")
		require.Equal(t, mem.Messages[2].Timestamp, mem.Messages[1].Timestamp, "it ended when the message came")

		kept := r.Records(run)[2]
		require.Contains(t, kept.Subject, ".planning.none.default.")
		require.Equal(t, 1, mem.Control.Replies, "a scripted model's place does not move")
		require.Equal(t, 1, mem.Step)
		require.Empty(t, mem.Control.Attempts)

		var seen []string
		for _, m := range caller.requests[1].Messages {
			seen = append(seen, string(m.Role)+": "+m.Content)
		}
		require.Equal(t, []string{
			"system: You test.", "user: find it", "assistant: It is ", "user: [moorebus: your reply above was interrupted before it was complete; the user has read what stands there]", "user: No, wait.",
		}, seen, "the model knows what the user has read")
	})
}

// A model call that does not notice that it was cancelled holds nothing up for long.
// What it leaves comes when the turn is answered already, and to its place.
func TestAnInterruptedReplyIsKeptLate(t *testing.T) {
	bubbleWith(t, &interruptible{stubborn: time.Minute}, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		h := r.hears(run, "It is ")
		r.Append(run, events.Control, user("u2", "No, wait."))
		began := time.Now()
		require.Len(t, r.AwaitState(run, events.WaitingForUser).Messages, 3)
		require.Less(t, time.Since(began), 10*time.Second)
		mem := r.Await(run, func(mem *reducer.Memory) bool { return mem.N == 4 })
		require.Equal(t, "user: find it\nassistant: It is  (interrupted)\nuser: No, wait.\nassistant: Then so be it.\n", conversation(mem))
		require.Equal(t, events.WaitingForUser, mem.State)
		require.NotContains(t, h.now(), "too late", "nobody is told what comes after the message")
		require.Equal(t, 30, mem.TotalUsage.Total, "both replies are billed")
		require.Equal(t, "stop", r.event(run, 4).Data.(*events.LLMAttemptFailed).Finish)
	})
}

func TestAnInterruptedReplyThatIsNotKept(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*planner.Config)
		event  events.Payload
		types  []string
	}{
		"nothing was said": {func(cfg *planner.Config) { cfg.NoStream = true }, user("u2", "No."), []string{"Start", "UserMessage", "LlmMessageComplete"}},
		"the run ended":    {func(*planner.Config) {}, &events.CancelledRun{}, []string{"Start", "Cancelled"}},
		"it is only held":  {func(*planner.Config) {}, &events.Paused{}, []string{"Start", "Paused"}},
	} {
		t.Run(name, func(t *testing.T) {
			caller := &interruptible{}
			bubbleWith(t, caller, func(t *testing.T, r *rig) {
				run := r.begin(chat)
				require.Eventually(t, func() bool { return caller.calls.Load() == 1 }, time.Minute, time.Second)
				r.Append(run, events.Control, c.event)
				for range 20 {
					time.Sleep(time.Second) // in the bubble
				}
				require.Equal(t, c.types, r.Types(run))
				if mem := r.Memory(run); mem.State == events.Planning {
					r.Append(run, events.Control, &events.CancelledRun{})
				}
			}, c.change)
		})
	}
}

func TestAnEditOfTheContextInterruptsToo(t *testing.T) {
	caller := &interruptible{}
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.begin(chat)
		r.hears(run, "It is ")
		r.Append(run, events.Control, &events.ContextWindowExpanded{Increment: 3})
		mem := r.AwaitState(run, events.WaitingForUser)
		require.Equal(t, "user: find it\nassistant: It is  (interrupted)\nassistant: Then so be it.\n", conversation(mem))
		last := caller.requests[1].Messages
		require.Equal(t, llm.RoleUser, last[len(last)-1].Role, "the model does not go on with its own words")
	})
}

// A reply of which nothing was published is billed as well.
func TestAnObsoleteReplyIsBilled(t *testing.T) {
	quiet := func(c *planner.Config) { c.NoStream = true }
	var release chan struct{}
	asked := 0
	caller := llm.CallerFunc(func(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
		if asked++; asked == 1 {
			<-release // it does not notice that it was cancelled
		}
		return say("It is 42."), nil
	})
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		release = make(chan struct{})
		run := r.begin(chat)
		synctest.Wait()
		r.Append(run, events.Control, user("u2", "No, wait."))
		close(release)
		mem := r.AwaitState(run, events.WaitingForUser)
		require.Equal(t, []string{"Start", "UserMessage", "LlmAttemptFailed", "LlmMessageComplete"}, r.Types(run))
		obsolete := r.event(run, 3).Data.(*events.LLMAttemptFailed)
		require.Equal(t, []string{"obsolete", "stop"}, []string{obsolete.Kind, obsolete.Finish})
		require.Equal(t, 30, mem.TotalUsage.Total)
		require.Equal(t, 1, mem.Control.Replies)
		require.Empty(t, mem.Control.Attempts)
	}, quiet)
}

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
