package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go"

	"github.com/moorebus/moorebus/pkg/llm"
)

// reply is what a model answered, however it came.
type reply struct {
	model    string
	text     string
	calls    []llm.Call // named as on the wire
	thinking []json.RawMessage
	stop     sdk.StopReason
	// explanation is why the provider refuses, where it says so.
	explanation string
	usage       usage
}

// usage counts tokens; input are those that no cache has to do with.
type usage struct{ input, created, read, output int64 }

func fromMessage(m *sdk.Message) reply {
	r := reply{
		model: m.Model, stop: m.StopReason, explanation: m.StopDetails.Explanation,
		usage: usage{m.Usage.InputTokens, m.Usage.CacheCreationInputTokens, m.Usage.CacheReadInputTokens, m.Usage.OutputTokens},
	}
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			r.text += b.Text
		case "tool_use":
			r.calls = append(r.calls, llm.Call{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case "thinking", "redacted_thinking":
			r.thinking = append(r.thinking, json.RawMessage(b.RawJSON()))
		}
	}
	return r
}

// response makes the reply one of the port's, with the tools' own names.
func (c *Caller) response(x *exchange, r reply) (llm.Response, error) {
	meta := r.meta(x)
	switch r.stop {
	case sdk.StopReasonRefusal:
		return llm.Text{Meta: meta, Content: cmp.Or(r.text, r.explanation, llm.RefusedText)}, nil
	case sdk.StopReasonPauseTurn:
		return nil, &llm.Error{Kind: llm.KindOther, Message: "the provider paused in the middle of the reply (stop_reason pause_turn)"}
	case sdk.StopReasonMaxTokens, sdk.StopReasonModelContextWindowExceeded:
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
	u := r.usage
	m := llm.Meta{Model: cmp.Or(r.model, x.model), Confidence: 1}
	m.Usage = llm.Usage{
		Input:  int(max(u.input, 0) + max(u.created, 0) + max(u.read, 0)),
		Cached: int(max(u.read, 0)),
		Output: int(max(u.output, 0)),
	}
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
