package llmtest

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Finish says how a reply on the wire ends.
type Finish string

// The ends of a reply. The zero value is an ordinary one.
const (
	// Cut is a reply that met the token limit.
	Cut Finish = "cut"
	// Refused is a reply whose words are a refusal.
	Refused Finish = "refused"
	// Filtered is a reply that a content filter withholds.
	Filtered Finish = "filtered"
)

// Wire is the format that a provider's API speaks: [OpenAI] or [Anthropic].
type Wire interface {
	// Name is the provider's name.
	Name() string
	// Read reads a request's body.
	Read(body []byte) (WireRequest, error)
	// Plain returns the body of a reply in one piece.
	Plain(turn Turn, req WireRequest) string
	// Events returns the server-sent events of a streamed reply, each with the
	// line that ends it. Texts and arguments come in single characters, with empty
	// fragments between, and parallel calls interleaved.
	Events(turn Turn, req WireRequest) []string
	// After is how many of a stream's events come after the one that completes the
	// reply.
	After() int
	// Quiet returns events that show life and say nothing.
	Quiet() []string
	// Error returns the status and the body of a refused request, and the event
	// that states the same in the middle of a stream.
	Error(e *llm.Error) (status int, body, event string)
}

// WireRequest is what a reply depends on.
type WireRequest struct {
	// Turn counts the replies in the conversation.
	Turn   int
	Stream bool
	// Tools are the names of the tools, in order.
	Tools []string
	// Names are all names of tools, those of the history included.
	Names []string
}

// content returns a reply's text and calls.
func content(r llm.Response) (string, []llm.Call) {
	switch r := r.(type) {
	case llm.Text:
		return r.Content, nil
	case llm.Structured:
		return r.Content, nil
	case llm.ToolCalls:
		return r.Content, r.Calls
	}
	return "", nil
}

// turnsOf gives each character of the texts in turn: the first of each, the
// second of each, and so on, every one after an empty fragment.
func turnsOf(texts []string, tell func(i int, fragment string)) {
	split := make([][]string, len(texts))
	longest := 0
	for i, text := range texts {
		split[i] = strings.Split(text, "")
		longest = max(longest, len(split[i]))
	}
	for k := range longest {
		for i := range split {
			if k == 0 {
				tell(i, "")
			}
			if k < len(split[i]) {
				tell(i, split[i][k])
			}
		}
	}
}

// object is JSON whose keys stand in the order of the alphabet.
type object = map[string]any

func encode(v any) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("a reply does not marshal: " + err.Error())
	}
	return strings.TrimSuffix(out.String(), "\n")
}
