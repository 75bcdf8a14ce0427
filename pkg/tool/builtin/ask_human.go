package builtin

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/pkg/tool"
)

// The model sees the question alone: the answer is a human's.
const askHumanSchema = `{"type":"object","properties":{"question":{"type":"string",` +
	`"description":"What to ask, complete in itself: the human sees nothing else","minLength":1}},"required":["question"],"additionalProperties":false}`

// askHuman gives back what a human answered.
type askHuman struct{ def tool.Definition }

func newAskHuman() *askHuman {
	def := definition(AskHuman, "Asks a human a question and waits for the answer, which may take days. "+
		"Use it for what only a human can know or decide.", askHumanSchema)
	def.Asks = true
	return &askHuman{def: def}
}

// Definition returns the tool's definition.
func (a *askHuman) Definition() tool.Definition { return a.def }

// Run takes {"question", "answer"}, as the human's decision left the arguments,
// and returns the answer.
func (a *askHuman) Run(_ context.Context, call tool.Call) (string, error) {
	var in struct {
		Answer string `json:"answer"`
	}
	if err := json.Unmarshal([]byte(call.Arguments), &in); err != nil {
		return "", invalid("the arguments do not fit: %v", err)
	}
	if strings.TrimSpace(in.Answer) == "" {
		return "", tool.Failf(tool.CodeFailed, "no human has answered the question")
	}
	return in.Answer, nil
}
