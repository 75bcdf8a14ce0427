package llmhttp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// NoModel is the error of a request for which nobody names a model.
func NoModel() *llm.Error {
	return Invalid("no model: name one in the agent (models: default) or as the provider's default model")
}

// Adjust is a setting that is sent as the value, or omitted if that is nil. The value is a
// string or a number.
func Adjust(key string, sent any) events.Adjusted {
	a := events.Adjusted{Key: key}
	if sent != nil {
		a.Sent, _ = json.Marshal(sent) // strings and numbers always encode
	}
	return a
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

// CallID is the id of the call at a place of the reply, counted from 0, if the provider gives
// it none.
func CallID(req llm.Request, at int) string { return fmt.Sprintf("call_%d_%d", req.Replies+1, at+1) }

// Calls parts the calls of a reply, named as on the wire, from the one that is the
// structured answer, which is nil if there is none or no tool for it. The others get the
// tools' own names. All get an id, and {} for no arguments.
func (n *ToolNames) Calls(req llm.Request, all []llm.Call, tool *AnswerTool) (calls []llm.Call, answer *llm.Call) {
	for i, call := range all {
		call.ID = cmp.Or(call.ID, CallID(req, i))
		if strings.TrimSpace(call.Arguments) == "" {
			call.Arguments = "{}"
		}
		if tool.Is(call.Name) {
			answer = cmp.Or(answer, &call)
			continue
		}
		call.Name = n.Tool(call.Name)
		calls = append(calls, call)
	}
	return calls, answer
}
