package reducer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func interrupted(id, text, before string) *events.LLMAttemptFailed {
	return &events.LLMAttemptFailed{Kind: events.KindInterrupted, Key: "plan/1", MessageID: id, Content: text, Before: before}
}

func spoken(mem *reducer.Memory) []string {
	var all []string
	for _, m := range mem.Messages {
		text := m.Role + ": " + m.Content
		if m.Interrupted {
			text += " (interrupted)"
		}
		all = append(all, text)
	}
	return all
}

func TestAnInterruptedReplyStandsBeforeWhatInterruptedIt(t *testing.T) {
	s := started(t, chat).do(single("a", "alpha"), success("a", "1"), &events.Continue{}, user("m2", "Stop."), interrupted("i1", "I was ", "m2"))
	require.Equal(t, []string{"user: find it", "assistant: I was  (interrupted)", "user: Stop."}, spoken(s.Mem))
	s.sees(`
		system: You test.
		user: find it
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1
		assistant: I was 
		user: ` + reducer.InterruptedNote + `
		user: Stop.`)
	s.do(turnAnswer("Stopped."), user("m3", "Go on."), interrupted("i2", "late", "m2"), interrupted("i2", "again", ""))
	require.Equal(t, []string{
		"user: find it", "assistant: I was  (interrupted)", "assistant: late (interrupted)", "user: Stop.", "assistant: Stopped.", "user: Go on.",
	}, spoken(s.Mem), "once, and wherever the run has gone since")
	require.Equal(t, "Go on.", s.Mem.Control.Turns[s.Mem.Control.Asked].Content)
	require.Equal(t, "m3", s.Mem.Messages[s.Mem.Control.Opened].ID)
}

func TestAnInterruptedReplyIsNoAttempt(t *testing.T) {
	s := started(t, chat).do(user("m2", "Stop."))
	before, keys := s.Mem.Clone(), s.keys()
	require.Equal(t, "none.default", s.route(interrupted("i1", "I was ", "m2")))
	require.Equal(t, keys, s.keys(), "the call in flight goes on")
	after := s.Mem.Control
	require.Equal(t, before.Control.Replies, after.Replies)
	require.Equal(t, before.Control.SinceUser, after.SinceUser)
	require.Empty(t, after.Attempts)
	require.Equal(t, before.Step, s.Mem.Step)

	s.do(&events.LLMAttemptFailed{Kind: events.KindInterrupted, Key: keys[0]})
	require.Equal(t, before.Control.Replies+1, s.Mem.Control.Replies, "a provider's own kind of that name is a failure, as ever")
	require.Equal(t, 1, s.effect(keys[0]).Failed.Provider)
}

// What is kept counts as a message of the window.
func TestAnInterruptedReplyInTheWindow(t *testing.T) {
	s := started(t, chat, window(3)).do(turnAnswer("First."), user("m2", "second?"), user("m3", "I mean third."), interrupted("i1", "Sec", "m3"))
	require.Equal(t, 5, s.Mem.Windowed())
	s.sees(`
		system: You test.
		user: second?
		assistant: Sec
		user: ` + reducer.InterruptedNote + `
		user: I mean third.`)
}

// Edits that are made while a chat waits for its user are for the turn that follows.
func TestEditsWhileTheUserIsAwaited(t *testing.T) {
	conversation := func(t *testing.T) *scene {
		return started(t, chat, window(2)).do(
			single("a", "alpha"), success("a", "1"), &events.Continue{}, turnAnswer("First."), user("m2", "second?"), turnAnswer("Second."))
	}
	s := conversation(t).do(
		&events.ContextWindowExpanded{Increment: 1, NextTurn: true}, &events.ToolCallsAddedToContext{CallIDs: []string{"a"}, NextTurn: true},
		&events.ContextWindowExpanded{Increment: 1, NextTurn: true})
	require.Nil(t, s.Mem.ReactContext, "null when idle")
	s.do(user("m3", "third?")).sees(`
		system: You test.
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1
		assistant: First.
		user: second?
		assistant: Second.
		user: third?`)
	require.Equal(t, []reducer.Edit{{Step: 3, Widened: 2}, {Step: 3, CallIDs: []string{"a"}}}, s.Mem.ReactContext.Edits)
	s.do(turnAnswer("Third."), user("m4", "fourth?")).sees(`
		system: You test.
		assistant: Third.
		user: fourth?`)

	old := conversation(t).do(&events.ContextWindowExpanded{Increment: 2}, &events.ToolCallsAddedToContext{CallIDs: []string{"a"}}, user("m3", "third?"))
	old.sees(`
		system: You test.
		assistant: Second.
		user: third?`) // as logs have it that do not say for which turn

	huge := conversation(t)
	for range 3 {
		huge.do(&events.ContextWindowExpanded{Increment: int(^uint(0) >> 1), NextTurn: true})
	}
	huge.do(user("m3", "third?"))
	require.Equal(t, 5, huge.Mem.ReactContext.ContextWindowSize, "all that there is")
}
