package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// reply is what a model answered, however it came.
type reply struct {
	model    string
	text     string
	calls    []llm.Call // named as on the wire
	thinking []json.RawMessage
	stop     string
	// explanation is why the provider refuses, where it says so.
	explanation string
	usage       tokens
}

func fromMessage(m answer) (reply, error) {
	r := reply{model: m.Model, stop: m.StopReason, explanation: m.StopDetails.Explanation, usage: m.Usage}
	for _, raw := range m.Content {
		var b content
		if err := json.Unmarshal(raw, &b); err != nil {
			return r, err
		}
		switch b.Type {
		case "text":
			r.text += b.Text
		case "tool_use":
			r.calls = append(r.calls, llm.Call{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case "thinking", "redacted_thinking":
			r.thinking = append(r.thinking, raw)
		}
	}
	return r, nil
}

// response makes the reply one of the port's, with the tools' own names.
func (x *exchange) response(r reply) (llm.Response, error) {
	meta := r.meta(x)
	switch r.stop {
	case "refusal":
		return llm.Text{Meta: meta, Content: cmp.Or(r.text, r.explanation, llm.RefusedText)}, nil
	case "pause_turn":
		return nil, &llm.Error{Kind: llm.KindOther, Message: "the provider paused in the middle of the reply (stop_reason pause_turn)"}
	case "max_tokens", "model_context_window_exceeded":
		meta.Cut = true
	}
	calls := make([]llm.Call, 0, len(r.calls))
	var answer *llm.Call
	for i, call := range r.calls {
		if strings.TrimSpace(call.Arguments) == "" {
			call.Arguments = "{}"
		}
		if x.answer != nil && call.Name == x.answer.name {
			answer = cmp.Or(answer, &call)
			continue
		}
		call.ID = cmp.Or(call.ID, fmt.Sprintf("call_%d_%d", x.req.Replies+1, i+1))
		call.Name = x.names.Tool(call.Name)
		calls = append(calls, call)
	}
	switch {
	case len(calls) > 0:
		meta.Reasoning = writeReasoning(x.model, r.thinking)
		return llm.ToolCalls{Meta: meta, Content: r.text, Calls: calls}, nil
	case answer != nil:
		return llm.Structured{Meta: meta, Content: x.answer.content(answer.Arguments)}, nil
	}
	return llm.Text{Meta: meta, Content: r.text}, nil
}

func (r reply) meta(x *exchange) llm.Meta {
	count := func(n *int) int {
		if n == nil {
			return 0
		}
		return max(*n, 0)
	}
	u, m := r.usage, llm.Meta{Model: cmp.Or(r.model, x.model), Confidence: 1}
	m.Usage = llm.Usage{Input: count(u.Input) + count(u.Written) + count(u.Read), Cached: count(u.Read), Output: count(u.Output)}
	m.Usage.Total = m.Usage.Input + m.Usage.Output
	return m
}

// thought is a thinking block as it is sent back.
func thought(text, signature string) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct { // strings always encode
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}{"thinking", text, signature})
	return bytes.TrimSpace(out.Bytes())
}
