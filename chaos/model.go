package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"
)

// modelServer plays the replies of scenarios in OpenAI's protocol, each after a
// while of its own.
type modelServer struct {
	*httptest.Server
	scenarios map[string]*scenario // by the model's name

	// refused counts the requests that met a storm.
	refused atomic.Int64

	mu sync.Mutex
	// began is when the first request came.
	began time.Time
	// passed are the failures that were answered once, by model name and reply.
	passed map[string]bool
}

func newModelServer(scenarios []*scenario) *modelServer {
	s := &modelServer{scenarios: map[string]*scenario{}, passed: map[string]bool{}}
	for _, p := range scenarios {
		s.scenarios[p.modelName()] = p
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

func (s *modelServer) close() {
	s.CloseClientConnections()
	s.Close()
}

// slowestReply bounds the time that a reply takes.
const slowestReply = 600 * time.Millisecond

type chatRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role string `json:"role"`
	} `json:"messages"`
	Tools []json.RawMessage `json:"tools"`
}

func (s *modelServer) serve(w http.ResponseWriter, r *http.Request) {
	var request chatRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &request)
	}
	p := s.scenarios[request.Model]
	if err != nil || p == nil {
		refuse(w, http.StatusBadRequest, "no such conversation")
		return
	}
	if !pause(r.Context(), rand.N(slowestReply)) {
		return // the caller has gone
	}
	if limited, polite := s.storm(); limited {
		if polite {
			w.Header().Set("Retry-After", "1")
		}
		s.refused.Add(1)
		refuse(w, http.StatusTooManyRequests, "too many requests")
		return
	}
	said, status := s.reply(p, &request)
	switch {
	case status != 0:
		refuse(w, status, "the script says so")
	case request.Stream:
		stream(w, request.Model, said)
	default:
		whole(w, request.Model, said)
	}
}

// A storm begins so often, the first one soon, and lasts so long.
const (
	stormEvery = 5 * time.Second
	stormTime  = 1500 * time.Millisecond
	calm       = time.Second
)

// storm reports whether everybody is refused now, and whether they are told for
// how long: so it is in every second storm.
func (s *modelServer) storm() (limited, polite bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	since := time.Since(s.began) - calm
	return since >= 0 && since%stormEvery < stormTime, since/stormEvery%2 == 0
}

// reply is what the model says to a request, by how often it has spoken, or the
// status of a failure.
func (s *modelServer) reply(p *scenario, request *chatRequest) (said reply, status int) {
	if len(request.Tools) == 0 && len(request.Messages) == 1 {
		return reply{Text: "A summary of it all."}, 0
	}
	k := 0
	for _, m := range request.Messages {
		if m.Role == "assistant" {
			k++
		}
	}
	spoken := 0
	for i, r := range p.replies {
		switch {
		case r.Error == nil && spoken == k:
			return r, 0
		case r.Error == nil:
			spoken++
		case spoken == k && r.Error["kind"] == "auth":
			return reply{}, http.StatusUnauthorized
		case spoken == k && s.first(fmt.Sprint(p.index, "/", i)):
			return reply{}, http.StatusServiceUnavailable
		}
	}
	return reply{Text: "There is nothing more to say."}, 0
}

// first reports whether a failure is met for the first time.
func (s *modelServer) first(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	met := s.passed[key]
	s.passed[key] = true
	return !met
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "error"}})
}

// parts returns a reply as the protocol has it: its text and its calls, and why
// it ended.
func parts(said reply) (content any, calls []map[string]any, finish string) {
	finish = "stop"
	if text := said.Text + said.Content; text != "" {
		content = text
	}
	for i, c := range said.Calls {
		arguments, _ := json.Marshal(c.Arguments) // maps of plain values
		calls = append(calls, map[string]any{"index": i, "id": c.ID, "type": "function", "function": map[string]any{"name": c.Name, "arguments": string(arguments)}})
		finish = "tool_calls"
	}
	return content, calls, finish
}

var usage = map[string]any{"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}

func whole(w http.ResponseWriter, model string, said reply) {
	content, calls, finish := parts(said)
	message := map[string]any{"role": "assistant", "content": content}
	if calls != nil {
		message["tool_calls"] = calls
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model, "usage": usage,
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": finish}},
	})
}

func stream(w http.ResponseWriter, model string, said reply) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(choices []any, usage any) {
		data, _ := json.Marshal(map[string]any{
			"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices, "usage": usage,
		})
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
		_ = http.NewResponseController(w).Flush()
	}
	content, calls, finish := parts(said)
	delta := map[string]any{"role": "assistant", "content": content}
	send([]any{map[string]any{"index": 0, "delta": delta, "finish_reason": nil}}, nil)
	for _, c := range calls {
		send([]any{map[string]any{"index": 0, "delta": map[string]any{"tool_calls": []any{c}}, "finish_reason": nil}}, nil)
	}
	send([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": finish}}, nil)
	send([]any{}, usage)
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}
