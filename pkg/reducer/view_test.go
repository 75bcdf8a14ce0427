package reducer_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// script writes a view one line a message:
//
//	user: content
//	assistant: content [id name arguments, …]
//	tool id name: content
func script(mem *reducer.Memory) string {
	var b strings.Builder
	for _, m := range reducer.View(nil, mem) {
		switch {
		case m.Role == "tool":
			fmt.Fprintf(&b, "tool %s %s: %s\n", m.CallID, m.Name, m.Content)
		case len(m.Calls) > 0:
			var calls []string
			for _, c := range m.Calls {
				calls = append(calls, c.ID+" "+c.Name+" "+c.Arguments)
			}
			fmt.Fprintf(&b, "%s: %s [%s]\n", m.Role, m.Content, strings.Join(calls, ", "))
		default:
			fmt.Fprintf(&b, "%s: %s\n", m.Role, m.Content)
		}
	}
	return b.String()
}

func (s *scene) sees(want string) {
	s.t.Helper()
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
		lines = append(lines, strings.TrimLeft(line, "\t"))
	}
	require.Equal(s.t, strings.Join(lines, "\n")+"\n", script(s.Mem))
}

func said(p *events.LLMToolCall, text string) *events.LLMToolCall {
	p.Content = text
	return p
}

func TestViewOfAShortRun(t *testing.T) {
	s := started(t)
	s.sees(`
		system: You test.
		user: find it`)
	s.do(said(single("a", "alpha"), "Let me look."), success("a", "one\ntwo "), &events.Continue{})
	require.Equal(t, []reducer.ViewMessage{
		{Role: "system", Content: "You test."},
		{Role: "user", Content: "find it"},
		{Role: "assistant", Content: "Let me look.", Calls: []events.Call{{ID: "a", Name: "alpha", Arguments: `{"n":1.0}`}}},
		{Role: "tool", Content: "one\ntwo ", CallID: "a", Name: "alpha"},
	}, reducer.View(nil, s.Mem), "arguments and results are verbatim")
	s.do(finalAnswer("It is 42."))
	require.Equal(t, "assistant", reducer.View(nil, s.Mem)[4].Role)

	quiet := started(t, func(p *events.Start) { p.Agent.SystemPrompt = "" })
	quiet.sees(`user: find it`)
	empty := started(t).do(single("a", "alpha"), success("a", ""), &events.Continue{})
	messages := reducer.View(nil, empty.Mem)
	require.Equal(t, reducer.ViewMessage{Role: "tool", Content: "", CallID: "a", Name: "alpha"}, messages[len(messages)-1], "an empty result is an empty string")
}

func TestViewOfParallelCalls(t *testing.T) {
	batch := threeBatch()
	batch.Content = "All at once."
	batch.Refused = []events.Refusal{{Call: callOf("r", "forbidden"), Observation: "ERROR: tool \"forbidden\" is blacklisted", Code: "blacklisted"}}
	s := started(t).do(batch, result("d", true, "4"), result("b", false, "no luck"))
	s.sees(`
		system: You test.
		user: find it
		assistant: All at once. [b beta {"n":1.0}, d delta {"n":1.0}, r forbidden {"n":1.0}]
		tool b beta: ERROR: no luck
		tool d delta: 4
		tool r forbidden: ERROR: tool "forbidden" is blacklisted`)
	s.do(user("m", "and hurry"), result("a", true, "1"), &events.ToolSuccess{}, &events.Continue{})
	s.sees(`
		system: You test.
		user: find it
		assistant: All at once. [a alpha {"n":1.0}, b beta {"n":1.0}, d delta {"n":1.0}, r forbidden {"n":1.0}]
		tool a alpha: 1
		tool b beta: ERROR: no luck
		tool d delta: 4
		tool r forbidden: ERROR: tool "forbidden" is blacklisted
		user: and hurry`)
}

func TestViewOfRefusedReplies(t *testing.T) {
	refused := events.RefusedReply{
		Content: "I will.", Calls: []events.Call{callOf("x", "nope"), callOf("y", "forbidden")},
		Results: []events.Answer{{ID: "y", Observation: "ERROR: blacklisted", Code: "blacklisted"}, {ID: "x", Observation: `ERROR: tool "nope" not found`, Code: "not_found"}},
	}
	unreadable := events.RefusedReply{Content: "<agent>", Calls: []events.Call{}, Results: []events.Answer{{Observation: "ERROR: no end tag", Code: "malformed"}}}
	started(t).do(&events.ReplyInvalid{RefusedReply: refused}, &events.ReplyInvalid{RefusedReply: unreadable}, &events.AnswerTooShort{Content: "42"}).sees(`
		system: You test.
		user: find it
		assistant: I will. [x nope {"n":1.0}, y forbidden {"n":1.0}]
		tool x nope: ERROR: tool "nope" not found
		tool y forbidden: ERROR: blacklisted
		assistant: <agent>
		user: ERROR: no end tag
		assistant: 42
		user: ERROR: the answer is too short: give at least 1 characters.`)
	// Doubts and thoughts are not part of the conversation.
	started(t).do(&events.LLMThought{Reply: events.Reply{Content: "hm"}}, &events.LowConfidence{}, &events.ReflectDone{}).sees(`
		system: You test.
		user: find it`)
}

func TestViewOfDecisions(t *testing.T) {
	started(t).do(heldOne(), &events.HumanRejected{Decision: decision("a", "rejected")}, &events.Continue{},
		approvalOf([]string{"b"}, callOf("b", "alpha")), &events.ApprovalExpired{}, &events.Continue{},
		approvalOf([]string{"c"}, callOf("c", "alpha")), &events.HumanModified{Decision: decision("c", "modified")}, success("c", "2"), &events.Continue{}).sees(`
		system: You test.
		user: find it
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: REJECTED: too dear
		assistant:  [b alpha {"n":1.0}]
		tool b alpha: REJECTED: expired
		assistant:  [c alpha {"n":2}]
		tool c alpha: 2`)
}

func TestViewSendsTheProvidersOwnIDs(t *testing.T) {
	renamed := single("call_1~1", "beta")
	renamed.Calls[0].ProviderID = "call_1"
	started(t).do(single("call_1", "alpha"), success("call_1", "1"), &events.Continue{}, renamed, success("call_1~1", "2"), &events.Continue{}).sees(`
		system: You test.
		user: find it
		assistant:  [call_1 alpha {"n":1.0}]
		tool call_1 alpha: 1
		assistant:  [call_1 beta {"n":1.0}]
		tool call_1 beta: 2`)
}

func TestViewOfQueuedCalls(t *testing.T) {
	first := said(single("a", "alpha"), "One by one.")
	first.Queued = []events.Call{callOf("q", "beta")}
	first.Refused = []events.Refusal{{Call: callOf("r", "nope"), Observation: "ERROR: not found", Code: "not_found"}}
	s := started(t).do(first, success("a", "1"), user("m", "well?"), &events.Continue{})
	s.sees(`
		system: You test.
		user: find it
		assistant: One by one. [a alpha {"n":1.0}, r nope {"n":1.0}]
		tool a alpha: 1
		tool r nope: ERROR: not found
		user: well?`)
	s.do(single("q", "beta"), success("q", "2"), &events.Continue{})
	s.sees(`
		system: You test.
		user: find it
		assistant: One by one. [a alpha {"n":1.0}, q beta {"n":1.0}, r nope {"n":1.0}]
		tool a alpha: 1
		tool q beta: 2
		tool r nope: ERROR: not found
		user: well?`)
}

// talk is a conversation of three turns, with a call in the first two.
func talk(t *testing.T, window int) *scene {
	t.Helper()
	return started(t, chat, func(p *events.Start) { p.Agent.Config.ContextWindowSize = window }).do(
		said(single("a", "alpha"), "Looking."), success("a", "1"), &events.Continue{}, turnAnswer("First."),
		user("m2", "second?"), single("b", "beta"), failure("b", "none"), &events.Continue{}, turnAnswer("Second."),
		user("m3", "third?"))
}

func TestContextWindow(t *testing.T) {
	whole := `
		system: You test.
		user: find it
		assistant: Looking. [a alpha {"n":1.0}]
		tool a alpha: 1
		assistant: First.
		user: second?
		assistant:  [b beta {"n":1.0}]
		tool b beta: ERROR: none
		assistant: Second.
		user: third?`
	talk(t, 0).sees(whole)
	talk(t, 10).sees(whole)
	talk(t, 1).sees(`
		system: You test.
		user: third?`)
	talk(t, 2).sees(`
		system: You test.
		assistant: Second.
		user: third?`)
	talk(t, 3).sees(`
		system: You test.
		user: second?
		assistant:  [b beta {"n":1.0}]
		tool b beta: ERROR: none
		assistant: Second.
		user: third?`)
	talk(t, 5).sees(`
		system: You test.
		assistant: Looking. [a alpha {"n":1.0}]
		tool a alpha: 1
		assistant: First.
		user: second?
		assistant:  [b beta {"n":1.0}]
		tool b beta: ERROR: none
		assistant: Second.
		user: third?`)
	talk(t, 1).do(&events.ContextWindowExpanded{Increment: 1}).sees(`
		system: You test.
		assistant: Second.
		user: third?`)
	for window := range 8 {
		checkViewOf(t, talk(t, window).Mem)
	}
}

func checkViewOf(t *testing.T, mem *reducer.Memory) {
	t.Helper()
	open := 0
	for _, m := range reducer.View(nil, mem) {
		if m.Role == "tool" {
			open--
		} else {
			require.Zero(t, open)
			open = len(m.Calls)
		}
		require.GreaterOrEqual(t, open, 0)
	}
	require.Zero(t, open)
}

func TestAddedCallsAreShownAgain(t *testing.T) {
	talk(t, 1).do(&events.ToolCallsAddedToContext{CallIDs: []string{"b", "a"}}).sees(`
		system: You test.
		assistant:  [b beta {"n":1.0}]
		tool b beta: ERROR: none
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1
		user: third?`)
	talk(t, 3).do(&events.ToolCallsAddedToContext{CallIDs: []string{"b", "a"}}).sees(`
		system: You test.
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1
		user: second?
		assistant:  [b beta {"n":1.0}]
		tool b beta: ERROR: none
		assistant: Second.
		user: third?`)
	talk(t, 0).do(&events.ToolCallsAddedToContext{CallIDs: []string{"a"}}).sees(script(talk(t, 0).Mem))
}

func TestViewAfterAReflection(t *testing.T) {
	s := started(t).do(said(single("a", "alpha"), "Looking."), success("a", "1"), &events.Continue{}, user("m", "and?"),
		single("b", "beta"), success("b", "2"), &events.NeedsReflection{}, &events.ReflectDone{Summary: "a is 1, b is 2"})
	s.sees(`
		system: You test.
		user: find it
		assistant: Looking.
		user: and?
		user: Summary of the tool calls so far: a is 1, b is 2`)
	s.do(single("c", "alpha"), success("c", "3"), &events.Continue{})
	s.sees(`
		system: You test.
		user: find it
		assistant: Looking.
		user: and?
		user: Summary of the tool calls so far: a is 1, b is 2
		assistant:  [c alpha {"n":1.0}]
		tool c alpha: 3`)
	s.do(&events.ToolCallsAddedToContext{CallIDs: []string{"b"}})
	s.sees(`
		system: You test.
		user: find it
		assistant:  [b beta {"n":1.0}]
		tool b beta: 2
		assistant: Looking.
		user: and?
		user: Summary of the tool calls so far: a is 1, b is 2
		assistant:  [c alpha {"n":1.0}]
		tool c alpha: 3`)
	s.do(single("d", "alpha"), success("d", "4"), &events.NeedsReflection{}, &events.ReflectDone{Summary: "all"})
	s.sees(`
		system: You test.
		user: find it
		assistant: Looking.
		user: and?
		user: Summary of the tool calls so far: all`)

	failed := started(t).do(single("a", "alpha"), success("a", "1"), &events.NeedsReflection{}, &events.ReflectDone{Failed: "overloaded"})
	failed.sees(`
		system: You test.
		user: find it
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1`)
}

// TestAReflectionPartsNoCallFromItsResult: of a reply whose calls go out one
// after another, some are answered and some are not.
func TestAReflectionPartsNoCallFromItsResult(t *testing.T) {
	first := single("a", "alpha")
	first.Queued = []events.Call{callOf("q", "beta")}
	s := started(t).do(first, success("a", "1"), &events.NeedsReflection{}, &events.ReflectDone{Summary: "a is 1"},
		single("q", "beta"), success("q", "2"), &events.Continue{})
	s.sees(`
		system: You test.
		user: find it
		assistant:  [a alpha {"n":1.0}, q beta {"n":1.0}]
		tool a alpha: 1
		tool q beta: 2
		user: Summary of the tool calls so far: a is 1`)
}

// A view costs what it shows: in a task whose user spoke long ago it does not look
// through what lies before the window.
func TestAViewOfALongTaskCostsWhatItShows(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it makes a million events
	}
	s := started(t, func(p *events.Start) { p.Agent.Config.ContextWindowSize, p.Agent.Config.MaxSteps = 3, 1_000_000 })
	s.do(said(single("a", "alpha"), "a"), success("a", "1"), &events.Continue{})
	c := &s.Mem.Control
	reply := c.Turns[1]
	for range 1_000_000 {
		c.Turns = append(c.Turns, reply)
	}
	require.Len(t, reducer.View(nil, s.Mem), 2+2*2, "the window's oldest message made way for the user's")
	took := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			reducer.View(nil, s.Mem)
		}
	})
	require.Less(t, took.NsPerOp(), int64(2_000_000), "to look at a million turns takes longer")
}

// textual is an agent whose model speaks the text protocol.
func textual(p *events.Start) { p.Agent.LLM.Text = true }

func thought(text, next string) *events.LLMThought {
	return &events.LLMThought{Reply: events.Reply{Content: text, Usage: tokens(1, 1)}, NextState: next}
}

func unread(content, reason string) *events.ReplyInvalid {
	return &events.ReplyInvalid{RefusedReply: events.RefusedReply{
		Content: content, Calls: []events.Call{}, Results: []events.Answer{{Observation: "ERROR: " + reason, Code: codes.MalformedReply}},
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
	p.Results[0].Code = codes.TooLarge
	s := started(t, textual).do(p)
	require.Len(t, s.Mem.Messages, 1)
	require.True(t, reducer.View(nil, s.Mem)[2].Raw)
}

// reasonings are those of the replies that the model sees.
func reasonings(mem *reducer.Memory) (all []string) {
	for _, m := range reducer.View(nil, mem) {
		if m.Role == "assistant" {
			text := ""
			for _, part := range m.Reasoning {
				text += part.Text + string(part.Data)
			}
			all = append(all, text)
		}
	}
	return all
}

func thoughtful(p *events.LLMToolCall, reasoning string) *events.LLMToolCall {
	p.Reasoning = opaque(reasoning)
	return p
}

func opaque(data string) events.Reasoning {
	return events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(data)}}
}

// Reasoning stands with its reply. That of a log which does not say who was asked stands
// there until the turn is over.
func TestReasoningStaysWithItsReply(t *testing.T) {
	asked := &events.Asked{Provider: "p", Model: "m"}
	s := started(t, chat)
	call, answer := thoughtful(single("a", "alpha"), `{"n":1}`), turnAnswer("It is 42.")
	answer.Facts = events.Facts{Reasoning: events.Reasoning{{Kind: events.ReasoningText, Text: "So."}}, Asked: asked}
	call.Asked = asked
	s.do(call, success("a", "one"), &events.Continue{}, answer, user("m", "And then?"))
	require.Equal(t, []string{`{"n":1}`, "So."}, reasonings(s.Mem))
	require.Equal(t, asked, reducer.View(nil, s.Mem)[2].Asked)
}

// Reasoning of an older log stands with its reply until the turn is over.
func TestOldReasoningLastsForATurn(t *testing.T) {
	s := started(t, chat)
	s.do(thoughtful(single("a", "alpha"), `{"n":1.50}`), success("a", "one"), &events.Continue{})
	s.do(&events.ReplyInvalid{RefusedReply: events.RefusedReply{
		Calls: []events.Call{callOf("b", "nonsense")}, Results: []events.Answer{{ID: "b", Observation: "ERROR: no", Code: "not_found"}},
		Facts: events.Facts{Reasoning: opaque(`{"n":2}`)},
	}})
	s.do(single("c", "alpha"), failure("c", "broke"), &events.Continue{})
	require.Equal(t, []string{`{"n":1.50}`, `{"n":2}`, ""}, reasonings(s.Mem))
	require.Equal(t, []string{`{"n":1.50}`, `{"n":2}`, ""}, reasonings(s.Mem.Clone()), "snapshots keep it")

	s.do(turnAnswer("It is 42."))
	require.Equal(t, []string{"", "", "", ""}, reasonings(s.Mem))
	s.do(user("m", "And then?"), thoughtful(single("d", "alpha"), `{"n":3}`), success("d", "two"), &events.Continue{})
	require.Equal(t, []string{"", "", "", "", `{"n":3}`}, reasonings(s.Mem))
}

// The view says which results are failures.
func TestViewMarksFailures(t *testing.T) {
	s := started(t)
	s.do(single("a", "alpha"), success("a", "ERROR: is what it found"), &events.Continue{}, single("b", "alpha"), failure("b", "broke"), &events.Continue{})
	failed := map[string]bool{}
	for _, m := range reducer.View(nil, s.Mem) {
		if m.Role == "tool" {
			failed[m.CallID] = m.Failed
		}
	}
	require.Equal(t, map[string]bool{"a": false, "b": true}, failed)
}

// TestALongerRequestCostsWhatIsNew: a step of a long run converts its call and its result
// alone, and that again where the conversation was changed otherwise.
func TestALongerRequestCostsWhatIsNew(t *testing.T) {
	s := started(t)
	converted := 0
	count := func(m *reducer.ViewMessage) string { converted++; return m.Content }
	step := func(id string) {
		s.do(single(id, "alpha"), success(id, id), &events.Continue{})
		converted = 0
		require.Len(t, reducer.Messages(s.Mem, count), len(reducer.View(nil, s.Mem)))
	}
	for i := range 50 {
		step(fmt.Sprint("c", i))
	}
	require.Equal(t, 2, converted)
	s.do(user("m", "faster"))
	step("d")
	require.Greater(t, converted, 100)
	step("e")
	require.Equal(t, 2, converted)
}
