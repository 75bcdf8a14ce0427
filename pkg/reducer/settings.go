package reducer

import "encoding/json"

// Settings returns the agent's `llm` block as JSON where it holds a script, for
// providers that read more of it than others need; nil where it does not. It is the
// same until the run has another definition, and must not be changed.
func (mem *Memory) Settings() json.RawMessage {
	l := &mem.Control.Agent.LLM
	if mem.settings == nil && len(l.Script) > 0 {
		// It came out of JSON, so it goes back in.
		mem.settings, _ = json.Marshal(l)
	}
	return mem.settings
}
