package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/llmtest"
)

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return serve(t, conversation(t, conv))
	}, llmtest.NoConfidence)
}

// conversation plays the model over the real wire format. Which turn it is
// follows from the number of assistant messages.
func conversation(t *testing.T, conv llmtest.Conversation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Stream   bool `json:"stream"`
			Messages []struct {
				Role string `json:"role"`
			} `json:"messages"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Errorf("decode: %v", err)
		}
		n := 0
		for _, m := range req.Messages {
			if m.Role == "assistant" {
				n++
			}
		}
		turn := conv[n]
		switch {
		case turn.Hang:
			<-r.Context().Done()
		case turn.Err != nil:
			writeError(w, turn.Err)
		case req.Stream:
			writeStream(w, turn.Reply)
		default:
			writePlain(w, turn.Reply)
		}
	}
}

func writeError(w http.ResponseWriter, e *llm.Error) {
	status, code := http.StatusBadRequest, "bad"
	switch e.Kind {
	case llm.KindRateLimited:
		status, code = http.StatusTooManyRequests, "rate_limit_exceeded"
		w.Header().Set("Retry-After", strconv.Itoa(int(e.RetryAfter/time.Second)))
	case llm.KindOverloaded:
		status, code = http.StatusServiceUnavailable, "overloaded"
	case llm.KindAuth:
		status, code = http.StatusUnauthorized, "invalid_api_key"
	case llm.KindContextTooLong:
		code = "context_length_exceeded"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	writeJSON(w, map[string]any{"error": map[string]any{"message": e.Message, "type": "t", "code": code}})
}

func writePlain(w http.ResponseWriter, r llm.Response) {
	text, calls := content(r)
	m := map[string]any{"role": "assistant", "content": text}
	finish := "stop"
	if len(calls) > 0 {
		m["tool_calls"] = calls
		finish = "tool_calls"
	}
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, map[string]any{
		"id": "c", "object": "chat.completion", "created": 1, "model": r.About().Model, "usage": wireUsage(r),
		"choices": []any{map[string]any{"index": 0, "message": m, "finish_reason": finish}},
	})
}

// writeStream cuts texts and arguments into single runes and interleaves the
// calls.
func writeStream(w http.ResponseWriter, r llm.Response) {
	w.Header().Set("Content-Type", "text/event-stream")
	text, calls := content(r)
	send := func(choices []any, usage any) {
		_, _ = fmt.Fprint(w, "data: ")
		writeJSON(w, map[string]any{
			"id": "c", "object": "chat.completion.chunk", "created": 1, "model": r.About().Model,
			"choices": choices, "usage": usage,
		})
		_, _ = fmt.Fprint(w, "\n")
	}
	choice := func(delta map[string]any, finish any) []any {
		return []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}
	}
	send(choice(map[string]any{"role": "assistant", "content": ""}, nil), nil)
	for _, r := range text {
		send(choice(map[string]any{"content": string(r)}, nil), nil)
	}
	finish := "stop"
	longest := 0
	for i, c := range calls {
		finish = "tool_calls"
		longest = max(longest, len([]rune(c.Function.Arguments)))
		send(choice(map[string]any{"tool_calls": []any{map[string]any{
			"index": i, "id": c.ID, "type": "function",
			"function": map[string]any{"name": c.Function.Name, "arguments": ""},
		}}}, nil), nil)
	}
	for k := range longest {
		for i, c := range calls {
			if args := []rune(c.Function.Arguments); k < len(args) {
				send(choice(map[string]any{"tool_calls": []any{map[string]any{
					"index": i, "function": map[string]any{"arguments": string(args[k])},
				}}}, nil), nil)
			}
		}
	}
	send(choice(map[string]any{}, finish), nil)
	send([]any{}, wireUsage(r))
	_, _ = fmt.Fprint(w, "data: [DONE]\n\n")
}

func content(r llm.Response) (string, []call) {
	switch r := r.(type) {
	case llm.Text:
		return r.Content, nil
	case llm.Structured:
		return r.Content, nil
	case llm.ToolCalls:
		var calls []call
		for _, c := range r.Calls {
			calls = append(calls, call{c.ID, typeFunction, function{c.Name, c.Arguments}})
		}
		return r.Content, calls
	}
	return "", nil
}

func wireUsage(r llm.Response) map[string]any {
	u := r.About().Usage
	return map[string]any{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Total,
		"prompt_tokens_details": map[string]any{"cached_tokens": u.Cached},
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
