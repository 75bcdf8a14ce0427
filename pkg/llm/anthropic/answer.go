package anthropic

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// answerWords tell the model when to call the answer's tool, since nothing may be
// added to its prompt.
const answerWords = "Gives the final answer. When you have all that the answer needs, call this tool once and alone, " +
	"with the answer as its input; do not answer in words."

// answerTool is the tool whose input is the structured answer.
type answerTool struct {
	name   string
	schema json.RawMessage
	// wrapped says that the answer is the input's property of this name, since
	// the output schema is not that of an object.
	wrapped bool
}

const wrapper = "answer"

func newAnswerTool(names *llm.ToolNames, schema json.RawMessage) (*answerTool, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(schema, &keys); err != nil {
		return nil, llmhttp.Invalid("the output schema is not a JSON object")
	}
	var kind any
	_ = json.Unmarshal(keys["type"], &kind) // nil where there is none
	t := &answerTool{name: names.Reserve("final_answer"), schema: schema}
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
	t.schema, err = json.Marshal(outer)
	return t, err
}

// content is the answer that the tool's input holds, as JSON text.
func (t *answerTool) content(arguments string) string {
	if !t.wrapped {
		return arguments
	}
	var outer map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &outer) != nil || outer[wrapper] == nil {
		return arguments // whoever validates it says what is wrong
	}
	return string(outer[wrapper])
}

// choose forces the answer where nothing else can be called. The API does not
// let a model be forced that thinks.
func (x *exchange) choose(thinking bool) {
	if x.answer == nil || len(x.req.Tools) > 0 || thinking {
		return
	}
	x.params.ToolChoice = &toolChoice{Type: "tool", Name: x.answer.name, DisableParallelToolUse: true}
}
