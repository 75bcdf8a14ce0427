package strict_test

import (
	"testing"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/stretchr/testify/require"
)

func TestDidYouMean(t *testing.T) {
	t.Parallel()
	known := []string{"openai", "anthropic", "max_steps", "groq", "system_prompt"}
	for name, want := range map[string]string{
		"opanai": "openai", "antropic": "anthropic", "anthorpic": "anthropic", "Groq": "groq", "maxSteps": "max_steps", "system-prompt": "system_prompt", "grok": "groq",
	} {
		require.Equal(t, "; did you mean "+want+"?", strict.DidYouMean(name, known), name)
	}
	for _, name := range []string{"", "x", "mistral", "go", "steps"} {
		require.Empty(t, strict.DidYouMean(name, known), name)
	}
	require.Empty(t, strict.DidYouMean("openai", nil))
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"gpt-4o", "o3", "qwen3:8b", "llama3.1:8b"}
	require.Equal(t, []string{"qwen3:8b"}, strict.Nearest("qwen3", known, 1))
	require.Len(t, strict.Nearest("qwen3", known, 9), 4)
}
