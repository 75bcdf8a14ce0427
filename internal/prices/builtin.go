package prices

import "github.com/moorebus/moorebus/pkg/llm"

// Builtin returns the prices that are known without a file: for short requests at the
// standard rate, without discounts for batches and without the cost of cache writes.
// They are of 2026-10-10 and change without notice. Sources:
//
//	https://platform.openai.com/docs/pricing
//	https://platform.claude.com/docs/en/about-claude/pricing
func Builtin() *Table {
	return &Table{entries: map[string]llm.Price{
		"gpt-4o":            {Input: 2.5, CachedInput: 1.25, Output: 10},
		"gpt-4o-2024-05-13": {Input: 5, CachedInput: 5, Output: 15},
		"gpt-4o-mini":       {Input: 0.15, CachedInput: 0.075, Output: 0.6},
		"gpt-4.1":           {Input: 2, CachedInput: 0.5, Output: 8},
		"gpt-4.1-mini":      {Input: 0.4, CachedInput: 0.1, Output: 1.6},
		"gpt-4.1-nano":      {Input: 0.1, CachedInput: 0.025, Output: 0.4},
		"gpt-5":             {Input: 1.25, CachedInput: 0.125, Output: 10},
		"gpt-5-mini":        {Input: 0.25, CachedInput: 0.025, Output: 2},
		"gpt-5-nano":        {Input: 0.05, CachedInput: 0.005, Output: 0.4},
		"o3":                {Input: 2, CachedInput: 0.5, Output: 8},
		"o4-mini":           {Input: 1.1, CachedInput: 0.275, Output: 4.4},

		"claude-opus-4-5":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-4-6":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-4-7":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-4-8":   {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-5":     {Input: 5, CachedInput: 0.5, Output: 25},
		"claude-opus-5-5":   {Input: 4, CachedInput: 0.2, Output: 20},
		"claude-sonnet-4-5": {Input: 3, CachedInput: 0.3, Output: 15},
		"claude-sonnet-5":   {Input: 2, CachedInput: 0.2, Output: 10},
		"claude-sonnet-5-5": {Input: 2, CachedInput: 0.1, Output: 10},
		"claude-haiku-4-5":  {Input: 1, CachedInput: 0.1, Output: 5},
	}}
}
