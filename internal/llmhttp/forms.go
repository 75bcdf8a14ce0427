package llmhttp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Model returns the name of the request's model, or else the usual one. The error is that
// of a request without any.
func Model(req llm.Request, usual string) (string, error) {
	model := cmp.Or(req.Model, usual)
	if model == "" {
		return "", Invalid("no model: name one in the agent (models: default) or as the provider's default model")
	}
	return model, nil
}

// Parameters returns the schema of a tool's arguments, that of any object if it has none.
func Parameters(t llm.Tool) (json.RawMessage, error) {
	switch {
	case len(t.Schema) == 0:
		return json.RawMessage(`{"type":"object","properties":{}}`), nil
	case !json.Valid(t.Schema):
		return nil, Invalid(fmt.Sprintf("the schema of tool %q is not valid JSON", t.Name))
	}
	return t.Schema, nil
}

// Calls returns the calls of a reply with the tools' own names, an id for each, and {} for
// no arguments.
func (n *ToolNames) Calls(req llm.Request, calls []llm.Call) []llm.Call {
	for i := range calls {
		call := &calls[i]
		call.Name = n.Tool(call.Name)
		call.ID = cmp.Or(call.ID, fmt.Sprintf("call_%d_%d", req.Replies+1, i+1))
		if strings.TrimSpace(call.Arguments) == "" {
			call.Arguments = "{}"
		}
	}
	return calls
}
