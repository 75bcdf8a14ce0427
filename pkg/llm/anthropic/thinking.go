package anthropic

import (
	"encoding/json"

	"github.com/moorebus/moorebus/pkg/llm"
)

// reasoning is the form of [llm.Meta] Reasoning: the thinking blocks of a reply as
// they came, signatures included, and which model they may be sent back to.
type reasoning struct {
	Provider string            `json:"provider"`
	Model    string            `json:"model"`
	Blocks   []json.RawMessage `json:"blocks"`
}

const provider = "anthropic"

func writeReasoning(model string, blocks []json.RawMessage) json.RawMessage {
	if len(blocks) == 0 {
		return nil
	}
	raw, err := json.Marshal(reasoning{provider, model, blocks})
	if err != nil {
		return nil // blocks are valid JSON
	}
	return raw
}

// readReasoning returns the blocks, or none if another provider or model wrote
// them: a signature is good for its own model only.
func readReasoning(raw json.RawMessage, model string) []json.RawMessage {
	var r reasoning
	if len(raw) == 0 || json.Unmarshal(raw, &r) != nil || r.Provider != provider || r.Model != model {
		return nil
	}
	return r.Blocks
}

// thinks reports whether the model thinks before this reply. It cannot begin to
// in the middle of a turn: the API refuses thinking where the calls that were
// answered last came without it.
func (x *exchange) thinks() bool {
	if x.req.Sampling.ThinkingTokens <= 0 {
		return false
	}
	for i := len(x.req.Messages) - 1; i >= 0; i-- {
		if m := x.req.Messages[i]; m.Role == llm.RoleAssistant {
			return len(m.Calls) == 0 || len(readReasoning(m.Reasoning, x.model)) > 0
		}
	}
	return true
}
