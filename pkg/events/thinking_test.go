package events_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestThinkingTokensAreChecked(t *testing.T) {
	for _, c := range []struct {
		thinking, most int
		says           string
	}{
		{0, 0, ""},
		{0, 10, ""},
		{1024, 0, ""},
		{1024, 1025, ""},
		{1024, 1024, "must be less than max_tokens, which is 1024"},
		{1023, 0, "must be at least 1024"},
		{-1, 0, "must be at least 1024"},
	} {
		a := events.DefaultAgent()
		a.Name, a.LLM = "a", events.LLM{Provider: "anthropic", ThinkingTokens: c.thinking, MaxTokens: c.most}
		_, err := a.Resolve()
		if c.says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "llm.thinking_tokens: ")
		require.ErrorContains(t, err, c.says)
	}
}
