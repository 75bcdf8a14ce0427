package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

// A model that says nothing of its confidence is asked once for each reply.
func TestNoConfidenceIsNotDoubt(t *testing.T) {
	t.Parallel()
	calls := 0
	model := llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		calls++ // one run, so one call at a time
		if req.Replies == 0 {
			return llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "search", Arguments: `{"q":"x"}`}}}, nil
		}
		return llm.Text{Content: "All of it is done by now."}, nil
	})
	a := build(t, model, nil)
	_, err := a.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, calls)
	require.InDelta(t, 1.0, a.Memory().ConfidenceScore, 0)
}
