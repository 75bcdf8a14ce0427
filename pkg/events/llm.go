package events

import (
	"fmt"
	"maps"
	"slices"
)

// The states of a run whose model speaks the text protocol. They say how the next
// planning is asked, and are no states of the table.
const (
	TextThinking  = "thinking"
	TextExecuting = "executing"
	// promptBase is the key of the prompt of both.
	promptBase = "base"
)

// TextStates lists them, the one in which a run begins first.
func TextStates() []string { return []string{TextThinking, TextExecuting} }

// ValidTextState reports whether s is one of [TextStates].
func ValidTextState(s string) bool { return slices.Contains(TextStates(), s) }

func (l LLM) checkPrompts() error {
	if len(l.StatePrompts) > 0 && !l.Text {
		return fmt.Errorf("llm.state_prompts: is for the text protocol; write text: true as well")
	}
	for _, key := range slices.Sorted(maps.Keys(l.StatePrompts)) {
		if key != promptBase && !ValidTextState(key) {
			return fmt.Errorf("llm.state_prompts: %q is not a state; use base, thinking or executing", key)
		}
	}
	return nil
}

// defaultInvalidReplies is how many replies in a row may be of no use.
const defaultInvalidReplies = 5

// InvalidReplies is the bound of MaxInvalidReplies, 0 for none.
func (c Config) InvalidReplies() int {
	if c.MaxInvalidReplies == nil {
		return defaultInvalidReplies
	}
	return *c.MaxInvalidReplies
}

// resolveText fills in what agents need that speak the text protocol, and turns off
// for the others what is only for those.
func (a *Agent) resolveText() {
	if !a.LLM.Text {
		a.Config.MaxIterations = min(a.Config.MaxIterations, 0) // a negative one is refused
	}
	if a.LLM.Text && a.Config.MaxInvalidReplies == nil {
		bound := a.Config.InvalidReplies()
		a.Config.MaxInvalidReplies = &bound
	}
}

// minThinkingTokens is the least that a model can be given to think.
const minThinkingTokens = 1024

func (l *LLM) checkThinking() error {
	switch n := l.ThinkingTokens; {
	case n == 0:
		return nil
	case n < minThinkingTokens:
		return fmt.Errorf("llm.thinking_tokens: must be at least %d, or 0 for no thinking, is %d", minThinkingTokens, n)
	case l.MaxTokens > 0 && n >= l.MaxTokens:
		return fmt.Errorf("llm.thinking_tokens: %d must be less than max_tokens, which is %d and holds the thinking too", n, l.MaxTokens)
	}
	return nil
}
