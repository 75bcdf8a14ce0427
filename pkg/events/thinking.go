package events

import "fmt"

// MinThinkingTokens is the least that a model can be given to think.
const MinThinkingTokens = 1024

func (l *LLM) checkThinking() error {
	switch n := l.ThinkingTokens; {
	case n == 0:
		return nil
	case n < MinThinkingTokens:
		return fmt.Errorf("llm.thinking_tokens: must be at least %d, or 0 for no thinking, is %d", MinThinkingTokens, n)
	case l.MaxTokens > 0 && n >= l.MaxTokens:
		return fmt.Errorf("llm.thinking_tokens: %d must be less than max_tokens, which is %d and holds the thinking too", n, l.MaxTokens)
	}
	return nil
}
