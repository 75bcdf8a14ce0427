package reducer_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func tooLong() *events.LLMAttemptFailed {
	return &events.LLMAttemptFailed{Kind: codes.KindContextTooLong, Key: "plan/1", Message: "too many tokens"}
}

// A request that is too long narrows the window to about half of what it shows, then has
// the history summarized and shows the open turn only; nothing of that happens twice.
func TestTooLongInAChat(t *testing.T) {
	s := started(t, chat, func(p *events.Start) { p.Task = strings.Repeat("paste ", 100) })
	s.do(turnAnswer("Read."), user("m", "use alpha"), single("a", "alpha"), success("a", "ONE"), &events.Continue{})
	require.Equal(t, reducer.CompactedWindow, s.Mem.Compactable())
	s.do(tooLong())
	require.Equal(t, reducer.CompactedWindow, s.Mem.Control.Compacted)
	s.sees(`
		system: You test.
		assistant: Read.
		user: use alpha
		assistant:  [a alpha {"n":1.0}]
		tool a alpha: ONE`)
	require.Equal(t, reducer.CompactedSummary, s.Mem.Compactable())
	s.do(tooLong())
	require.Equal(t, 2, s.Mem.ReactContext.ContextWindowSize, "the window is narrowed once")
	s.do(&events.NeedsReflection{}, &events.ReflectDone{Summary: "alpha said ONE"})
	require.Empty(t, s.Mem.Compactable())
	s.sees(`
		system: You test.
		user: use alpha
		user: Summary of the tool calls so far: alpha said ONE`)
	s.refuses(&events.NeedsReflection{}, "compresses a request that was compressed before")

	s.do(turnAnswer("ONE."), user("m-2", "again"))
	require.Equal(t, 10, s.Mem.ReactContext.ContextWindowSize, "the next turn has the agent's window")
	require.Equal(t, reducer.CompactedWindow, s.Mem.Compactable())
	require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
}

// In a task the calls of the one turn stay in place until a summary replaces them. It
// neither forgives retries nor counts as progress that is none.
func TestTooLongInATask(t *testing.T) {
	s := started(t)
	require.Empty(t, s.Mem.Compactable(), "there is nothing to leave out")
	s.do(single("a", "alpha"), success("a", "ONE"), &events.Continue{},
		&events.LowConfidence{Confidence: 0.1}, &events.ReflectDone{Failed: "no"})
	require.Equal(t, 1, s.Mem.RetryCount)
	changes := s.Mem.Control.SinceUser.Changes
	s.do(tooLong())
	require.Empty(t, s.Mem.Control.Compacted)
	require.Equal(t, reducer.CompactedSummary, s.Mem.Compactable())
	require.Equal(t, "reflecting.default", s.route(&events.NeedsReflection{}))
	s.do(&events.ReflectDone{Summary: "alpha said ONE"})
	require.Equal(t, 1, s.Mem.RetryCount)
	require.Equal(t, changes, s.Mem.Control.SinceUser.Changes)
	require.Empty(t, s.Mem.Compactable())

	s.do(single("b", "alpha"), success("b", "TWO"), &events.Continue{})
	require.Equal(t, reducer.CompactedSummary, s.Mem.Compactable(), "the request is another one")
	s.do(&events.NeedsReflection{}, &events.ReflectDone{Failed: "no"})
	require.Empty(t, s.Mem.Compactable())
	s.do(user("m", "go on"))
	require.Equal(t, reducer.CompactedSummary, s.Mem.Compactable(), "a message makes it another one, too")
}

// Under the text protocol, where each call is text, the window narrows within a task.
func TestTooLongUnderTheTextProtocol(t *testing.T) {
	s := started(t, textual)
	for _, id := range []string{"a", "b", "c", "d"} {
		s.do(single(id, "alpha"), success(id, strings.Repeat(id, 200)), &events.Continue{})
	}
	s.do(tooLong())
	require.Equal(t, 2, s.Mem.ReactContext.ContextWindowSize)
	s.do(&events.NeedsReflection{}, &events.ReflectDone{Failed: "no"})
	require.Equal(t, 1, s.Mem.ReactContext.ContextWindowSize)
}

// Builds of revision 3 know no NeedsReflection out of Planning: it is not written into
// their runs, and one that stands there ends the run for every build.
func TestTooLongInARunOfRevision3(t *testing.T) {
	m := reducer.NewMachine(reducer.MachineOptions{})
	older, err := m.Table().At(3)
	require.NoError(t, err)
	run, err := startOf(m, older.Hash())
	require.NoError(t, err)
	s := (&scene{Run: run, t: t}).do(single("a", "alpha"), success("a", "ONE"), &events.Continue{}, tooLong())
	require.False(t, m.Table().Writes(s.Mem, events.TypeNeedsReflection))
	_, _, _, err = s.Draft(events.Planning, &events.NeedsReflection{})
	require.ErrorIs(t, err, reducer.ErrRevision)
	require.ErrorContains(t, err, "NeedsReflection in this form is of revision 4, and its run of revision 3")

	own := started(t).do(single("a", "alpha"), success("a", "ONE"), &events.Continue{})
	require.True(t, m.Table().Writes(own.Mem, events.TypeNeedsReflection))
	subject, _, body, err := own.Draft(events.Planning, &events.NeedsReflection{})
	require.NoError(t, err)
	require.ErrorContains(t, s.Store(s.forged(subject, body)), "is of revision 4")
	require.NotNil(t, s.Mem.Control.Poison)

	past, err := startOf(reducer.NewMachine(reducer.MachineOptions{Table: older}), older.Hash())
	require.NoError(t, err)
	p := (&scene{Run: past, t: t}).do(single("a", "alpha"), success("a", "ONE"), &events.Continue{})
	require.False(t, older.Writes(p.Mem, events.TypeNeedsReflection))
	require.ErrorContains(t, p.Store(p.forged(subject, body)), "not in the transition table")
	require.NotNil(t, p.Mem.Control.Poison)
}
