package replay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(_ *testing.T, conv llmtest.Conversation) llm.Caller {
		var r recording
		for _, turn := range conv {
			r = append(r, recorded{Response: turn.Reply, Err: turn.Err})
		}
		return r
	})
}

func TestTheSameReplyAsOftenAsAsked(t *testing.T) {
	c := recording{{Response: llm.Text{Content: "a"}}, {Response: llm.Text{Content: "b"}}}
	for _, n := range []int{1, 0, 0, 1} {
		got, err := c.Call(t.Context(), llm.Request{Replies: n}, nil)
		require.NoError(t, err)
		require.Equal(t, llm.Text{Content: string(rune('a' + n))}, got)
	}
}

func TestOutsideTheRecording(t *testing.T) {
	c := recording{{Response: llm.Text{Content: "a"}}, {}}
	tests := []struct {
		name string
		req  llm.Request
		text string
	}{
		{"beyond the end", llm.Request{Replies: 2}, "ends after 2 replies, and reply 3 was asked for"},
		{"negative", llm.Request{Replies: -1}, "reply 0 was asked for"},
		{"empty entry", llm.Request{Replies: 1}, "reply 2 of the recording is empty"},
		{"reflection", llm.Request{Purpose: llm.PurposeReflect}, "no reflections"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := c.Call(t.Context(), tt.req, nil)
			require.Nil(t, got)
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, llm.KindInvalid, e.Kind)
			require.Contains(t, e.Message, tt.text)
		})
	}
}
