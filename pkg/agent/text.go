package agent

import "maps"

// Text puts the text protocol over the model, for one that has no tool calls.
func (b *Builder) Text() *Builder { b.def.LLM.Text = true; return b }

// StatePrompt sets what a model that speaks the text protocol is told in a state:
// thinking, executing, or base for both.
func (b *Builder) StatePrompt(state, prompt string) *Builder {
	prompts := maps.Clone(b.def.LLM.StatePrompts)
	if prompts == nil {
		prompts = map[string]string{}
	}
	prompts[state] = prompt
	b.def.LLM.StatePrompts = prompts
	return b
}
