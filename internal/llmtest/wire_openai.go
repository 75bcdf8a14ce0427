package llmtest

import (
	"encoding/json"
	"net/http"

	"github.com/moorebus/moorebus/pkg/llm"
)

// OpenAI is the format of OpenAI's chat completions.
type OpenAI struct{}

// Name returns openai.
func (OpenAI) Name() string { return "openai" }

// Read reads a request for a chat completion.
func (OpenAI) Read(body []byte) (WireRequest, error) {
	type function struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var in struct {
		Stream   bool `json:"stream"`
		Messages []struct {
			Role      string     `json:"role"`
			Name      string     `json:"name"`
			ToolCalls []function `json:"tool_calls"`
		} `json:"messages"`
		Tools []function `json:"tools"`
	}
	err := json.Unmarshal(body, &in)
	req := WireRequest{Stream: in.Stream}
	for _, t := range in.Tools {
		req.Tools = append(req.Tools, t.Function.Name)
	}
	req.Names = append(req.Names, req.Tools...)
	for _, m := range in.Messages {
		if m.Role == "assistant" {
			req.Turn++
		}
		if m.Role == "tool" {
			req.Names = append(req.Names, m.Name)
		}
		for _, c := range m.ToolCalls {
			req.Names = append(req.Names, c.Function.Name)
		}
	}
	return req, err
}

// Plain returns a chat completion.
func (OpenAI) Plain(turn Turn, _ WireRequest) string {
	text, calls := content(turn.Reply)
	m := object{"role": "assistant", "content": text}
	if turn.Finish == Refused {
		m = object{"role": "assistant", "content": nil, "refusal": text}
	}
	if turn.Thinking != "" {
		m["reasoning_content"] = turn.Thinking
	}
	var list []any
	for i, c := range calls {
		list = append(list, openaiCall(i, c))
	}
	if len(list) > 0 {
		m["tool_calls"] = list
	}
	about := turn.Reply.About()
	return encode(object{
		"id": "c", "object": "chat.completion", "created": 1, "model": about.Model, "usage": openaiUsage(about.Usage),
		"choices": []any{object{"index": 0, "message": m, "finish_reason": openaiFinish(turn)}},
	})
}

// Events returns chunks of a completion, the usage in one of its own, and [DONE].
func (OpenAI) Events(turn Turn, _ WireRequest) []string {
	text, calls := content(turn.Reply)
	about := turn.Reply.About()
	var out []string
	send := func(choices []any, usage any) {
		out = append(out, "data: "+encode(object{
			"id": "c", "object": "chat.completion.chunk", "created": 1, "model": about.Model, "choices": choices, "usage": usage,
		})+"\n\n")
	}
	delta := func(d object, finish any) {
		send([]any{object{"index": 0, "delta": d, "finish_reason": finish}}, nil)
	}
	delta(object{"role": "assistant", "content": ""}, nil)
	if turn.Thinking != "" {
		turnsOf([]string{turn.Thinking}, func(_ int, s string) { delta(object{"reasoning_content": s}, nil) })
	}
	key := "content"
	if turn.Finish == Refused {
		key = "refusal"
	}
	turnsOf([]string{text}, func(_ int, s string) { delta(object{key: s}, nil) })
	arguments := make([]string, len(calls))
	for i, c := range calls {
		arguments[i], c.Arguments = c.Arguments, ""
		delta(object{"tool_calls": []any{openaiCall(i, c)}}, nil)
	}
	turnsOf(arguments, func(i int, s string) {
		delta(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": s}}}}, nil)
	})
	delta(object{}, openaiFinish(turn))
	send([]any{}, openaiUsage(about.Usage))
	return append(out, "data: [DONE]\n\n")
}

// After is 2: the usage, and [DONE], which some servers leave out.
func (OpenAI) After() int { return 2 }

// Quiet returns a comment.
func (OpenAI) Quiet() []string { return []string{": keep-alive\n\n"} }

// Error returns an error of the API.
func (OpenAI) Error(e *llm.Error) (status int, body, event string) {
	status, code := http.StatusBadRequest, "invalid_request_error"
	switch e.Kind {
	case llm.KindRateLimited:
		status, code = http.StatusTooManyRequests, "rate_limit_exceeded"
	case llm.KindOverloaded:
		status, code = http.StatusServiceUnavailable, "overloaded_error"
	case llm.KindAuth:
		status, code = http.StatusUnauthorized, "invalid_api_key"
	case llm.KindContextTooLong:
		code = "context_length_exceeded"
	}
	body = encode(object{"error": object{"message": e.Message, "type": "t", "code": code}})
	return status, body, "data: " + body + "\n\n"
}

func openaiCall(i int, c llm.Call) object {
	return object{"index": i, "id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": c.Arguments}}
}

func openaiUsage(u llm.Usage) object {
	return object{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Total,
		"prompt_tokens_details": object{"cached_tokens": u.Cached},
	}
}

func openaiFinish(turn Turn) string {
	_, calls := content(turn.Reply)
	switch {
	case turn.Finish == Cut:
		return "length"
	case turn.Finish == Filtered:
		return "content_filter"
	case len(calls) > 0:
		return "tool_calls"
	}
	return "stop"
}
