package reducer_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// textual is an agent whose model speaks the text protocol.
func textual(p *events.Start) { p.Agent.LLM.Text = true }

func thought(text, next string) *events.LLMThought {
	return &events.LLMThought{Reply: events.Reply{Content: text, Usage: tokens(1, 1)}, NextState: next}
}

func unread(content, reason string) *events.ReplyInvalid {
	return &events.ReplyInvalid{RefusedReply: events.RefusedReply{
		Content: content, Calls: []events.Call{}, Results: []events.Answer{{Observation: "ERROR: " + reason, Code: reducer.CodeMalformedReply}},
	}}
}

func TestTextState(t *testing.T) {
	state := func(s *scene) string { return s.Mem.Control.TextState }
	s := started(t, textual)
	require.Equal(t, "thinking", state(s))
	require.Equal(t, "executing", state(s.do(thought("one", "executing"))))
	require.Equal(t, "thinking", state(s.do(thought("two", "thinking"))))
	s.do(thought("three", "executing"), single("a", "alpha"))
	require.Equal(t, "thinking", state(s), "after an action the model thinks")
	s.do(success("a", "1"), &events.Continue{}, thought("four", "executing"), unread("<agent>", "no"))
	require.Equal(t, "thinking", state(s), "after one that is invalid too")
	require.Equal(t, 6, s.Mem.Step, "each is a planning call")
	require.Equal(t, 6, s.Mem.Control.Replies)
	require.Len(t, s.Mem.ThinkingLog, 4)
	require.Equal(t, []string{"plan/9"}, s.keys(), "a thought is a transition: the model is asked anew")

	plain := started(t).do(thought("one", "executing"))
	require.Empty(t, plain.Mem.Control.TextState, "who calls tools has no such state")
}

func TestInvalidRepliesInARow(t *testing.T) {
	refused := &events.ReplyInvalid{RefusedReply: events.RefusedReply{
		Calls: []events.Call{callOf("x", "nope")}, Results: []events.Answer{{ID: "x", Observation: "ERROR: not found", Code: "not_found"}},
	}}
	s := started(t, textual).do(unread("<agent>", "no end"), refused)
	require.Equal(t, 2, s.Mem.Control.SinceUser.Invalid)
	require.Equal(t, "ERROR: not found", reducer.LastRefusal(s.Mem))
	s.do(user("m", "well?"), unread("", "empty"))
	require.Equal(t, 3, s.Mem.Control.SinceUser.Invalid, "a task's message does not start it again")
	require.Equal(t, "ERROR: empty", reducer.LastRefusal(s.Mem))
	require.Zero(t, s.do(thought("hm", "thinking")).Mem.Control.SinceUser.Invalid)

	talk := started(t, textual, chat).do(unread("<agent>", "no end"), user("m", "well?"))
	require.Zero(t, talk.Mem.Control.SinceUser.Invalid, "a turn's message does")

	plain := started(t).do(&events.ReplyInvalid{RefusedReply: unread("x", "y").RefusedReply})
	require.Zero(t, plain.Mem.Control.SinceUser.Invalid, "only the text protocol counts")
	require.Empty(t, reducer.LastRefusal(started(t).Mem))
}

func TestAnUnreadReplyIsNoMessage(t *testing.T) {
	s := started(t, textual).do(unread("<agent>", "no end"))
	s.sees(`
		system: You test.
		user: find it
		assistant: <agent>
		user: ERROR: no end`)
	view := reducer.View(nil, s.Mem)
	require.True(t, view[2].Raw)
	require.Len(t, s.Mem.Messages, 1, "users do not get to see what could not be read")
	started(t, textual).do(unread("", "empty")).sees(`
		system: You test.
		user: find it
		user: ERROR: empty`)
}

// TestTextWindow: under the text protocol a call is a message as well, so that the
// prompt of a long run stays as small as the window says. The task is always
// there, and so are calls that were asked for.
func TestTextWindow(t *testing.T) {
	s := started(t, textual, func(p *events.Start) { p.Agent.Config.ContextWindowSize = 2 })
	for i := range 50 {
		id := fmt.Sprint("c", i)
		s.do(thought("hm", "executing"), single(id, "alpha"), success(id, fmt.Sprint(i)), &events.Continue{})
	}
	s.sees(`
		system: You test.
		user: find it
		assistant:  [c48 alpha {"n":1.0}]
		tool c48 alpha: 48
		assistant:  [c49 alpha {"n":1.0}]
		tool c49 alpha: 49`)
	require.Empty(t, s.Mem.ReactContext.ToolCallIDs)
	s.do(&events.ToolCallsAddedToContext{CallIDs: []string{"c7"}}, &events.ContextWindowExpanded{Increment: 1})
	s.sees(`
		system: You test.
		user: find it
		assistant:  [c7 alpha {"n":1.0}]
		tool c7 alpha: 7
		assistant:  [c47 alpha {"n":1.0}]
		tool c47 alpha: 47
		assistant:  [c48 alpha {"n":1.0}]
		tool c48 alpha: 48
		assistant:  [c49 alpha {"n":1.0}]
		tool c49 alpha: 49`)
}

// What the user asked last stands beside a window of one message, and takes
// nothing's place: else the model would never see a result.
func TestTextWindowOfOne(t *testing.T) {
	s := started(t, textual, chat, func(p *events.Start) { p.Agent.Config.ContextWindowSize = 1 })
	s.do(turnAnswer("Hello there."), user("m", "use alpha"), single("a", "alpha"), success("a", "RESULT"), &events.Continue{})
	s.sees(`
		system: You test.
		user: find it
		user: use alpha
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: RESULT`)
}

// Of a reply that is too large the log has only the beginning: that is no answer.
func TestATooLargeReplyOfTextIsNoMessage(t *testing.T) {
	p := unread("<agent><thinking_log>xx", "the reply is too large")
	p.Results[0].Code = reducer.CodeTooLarge
	s := started(t, textual).do(p)
	require.Len(t, s.Mem.Messages, 1)
	require.True(t, reducer.View(nil, s.Mem)[2].Raw)
}
