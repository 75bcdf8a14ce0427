package reducer_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

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
