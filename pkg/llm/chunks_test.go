package llm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

func TestChunksPutTogetherAreTheReply(t *testing.T) {
	for _, text := range []string{"", "one", "one two", " leading and  double ", "grüße\nan alle", "   "} {
		var b strings.Builder
		for c := range llm.Chunks(llm.Text{Content: text}) {
			require.Equal(t, llm.ChunkText, c.Kind)
			require.NotEmpty(t, c.Text)
			b.WriteString(c.Text)
		}
		require.Equal(t, text, b.String())
	}
}

func TestChunksOfCallsFollowTheText(t *testing.T) {
	got := slices.Collect(llm.Chunks(llm.ToolCalls{
		Content: "let me see",
		Calls:   []llm.Call{{ID: "a", Name: "f", Arguments: "{}"}, {ID: "b", Name: "g", Arguments: ""}},
	}))
	require.Equal(t, []llm.Chunk{
		{Kind: llm.ChunkText, Text: "let "},
		{Kind: llm.ChunkText, Text: "me "},
		{Kind: llm.ChunkText, Text: "see"},
		{Kind: llm.ChunkToolCall, Index: 0, Name: "f", Text: "{}"},
		{Kind: llm.ChunkToolCall, Index: 1, Name: "g"},
	}, got)
}

func TestChunksStopWhenTheReaderStops(t *testing.T) {
	n := 0
	for range llm.Chunks(llm.Structured{Content: "a b c d"}) {
		n++
		break
	}
	for range llm.Chunks(llm.ToolCalls{Calls: make([]llm.Call, 3)}) {
		n++
		break
	}
	require.Equal(t, 2, n)
}
