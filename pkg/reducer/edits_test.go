package reducer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Equal(t, []string{"c4", "c5"}, s.Mem.ReactContext.ToolCallIDs, "who asks again sees it for longer")
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
