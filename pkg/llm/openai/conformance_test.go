package openai

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return open(t, llmtest.NewModel(llmtest.OpenAI{}, conv...).Serve(t))
	}, llmtest.NoConfidence)
}

func TestWire(t *testing.T) {
	llmtest.RunWire(t, llmtest.OpenAI{}, open)
}

// open makes a Caller of the server at the address.
func open(t *testing.T, url string) llm.Caller {
	t.Helper()
	c, err := New(Options{APIKey: testKey, BaseURL: url, MaxBytes: llmtest.MaxWireBytes})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}
