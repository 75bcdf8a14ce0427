package scripted_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/stretchr/testify/require"
)

func TestMockConformance(t *testing.T) {
	llmtest.Run(t, func(_ *testing.T, conv llmtest.Conversation) llm.Caller {
		var replies []any
		for _, turn := range conv {
			if turn.Err != nil {
				replies = append(replies, turn.Err)
			} else {
				replies = append(replies, turn.Reply)
			}
		}
		return scripted.NewMock(replies...)
	})
}

func TestMockCountsAndRemembers(t *testing.T) {
	broken := errors.New("broken")
	m := scripted.NewMock(scripted.Ask("f", `{"a":1}`), broken, scripted.Say("done"))
	require.Zero(t, m.CallCount())
	require.Empty(t, m.ModelForCall(0))

	res, err := m.Call(t.Context(), llm.Request{Model: "one"}, nil)
	require.NoError(t, err)
	require.Equal(t, llm.ToolCalls{
		Meta:  llm.Meta{Model: "one"},
		Calls: []llm.Call{{ID: "call_1_1", Name: "f", Arguments: `{"a":1}`}},
	}, res)
	_, err = m.Call(t.Context(), llm.Request{Model: "two"}, nil)
	require.ErrorIs(t, err, broken)
	res, err = m.Call(t.Context(), llm.Request{Messages: []llm.Message{{Content: "hi"}}}, nil)
	require.NoError(t, err)
	require.Equal(t, llm.Text{Meta: llm.Meta{Model: "scripted"}, Content: "done"}, res)

	_, err = m.Call(t.Context(), llm.Request{}, nil)
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, llm.KindInvalid, e.Kind)
	require.Contains(t, e.Message, "no more programmed responses")

	require.Equal(t, 4, m.CallCount())
	require.Equal(t, "one", m.ModelForCall(0))
	require.Equal(t, "two", m.ModelForCall(1))
	require.Empty(t, m.ModelForCall(-1))
	require.Equal(t, "hi", m.Requests()[2].Messages[0].Content)
}

func TestMockGivesEveryReplyOnce(t *testing.T) {
	const n = 100
	var replies []any
	for range n {
		replies = append(replies, scripted.Say("x"))
	}
	m := scripted.NewMock(replies...)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := m.Call(t.Context(), llm.Request{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, n, m.CallCount())
	_, err := m.Call(t.Context(), llm.Request{}, nil)
	require.ErrorContains(t, err, "no more programmed responses")
}

func TestMockTakesNothingAfterTheEndOfItsContext(t *testing.T) {
	m := scripted.NewMock(scripted.Say("x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.Call(ctx, llm.Request{}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, m.CallCount())
}

func TestMockRefusesOtherReplies(t *testing.T) {
	require.PanicsWithValue(t, "scripted.NewMock: reply 1 is a string, neither an llm.Response nor an error", func() {
		scripted.NewMock(scripted.Say("x"), "y")
	})
}
