package reducer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func window(size int) func(*events.Start) {
	return func(p *events.Start) { p.Agent.Config.ContextWindowSize, p.Agent.Config.MaxSteps = size, 1_000_000 }
}

// shows is the edit that shows calls again.
func shows(id string, calls ...string) *events.ToolCallsAddedToContext {
	return &events.ToolCallsAddedToContext{CallIDs: calls, ContextReply: own(id, "load_tool_result", "Shown.")}
}

// Under the text protocol a whole run may be one loop: what the model asked to see
// stays for some replies and no longer.
func TestTextEditsLastForSomeReplies(t *testing.T) {
	t.Parallel()
	s := started(t, textual, window(2)).steps("c", 20)
	s.do(shows("x", "c3"), loaded("y", 4))
	require.Equal(t, 6, s.Mem.ReactContext.ContextWindowSize)
	for i := range reducer.EditReplies - 1 {
		require.Contains(t, script(s.Mem), "[c3 alpha", "after %d replies", i)
		require.Equal(t, 6, s.Mem.ReactContext.ContextWindowSize)
		s.do(thought("hm", "thinking"))
	}
	require.NotContains(t, script(s.Mem), "[c3 alpha")
	require.Equal(t, 6, s.Mem.ReactContext.ContextWindowSize, "the other edit came later")
	s.do(thought("hm", "thinking"))
	require.Equal(t, 2, s.Mem.ReactContext.ContextWindowSize)
	require.Empty(t, s.Mem.ReactContext.Edits)
	require.Empty(t, s.Mem.ReactContext.ToolCallIDs)

	s.do(shows("z", "c4"), thought("hm", "thinking"), thought("hm", "thinking"), thought("hm", "thinking"), shows("z2", "c4", "c5"))
	s.do(thought("hm", "thinking"), thought("hm", "thinking"))
	require.Equal(t, []string{"c4", "c5"}, s.Mem.ReactContext.ToolCallIDs, "a second request shows it for longer")
}

// All edits of one reply last equally long, and so do those from outside.
func TestTextEditsOfPartsAndFromOutside(t *testing.T) {
	t.Parallel()
	s := started(t, textual, window(2)).steps("c", 9)
	first := shows("x", "c1")
	first.ContextReply = part(first.ContextReply)
	s.do(&events.ToolCallsAddedToContext{CallIDs: []string{"c0"}}, first, shows("y", "c2"))
	require.Len(t, s.Mem.ReactContext.Edits, 3)
	require.Equal(t, s.Mem.Step, s.Mem.ReactContext.Edits[1].Step)
	require.Equal(t, s.Mem.Step, s.Mem.ReactContext.Edits[2].Step)
	for range reducer.EditReplies {
		require.Subset(t, s.Mem.ReactContext.ToolCallIDs, []string{"c1", "c2"})
		s.do(thought("hm", "thinking"))
	}
	require.Empty(t, s.Mem.ReactContext.ToolCallIDs)
}

// With tools the edits stay until the user has an answer.
func TestEditsStayUntilTheAnswer(t *testing.T) {
	t.Parallel()
	s := talk(t, 1).do(loaded("x", 1), shows("y", "a")).steps("c", 2*reducer.EditReplies)
	require.Equal(t, 2, s.Mem.ReactContext.ContextWindowSize)
	require.Contains(t, script(s.Mem), "[a alpha")
	require.Nil(t, s.do(turnAnswer("Third.")).Mem.ReactContext)
}

// However long a run of the text protocol looks back, what its model sees, and what
// memory keeps of the looking, stays as small as it was.
func TestLookingBackDoesNotGrow(t *testing.T) {
	t.Parallel()
	s := started(t, textual, window(4))
	size, kept, most := 0, 0, 0
	for i := range 200 {
		id := fmt.Sprint("c", i)
		search := own("s"+id, "search_tool_calls", strings.Repeat("found ", 100))
		s.do(single(id, "alpha"), success(id, strings.Repeat("result ", 20)), &events.Continue{},
			&events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: search},
			shows("l"+id, fmt.Sprint("c", i/2), fmt.Sprint("c", i/3)), loaded("m"+id, 2))
		size = max(size, len(script(s.Mem)))
		kept = max(kept, len(s.Mem.Control.Internal))
		if i == 50 {
			most = size
		}
	}
	require.LessOrEqual(t, size, most+most/4)
	require.Less(t, kept, 30)
	require.Less(t, len(s.Mem.Control.Turns), 200+kept+2, "calls that are forgotten leave no turns")
}

// Of Moorebus' own calls those of turns before are gone, and take no place in a window
// that counts every turn.
func TestOwnCallsOfEarlierTurnsTakeNoPlace(t *testing.T) {
	t.Parallel()
	s := started(t, textual, chat, window(4)).do(
		turnAnswer("First."), user("m2", "second?"), loaded("x", 0), shows("y"), loaded("z", 0), turnAnswer("Second."), user("m3", "third?"))
	s.sees(`
		system: You test.
		user: find it
		assistant: First.
		user: second?
		assistant: Second.
		user: third?`)
	require.Equal(t, 4, s.Mem.Control.Asked)
	require.Equal(t, 5, s.Mem.Windowed())
}

// With other calls beside them, or with words, the reply stays.
func TestRepliesWithOtherCallsStay(t *testing.T) {
	t.Parallel()
	spoken := loaded("z", 0)
	spoken.Content, spoken.MessageID = "I look.", "m9"
	s := started(t, textual, chat, window(9)).do(
		&events.ToolCallsAddedToContext{ContextReply: part(own("x", "search_tool_calls", "none"))}, single("a", "alpha"), success("a", "1"), &events.Continue{},
		spoken, turnAnswer("First."), user("m2", "second?"))
	s.sees(`
		system: You test.
		user: find it
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1
		assistant: I look.
		assistant: First.
		user: second?`)
}

// What edits show can be weighed, and what the next ones would show.
func TestWhatEditsShowIsWeighed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	s := started(t, chat, window(1)).do(
		single("a", "alpha"), success("a", long), &events.Continue{}, turnAnswer("First."), user("m2", "second?"), turnAnswer(long), user("m3", "third?"))
	calls, bytes := s.Mem.Loaded()
	require.Empty(t, calls)
	require.Zero(t, bytes)
	sizes, more := s.Mem.Older(1 << 20)
	require.False(t, more)
	require.Equal(t, []int{1000, 64, 64, 64 + 64 + 1000 + len(`alpha{"n":1.0}`)}, sizes, "a call belongs to the message before it")
	sizes, more = s.Mem.Older(1100)
	require.True(t, more)
	require.Equal(t, []int{1000, 64}, sizes)

	s.do(shows("y", "a"), loaded("x", 1))
	calls, bytes = s.Mem.Loaded()
	require.Equal(t, map[string]bool{"a": true}, calls)
	require.Equal(t, 1000+1000+len(`alpha{"n":1.0}`), bytes)
	s.do(&events.CancelledRun{})
	_, bytes = s.Mem.Loaded()
	require.Zero(t, bytes)
}

// Moorebus' own calls leave with the window like all others.
func TestOwnCallsOfATextRunLeaveWithTheWindow(t *testing.T) {
	t.Parallel()
	s := started(t, textual, window(2)).do(loaded("x", 0)).steps("c", 1)
	require.Contains(t, script(s.Mem), "[x moorebus_load_messages {}]")
	require.NotContains(t, script(s.steps("d", 1).Mem), "moorebus_load_messages")
}

// What the user says while the model looks back stays the message that is answered.
func TestTheQuestionKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := started(t, chat, window(9)).do(loaded("x", 0))
	_, _, err := s.Append(events.Control, user("m2", "rather this?"))
	require.NoError(t, err)
	s.do(loaded("y", 0), turnAnswer("First."))
	require.Equal(t, 1, s.Mem.Control.Asked)
	s.sees(`
		system: You test.
		user: find it
		user: rather this?
		assistant: First.`)
}

// own is a reply that calls one of Moorebus' own tools; answered is what it got.
func own(id, name, answered string) *events.ContextReply {
	return &events.ContextReply{
		Calls:      []events.Call{{ID: id, Name: events.ReservedPrefix + name, Arguments: "{}"}},
		Results:    []events.Answer{{ID: id, Observation: answered, Code: "ok"}},
		Confidence: 1, Model: "m", Usage: tokens(10, 5),
	}
}

func part(r *events.ContextReply) *events.ContextReply {
	r.Part, r.Usage = true, events.Usage{}
	return r
}

func loaded(id string, increment int) *events.ContextWindowExpanded {
	return &events.ContextWindowExpanded{Increment: increment, ContextReply: own(id, "load_messages", "more")}
}

func TestTheModelSeesItsOwnEditsUntilItAnswers(t *testing.T) {
	s := talk(t, 1).do(loaded("x", 1))
	s.sees(`
		system: You test.
		assistant: Second.
		user: third?
		assistant:  [x moorebus_load_messages {}]
		tool x moorebus_load_messages: more`)
	again := own("y", "load_tool_result", "Shown: a.")
	again.Content, again.MessageID = "I look that up.", "m9"
	s.do(&events.ToolCallsAddedToContext{CallIDs: []string{"a"}, ContextReply: again})
	s.sees(`
		system: You test.
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: 1
		user: third?
		assistant:  [x moorebus_load_messages {}]
		tool x moorebus_load_messages: more
		assistant: I look that up. [y moorebus_load_tool_result {}]
		tool y moorebus_load_tool_result: Shown: a.`)
	require.Equal(t, 2, s.Mem.ReactContext.ContextWindowSize)
	s.do(turnAnswer("Third."), user("m4", "fourth?"))
	s.sees(`
		system: You test.
		user: fourth?`)
	s.do(&events.ContextWindowExpanded{Increment: 9})
	require.NotContains(t, script(s.Mem), "moorebus_", "the calls are gone with the answer")
	require.Contains(t, script(s.Mem), "I look that up.", "the words are a message")
	require.Nil(t, s.Mem.ToolCalls["x"], "it is no tool call of the run")
	require.Equal(t, []string{"a", "b", "x", "y"}, s.Mem.Control.CallOrder, "but its id is taken")
	require.Len(t, s.Mem.History, 2)
}

func TestAnEditIsAReply(t *testing.T) {
	s := talk(t, 1)
	replies, step, used := s.Mem.Control.Replies, s.Mem.Step, s.Mem.TotalUsage.Total
	s.do(&events.ContextWindowExpanded{Increment: 1})
	require.Equal(t, replies, s.Mem.Control.Replies, "one from outside is none")
	require.Equal(t, step, s.Mem.Step)
	armed := s.Mem.Control.Armed
	require.Equal(t, "planning.default", s.route(loaded("x", 1)))
	require.Equal(t, replies+1, s.Mem.Control.Replies)
	require.Equal(t, step+1, s.Mem.Step)
	require.Equal(t, used+15, s.Mem.TotalUsage.Total)
	require.Greater(t, s.Mem.Control.Armed, armed, "the model is asked again")
	window := s.Mem.ReactContext.ContextWindowSize
	s.do(loaded("y", 0))
	require.Equal(t, window, s.Mem.ReactContext.ContextWindowSize, "an edit that came to nothing widens nothing")
}

func TestTheCallsOfOneReplyAreShownAsOne(t *testing.T) {
	s := talk(t, 1)
	replies := s.Mem.Control.Replies
	s.do(&events.ContextWindowExpanded{Increment: 1, ContextReply: part(own("x", "load_messages", "more"))})
	require.Equal(t, replies, s.Mem.Control.Replies, "it is counted by its last event")
	s.do(&events.ToolCallsAddedToContext{ContextReply: part(own("y", "search_tool_calls", "none"))}, said(single("z", "alpha"), "And this."), success("z", "3"), &events.Continue{})
	require.Equal(t, replies+1, s.Mem.Control.Replies)
	s.sees(`
		system: You test.
		user: third?
		assistant: And this. [x moorebus_load_messages {}, y moorebus_search_tool_calls {}, z alpha {"n":1.0}]
		tool x moorebus_load_messages: more
		tool y moorebus_search_tool_calls: none
		tool z alpha: 3`)
}

func TestEditsThatAreNotTheModels(t *testing.T) {
	s := talk(t, 1)
	foreign := own("x", "load_messages", "more")
	foreign.Calls[0].Name = "alpha"
	s.refuses(&events.ContextWindowExpanded{ContextReply: foreign}, `calls "alpha", which does not edit the context`)
	open := own("x", "load_messages", "more")
	open.Results = nil
	s.refuses(&events.ContextWindowExpanded{ContextReply: open}, "1 calls and 0 answers")
	other := own("x", "load_messages", "more")
	other.Results[0].ID = "q"
	s.refuses(&events.ToolCallsAddedToContext{ContextReply: other}, `answers call "q" in the place of "x"`)
	s.refuses(loaded("a", 1), `call id "a" is empty or not new`)
	s.do(loaded("x", 1))
	s.refuses(loaded("x", 1), `call id "x" is empty or not new`)
	s.refuses(single("x", "alpha"), `call id "x" is empty or not new`)
	_, _, _, err := s.Draft(events.Control, loaded("y", 1))
	require.ErrorContains(t, err, "may not come from control")
	s.do(single("c", "alpha"))
	s.refuses(loaded("y", 1), "in state acting may not come from acting")
}

// TestTheQuestionIsAlwaysShown: with more replies in a loop than the window has
// messages the model still sees what it was asked, and every call and result.
func TestTheQuestionIsAlwaysShown(t *testing.T) {
	s := talk(t, 3).do(loaded("x", 0))
	for i := range 4 {
		id := fmt.Sprint("w", i)
		s.do(said(single(id, "alpha"), "Step "+id), success(id, id), &events.Continue{})
	}
	s.sees(`
		system: You test.
		user: third?
		assistant:  [w0 alpha {"n":1.0}]
		tool w0 alpha: w0
		assistant:  [w1 alpha {"n":1.0}]
		tool w1 alpha: w1
		assistant:  [x moorebus_load_messages {}]
		tool x moorebus_load_messages: more
		assistant: Step w2 [w2 alpha {"n":1.0}]
		tool w2 alpha: w2
		assistant: Step w3 [w3 alpha {"n":1.0}]
		tool w3 alpha: w3`)
	checkViewOf(t, s.Mem)
}

// TestTheWindowCountsMessages: what Messages does not hold is not counted, so that
// a window as long as the conversation shows all of it.
func TestTheWindowCountsMessages(t *testing.T) {
	s := started(t, func(p *events.Start) { p.Agent.Config.ContextWindowSize = 2 }).do(
		&events.AnswerTooShort{Content: "No.", Usage: tokens(1, 1)}, user("m2", "and?"), &events.AnswerTooShort{Content: "Hm.", Usage: tokens(1, 1)})
	require.Len(t, s.Mem.Messages, 2)
	s.sees(`
		system: You test.
		user: find it
		assistant: No.
		user: ERROR: the answer is too short: give at least 1 characters.
		user: and?
		assistant: Hm.
		user: ERROR: the answer is too short: give at least 1 characters.`)
}

func TestAForkInTheMiddleOfAReply(t *testing.T) {
	s := talk(t, 1).do(&events.ContextWindowExpanded{Increment: 1, ContextReply: part(own("x", "load_messages", "more"))})
	fork, err := s.Fork(s.Mem.N, events.Forked{})
	require.NoError(t, err)
	_, _, err = fork.Append(events.Planning, said(single("z", "alpha"), "Anew."))
	require.NoError(t, err)
	require.Contains(t, script(fork.Mem), "[x moorebus_load_messages {}]\ntool", "the fork's reply is one of its own")
}

// A reflection forgets what was shown again, so nothing says that it is shown.
func TestAReflectionForgetsTheEdits(t *testing.T) {
	s := started(t, func(p *events.Start) { p.Agent.Config.ContextWindowSize = 2 })
	s.do(single("a", "alpha"), success("a", "FIRST"), &events.NeedsReflection{}, &events.ReflectDone{Summary: "one"})
	s.do(&events.ToolCallsAddedToContext{CallIDs: []string{"a"}, ContextReply: own("x", "load_tool_result", "Shown: a.")})
	require.Contains(t, script(s.Mem), "FIRST")
	s.do(single("b", "alpha"), success("b", "SECOND"), &events.NeedsReflection{})
	failed := &events.ReflectDone{Failed: "no words"}
	require.Contains(t, script(s.do(failed).Mem), "Shown: a.", "what stays is shown")
	s.do(single("c", "alpha"), success("c", "THIRD"), &events.NeedsReflection{}, &events.ReflectDone{Summary: "two"})
	s.sees(`
		system: You test.
		user: find it
		user: Summary of the tool calls so far: two`)
	require.Empty(t, s.Mem.Control.Internal)
}

func interrupted(id, text, before string) *events.LLMAttemptFailed {
	return &events.LLMAttemptFailed{Kind: codes.KindInterrupted, Key: "plan/1", MessageID: id, Content: text, Before: before}
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

	s.do(&events.LLMAttemptFailed{Kind: codes.KindInterrupted, Key: keys[0]})
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
