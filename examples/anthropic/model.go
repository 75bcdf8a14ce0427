package main

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// object is a JSON object.
type object = map[string]any

// What the model thinks, and its signature.
const (
	thinking  = "The moons are for the tool to say."
	signature = "EqQBCgIYAhIM1gbcDa9GJwZA"
)

// model uses the format of Anthropic's Messages API: it thinks, calls a tool, and answers
// when it has the result. Like the real model it refuses a result without the thinking
// that led to the call.
type model struct{}

// request has the fields that the model reads.
type request struct {
	Thinking struct {
		Type string `json:"type"`
	} `json:"thinking"`
	Messages []struct {
		Role    string  `json:"role"`
		Content []block `json:"content"`
	} `json:"messages"`
}

type block struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
}

// ServeHTTP answers one request with a stream.
func (model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Thinking.Type != "enabled" {
		refuse(w, "this model wants to think")
		return
	}
	if len(req.Messages) == 1 {
		stream(w, "tool_use", []part{
			{object{"type": "thinking", "thinking": "", "signature": ""}, []object{
				{"type": "thinking_delta", "thinking": thinking}, {"type": "signature_delta", "signature": signature},
			}},
			{object{"type": "tool_use", "id": "toolu_1", "name": "moons", "input": object{}}, []object{
				{"type": "input_json_delta", "partial_json": `{"name": `}, {"type": "input_json_delta", "partial_json": `"Mars"}`},
			}},
		})
		return
	}
	if called := req.Messages[1].Content; called[0] != (block{"thinking", thinking, signature}) {
		refuse(w, "messages.1.content.0: when thinking is enabled, a message with tool_use must start with its thinking block, unchanged")
		return
	}
	stream(w, "end_turn", []part{{object{"type": "text", "text": ""}, []object{
		{"type": "text_delta", "text": "Mars has two moons, "}, {"type": "text_delta", "text": "Phobos and Deimos."},
	}}})
}

// part is a block of the reply: its beginning, and what is added to it.
type part struct {
	start  object
	deltas []object
}

func stream(w http.ResponseWriter, stop string, parts []part) {
	w.Header().Set("Content-Type", "text/event-stream")
	send(w, "message_start", object{"message": object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []any{},
		"usage": object{"input_tokens": 40, "output_tokens": 1},
	}})
	for i, p := range parts {
		send(w, "content_block_start", object{"index": i, "content_block": p.start})
		for _, delta := range p.deltas {
			send(w, "content_block_delta", object{"index": i, "delta": delta})
		}
		send(w, "content_block_stop", object{"index": i})
	}
	send(w, "message_delta", object{"delta": object{"stop_reason": stop}, "usage": object{"output_tokens": 20}})
	send(w, "message_stop", object{})
}

func send(w http.ResponseWriter, kind string, event object) {
	event["type"] = kind
	data, err := json.Marshal(event)
	if err != nil {
		return // it is made of strings and numbers
	}
	_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
}

func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(object{"type": "error", "error": object{"type": "invalid_request_error", "message": why}})
}
