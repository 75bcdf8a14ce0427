package llm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestCost(t *testing.T) {
	t.Parallel()
	price := llm.Price{Input: 2, CachedInput: 0.5, Output: 8}
	for name, c := range map[string]struct {
		usage llm.Usage
		want  float64
	}{
		"nothing":                 {llm.Usage{}, 0},
		"input and output":        {llm.Usage{Input: 1_000_000, Output: 500_000}, 6},
		"a part from the cache":   {llm.Usage{Input: 1_000_000, Cached: 400_000}, 1.4},
		"more cached than read":   {llm.Usage{Input: 1_000_000, Cached: 2_000_000}, 0.5},
		"a negative part of that": {llm.Usage{Input: 1_000_000, Cached: -5}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.InDelta(t, c.want, price.Cost(c.usage), 1e-12)
		})
	}
}

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

func TestChunksOfReasoningComeFirst(t *testing.T) {
	got := slices.Collect(llm.Chunks(llm.Text{Content: "yes", Meta: llm.Meta{Reasoning: events.Reasoning{
		{Kind: events.ReasoningText, Text: "first"}, {Kind: events.ReasoningOpaque, Data: []byte(`"x"`)}, {Kind: events.ReasoningSummary, Text: "second"},
	}}}))
	require.Equal(t, []llm.Chunk{
		{Kind: llm.ChunkReasoning, Text: "first"}, {Kind: llm.ChunkReasoning, Text: "second"}, {Kind: llm.ChunkText, Text: "yes"},
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

func TestUsageOfTwoRequests(t *testing.T) {
	t.Parallel()
	one, two := 1.0, 2.0
	for name, c := range map[string]struct {
		a, b llm.Usage
		want *float64
	}{
		"both cost":        {llm.Usage{Input: 1, CostUSD: &one}, llm.Usage{Input: 2, CostUSD: &one}, &two},
		"nothing came":     {llm.Usage{Input: 3, CostUSD: &one}, llm.Usage{}, &one},
		"one is unknown":   {llm.Usage{Input: 1, CostUSD: &one}, llm.Usage{Input: 2}, nil},
		"both are unknown": {llm.Usage{Input: 3}, llm.Usage{}, nil},
	} {
		require.Equal(t, llm.Usage{Input: 3, CostUSD: c.want}, c.a.Plus(c.b), name)
		require.Equal(t, llm.Usage{Input: 3, CostUSD: c.want}, c.b.Plus(c.a), name)
	}
}
