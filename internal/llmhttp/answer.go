package llmhttp

import "encoding/json"

// AnswerWords describe an [AnswerTool] to the model, since nothing may be added to its
// prompt.
const AnswerWords = "Gives the final answer. When you have all that the answer needs, call this tool once and alone, " +
	"with the answer as its input; do not answer in words."

// AnswerTool is a tool whose input is the structured answer. It is offered if an API does not
// support an output schema, or not together with tools.
type AnswerTool struct {
	// Name is the tool's name on the wire, which no tool of the request has. Schema is that
	// of an object.
	Name   string
	Schema json.RawMessage
	// wrapped says that the answer is the input's property of this name, since
	// the output schema is not that of an object.
	wrapped bool
}

const wrapper = "answer"

// NewAnswerTool makes the tool for an output schema. The error is of kind invalid.
func NewAnswerTool(names *ToolNames, schema json.RawMessage) (*AnswerTool, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(schema, &keys); err != nil {
		return nil, Invalid("the output schema is not a JSON object")
	}
	var kind any
	_ = json.Unmarshal(keys["type"], &kind) // nil where there is none
	t := &AnswerTool{Name: names.Reserve("final_answer"), Schema: schema}
	if kind == "object" {
		return t, nil
	}
	t.wrapped = true
	outer := map[string]any{
		"type": "object", "properties": map[string]any{wrapper: keys}, "required": []string{wrapper}, "additionalProperties": false,
	}
	for _, shared := range []string{"$defs", "definitions"} { // references name them from the root
		if defs, ok := keys[shared]; ok {
			outer[shared] = defs
			delete(keys, shared)
		}
	}
	var err error
	t.Schema, err = json.Marshal(outer)
	return t, err
}

// Is reports whether a call of that name on the wire is the answer. A nil tool has none.
func (t *AnswerTool) Is(name string) bool { return t != nil && name == t.Name }

// Answer returns the answer that the tool's input holds, as JSON text. It is not
// validated.
func (t *AnswerTool) Answer(input string) string {
	if !t.wrapped {
		return input
	}
	var outer map[string]json.RawMessage
	if json.Unmarshal([]byte(input), &outer) != nil || outer[wrapper] == nil {
		return input // its validation says what is wrong
	}
	return string(outer[wrapper])
}
