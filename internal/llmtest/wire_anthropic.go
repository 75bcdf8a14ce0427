package llmtest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Anthropic is the format of Anthropic's Messages API.
type Anthropic struct{}

// Signature is what Anthropic signs all thinking with.
const Signature = "EqQBCgIYAhIM1gbcDa9GJwZA"

// Name returns anthropic.
func (Anthropic) Name() string { return "anthropic" }

// Read reads a request for a message.
func (Anthropic) Read(body []byte) (WireRequest, error) {
	var in struct {
		Stream   bool `json:"stream"`
		Messages []struct {
			Role    string `json:"role"`
			Content []struct {
				Type string `json:"type"`
				Name string `json:"name"`
			} `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	err := json.Unmarshal(body, &in)
	req := WireRequest{Stream: in.Stream}
	for _, t := range in.Tools {
		req.Tools = append(req.Tools, t.Name)
	}
	req.Names = append(req.Names, req.Tools...)
	for _, m := range in.Messages {
		if m.Role == "assistant" {
			req.Turn++
		}
		for _, b := range m.Content {
			if b.Type == "tool_use" {
				req.Names = append(req.Names, b.Name)
			}
		}
	}
	return req, err
}

// Plain returns a message.
func (w Anthropic) Plain(turn Turn, req WireRequest) string {
	content := []any{}
	var inputs []string // they arrive byte for byte
	for _, b := range w.blocks(turn, req) {
		whole := b.whole()
		if input, ok := whole["input"].(json.RawMessage); ok {
			whole["input"] = "@input" + strconv.Itoa(len(inputs)) + "@"
			inputs = append(inputs, encode(whole["input"]), string(input))
		}
		content = append(content, whole)
	}
	about := turn.Reply.About()
	return strings.NewReplacer(inputs...).Replace(encode(object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": about.Model, "content": content,
		"stop_reason": w.stop(turn), "stop_sequence": nil, "usage": anthropicUsage(about.Usage),
	}))
}

// Events returns the events of a message: the usage comes in two of them, and
// pings among the others.
func (w Anthropic) Events(turn Turn, req WireRequest) []string {
	about := turn.Reply.About()
	usage := anthropicUsage(about.Usage)
	usage["output_tokens"] = min(1, about.Usage.Output)
	out := []string{
		anthropicEvent("message_start", object{"message": object{
			"id": "msg_1", "type": "message", "role": "assistant", "model": about.Model, "content": []any{},
			"stop_reason": nil, "stop_sequence": nil, "usage": usage,
		}}),
		w.Quiet()[0],
	}
	blocks := w.blocks(turn, req)
	texts := make([]string, len(blocks))
	for i, b := range blocks {
		texts[i] = b.text
		out = append(out, anthropicEvent("content_block_start", object{"index": i, "content_block": b.start()}))
	}
	turnsOf(texts, func(i int, s string) {
		if key := blocks[i].deltaKey(); key != "" {
			out = append(out, anthropicEvent("content_block_delta", object{"index": i, "delta": object{"type": blocks[i].delta, key: s}}))
		}
	})
	for i, b := range blocks {
		if b.kind == "thinking" {
			out = append(out, anthropicEvent("content_block_delta", object{
				"index": i, "delta": object{"type": "signature_delta", "signature": Signature},
			}))
		}
		out = append(out, anthropicEvent("content_block_stop", object{"index": i}))
	}
	return append(out,
		anthropicEvent("message_delta", object{
			"delta": object{"stop_reason": w.stop(turn), "stop_sequence": nil}, "usage": object{"output_tokens": about.Usage.Output},
		}),
		anthropicEvent("message_stop", object{}))
}

// After is 1: the stop reason stands in the last event but one.
func (Anthropic) After() int { return 1 }

// Quiet returns a ping, a comment, and an event of a kind that is not known.
func (Anthropic) Quiet() []string {
	return []string{anthropicEvent("ping", object{}), ": keep-alive\n\n", anthropicEvent("some_later_event", object{"index": 0})}
}

// Error returns an error of the API.
func (Anthropic) Error(e *llm.Error) (status int, body, event string) {
	status, kind, message := http.StatusBadRequest, "invalid_request_error", e.Message
	switch e.Kind {
	case llm.KindRateLimited:
		status, kind = http.StatusTooManyRequests, "rate_limit_error"
	case llm.KindOverloaded:
		status, kind = 529, "overloaded_error"
	case llm.KindAuth:
		status, kind = http.StatusUnauthorized, "authentication_error"
	case llm.KindContextTooLong:
		message = "prompt is too long: " + message
	}
	data := object{"error": object{"type": kind, "message": message}}
	return status, encode(object{"type": "error", "error": data["error"], "request_id": "req_1"}), anthropicEvent("error", data)
}

// anthropicBlock is a block of a message. Text is what is streamed of it.
type anthropicBlock struct {
	kind, delta, text string
	call              llm.Call
}

func (b anthropicBlock) deltaKey() string {
	return map[string]string{"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[b.delta]
}

func (b anthropicBlock) whole() object {
	switch b.kind {
	case "thinking":
		return object{"type": "thinking", "thinking": b.text, "signature": Signature}
	case "redacted_thinking":
		return object{"type": "redacted_thinking", "data": b.text}
	case "tool_use":
		var input any = json.RawMessage(b.text)
		if !json.Valid([]byte(b.text)) {
			input = object{} // what is left of arguments that were cut off
		}
		return object{"type": "tool_use", "id": b.call.ID, "name": b.call.Name, "input": input}
	}
	return object{"type": "text", "text": b.text}
}

func (b anthropicBlock) start() object {
	switch b.kind {
	case "thinking":
		return object{"type": "thinking", "thinking": "", "signature": ""}
	case "tool_use":
		return object{"type": "tool_use", "id": b.call.ID, "name": b.call.Name, "input": object{}}
	case "text":
		return object{"type": "text", "text": ""}
	}
	return b.whole()
}

// blocks gives a structured reply as a call of the last tool that was offered.
func (Anthropic) blocks(turn Turn, req WireRequest) []anthropicBlock {
	var blocks []anthropicBlock
	if turn.Thinking != "" {
		blocks = append(blocks, anthropicBlock{kind: "thinking", delta: "thinking_delta", text: turn.Thinking},
			anthropicBlock{kind: "redacted_thinking", text: "RWFzdGVy"})
	}
	text, calls := content(turn.Reply)
	if _, ok := turn.Reply.(llm.Structured); ok && len(req.Tools) > 0 {
		text, calls = "", []llm.Call{{ID: "toolu_answer", Name: req.Tools[len(req.Tools)-1], Arguments: text}}
	}
	if text != "" {
		blocks = append(blocks, anthropicBlock{kind: "text", delta: "text_delta", text: text})
	}
	for _, c := range calls {
		blocks = append(blocks, anthropicBlock{kind: "tool_use", delta: "input_json_delta", text: c.Arguments, call: c})
	}
	return blocks
}

func (Anthropic) stop(turn Turn) string {
	_, calls := content(turn.Reply)
	_, structured := turn.Reply.(llm.Structured)
	switch {
	case turn.Finish == Cut:
		return "max_tokens"
	case turn.Finish == Refused:
		return "refusal"
	case len(calls) > 0 || structured:
		return "tool_use"
	}
	return "end_turn"
}

// anthropicUsage parts what was not read from the cache into what was written to
// it and the rest.
func anthropicUsage(u llm.Usage) object {
	fresh := u.Input - u.Cached
	return object{
		"input_tokens": fresh - fresh/2, "cache_creation_input_tokens": fresh / 2, "cache_read_input_tokens": u.Cached,
		"output_tokens": u.Output,
	}
}

func anthropicEvent(kind string, data object) string {
	data["type"] = kind
	return "event: " + kind + "\ndata: " + encode(data) + "\n\n"
}
