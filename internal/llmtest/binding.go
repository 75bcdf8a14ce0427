package llmtest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
)

// Binding is a server of Anthropic's Messages API whose models bind their thinking to the
// system prompt, the tools and the messages before it, and to the thinking before that.
// It refuses a request with other thinking with 400, as the API does, and one without
// adaptive thinking. A reply thinks, says something, thinks without words, and calls the
// tool look. After Calls of those, 0 meaning no end, a reply thinks and answers.
type Binding struct {
	Calls int

	mu       sync.Mutex
	thoughts []int
}

// Thoughts returns how many blocks of thinking each request had that was not refused, and
// forgets them.
func (s *Binding) Thoughts() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.thoughts
	s.thoughts = nil
	return all
}

type bindingRequest struct {
	Model      string           `json:"model"`
	System     []map[string]any `json:"system"`
	Tools      []map[string]any `json:"tools"`
	ToolChoice struct {
		Type string `json:"type"`
	} `json:"tool_choice"`
	Thinking struct {
		Type string `json:"type"`
	} `json:"thinking"`
	Messages []struct {
		Role    string           `json:"role"`
		Content []map[string]any `json:"content"`
	} `json:"messages"`
}

// ServeHTTP answers one request in one piece.
func (s *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req bindingRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		refuseBound(w, err.Error())
		return
	}
	if req.Thinking.Type != "adaptive" || req.ToolChoice.Type == "tool" {
		refuseBound(w, "this model always thinks, and cannot be forced")
		return
	}
	stood, last, n, wrong := req.check()
	if wrong != "" {
		refuseBound(w, wrong)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.thoughts = append(s.thoughts, n)
	first := sign(req.Model, stood, last)
	content := []any{object{"type": "thinking", "thinking": "Where?", "signature": first}}
	stop := "end_turn"
	if k := len(s.thoughts); s.Calls > 0 && k > s.Calls {
		content = append(content, object{"type": "text", "text": "It is here."})
	} else {
		words := object{"type": "text", "text": "I look <there>. "}
		second := sign(req.Model, append(stood, "assistant", words), first)
		stop, content = "tool_use", append(content, words, object{"type": "thinking", "thinking": "", "signature": second},
			object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", k), "name": "look", "input": object{"at": "a<b"}})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object{
		"type": "message", "model": req.Model, "stop_reason": stop, "content": content,
		"usage": object{"input_tokens": 1, "output_tokens": 1},
	})
}

// check returns all that stands before the reply, the last block of thinking, the number
// of blocks, and what is wrong with them, or nothing.
func (req *bindingRequest) check() (stood []any, last string, n int, wrong string) {
	for _, one := range slices.Concat(req.System, req.Tools) {
		delete(one, "cache_control")
		stood = append(stood, one)
	}
	for i, m := range req.Messages {
		for j, b := range m.Content {
			delete(b, "cache_control")
			if b["type"] != "thinking" {
				stood = append(stood, m.Role, b)
				continue
			}
			n++
			if last = sign(req.Model, stood, last); b["signature"] != last {
				return nil, "", 0, fmt.Sprintf("messages.%d.content.%d: Invalid `signature` in `thinking` block. The block is bound to a different conversation.", i, j)
			}
		}
	}
	return stood, last, n, ""
}

// sign is a signature over what stands before a block.
func sign(model string, stood []any, last string) string {
	sum := sha256.Sum256([]byte(encode([]any{model, stood, last})))
	return hex.EncodeToString(sum[:])
}

func refuseBound(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(object{"type": "error", "error": object{"type": "invalid_request_error", "message": why}})
}
