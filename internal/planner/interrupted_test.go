package planner_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
