package reducer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// folding is the built-in machine with folds of an application's own.
func folding(folds map[events.Type]reducer.Fold) *reducer.Machine {
	return reducer.NewMachine(reducer.MachineOptions{Folds: folds})
}

// A fold that panics poisons its run at that event, and takes nobody with it.
func TestFoldOfOnesOwnPanics(t *testing.T) {
	s := &scene{Run: reducertest.NewRun(folding(map[events.Type]reducer.Fold{
		events.TypeLLMToolCall: func(mem *reducer.Memory, _ *events.Event) {
			mem.State, mem.RunID = "elsewhere", "another"
			panic("no such key")
		},
	})), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask))
	_, _, err := s.Append(events.Planning, single("a", "alpha"))
	var illegal *reducer.IllegalError
	require.ErrorAs(t, err, &illegal)
	require.Equal(t, uint64(2), illegal.N)
	require.Contains(t, illegal.Reason, "fold of LlmToolCall panicked: no such key")
	require.Equal(t, uint64(2), s.Mem.N)
	require.Equal(t, events.Planning, s.Mem.State)
	require.NotEqual(t, "another", s.Mem.RunID)
	wants := s.Effects()
	require.Len(t, wants, 1)
	require.Equal(t, effects.KindEnd, wants[0].Kind)
	s.do(effects.End(s.Mem))
	require.Equal(t, events.Errored, s.Mem.State)
	require.Equal(t, reducer.CodePoison, s.Mem.Error.Code)
}

// Not even a fold of the run's end can keep the run from ending.
func TestFoldOfTheEndPanics(t *testing.T) {
	broken := func(*reducer.Memory, *events.Event) { panic("no end") }
	s := &scene{Run: reducertest.NewRun(folding(map[events.Type]reducer.Fold{
		events.TypeFatalError: broken, events.TypeCancelled: broken,
	})), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask))
	_, _, err := s.Append(events.Control, &events.CancelledRun{})
	require.Error(t, err)
	require.Equal(t, events.Planning, s.Mem.State)
	s.do(effects.End(s.Mem))
	require.Equal(t, events.Errored, s.Mem.State)
}

func TestCustomMemory(t *testing.T) {
	s := &scene{Run: reducertest.NewRun(folding(map[events.Type]reducer.Fold{
		events.TypeLLMToolCall: func(mem *reducer.Memory, _ *events.Event) {
			count := 0
			mem.Kept("calls", &count)
			mem.Keep("calls", count+1)
			mem.Note("that was a call")
		},
	})), t: t}
	s.do(reducertest.StartOf("x", events.ModeTask), single("a", "alpha"), success("a", "1"), &events.Continue{}, single("b", "alpha"))
	var count int
	require.True(t, s.Mem.Kept("calls", &count))
	require.Equal(t, 2, count)
	require.Equal(t, json.RawMessage("2"), s.Mem.Custom["calls"])
	require.False(t, s.Mem.Kept("nothing", &count))
	text := ""
	require.False(t, s.Mem.Kept("calls", &text), "what does not fit is not read")
	s.do(success("b", "2"))
	view := reducer.View(nil, s.Mem)
	found := 0
	for _, m := range view {
		if m.Role == "user" && m.Content == "that was a call" {
			found++
		}
	}
	require.Equal(t, 2, found)
	require.Panics(t, func() { s.Mem.Keep("bad", func() {}) })
	require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
}
