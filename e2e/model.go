package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// chatRequest is a request for a chat completion, as far as it matters here.
type chatRequest struct {
	Model    string          `json:"model"`
	Messages []message       `json:"-"`
	Raw      json.RawMessage `json:"messages"`
	Stream   bool            `json:"stream"`
	Tools    []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
}

// replies is how many assistant messages the request holds: the number of the
// reply that it asks for, from 0.
func (r *chatRequest) replies() int {
	k := 0
	for i := range r.Messages {
		if r.Messages[i].Role == "assistant" {
			k++
		}
	}
	return k
}

// modelReply is what the model server answers.
type modelReply struct {
	content *string
	calls   []call
	// before, if not nil, is called before each part of a streamed reply.
	before func(delta int)
}

// player answers the requests for one model name. An error is answered with 400,
// which ends the run.
type player interface {
	reply(r *chatRequest) (modelReply, error)
}

// modelServer is an endpoint in OpenAI's protocol. What the model says depends on
// the model's name alone, so that any number of runs can be told apart.
type modelServer struct {
	*httptest.Server
	mu      sync.Mutex
	players map[string]player
	gate    gate
}

func newModelServer(t *testing.T) *modelServer {
	s := &modelServer{players: map[string]player{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.CloseClientConnections)
	t.Cleanup(s.Close)
	return s
}

// play lets p answer the requests for a model name.
func (s *modelServer) play(model string, p player) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.players[model] = p
}

func (s *modelServer) serve(w http.ResponseWriter, r *http.Request) {
	request, err := readRequest(r)
	if err != nil {
		refuse(w, err)
		return
	}
	if s.gate.holds(r, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
		return
	}
	s.mu.Lock()
	p := s.players[request.Model]
	s.mu.Unlock()
	if p == nil {
		refuse(w, fmt.Errorf("no conversation is played under the model name %q", request.Model))
		return
	}
	reply, err := p.reply(request)
	switch {
	case err != nil:
		refuse(w, err)
	case request.Stream:
		reply.stream(w, request)
	default:
		reply.whole(w, request)
	}
}

func readRequest(r *http.Request) (*chatRequest, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" {
		return nil, fmt.Errorf("asked for %s %s", r.Method, r.URL.Path)
	}
	request := new(chatRequest)
	if err := json.Unmarshal(body, request); err != nil {
		return nil, err
	}
	return request, json.Unmarshal(textsOnly(request.Raw), &request.Messages)
}

// textsOnly returns the messages without contents that are lists of parts: no recording has
// any.
func textsOnly(messages json.RawMessage) json.RawMessage {
	var list []map[string]json.RawMessage
	if !bytes.Contains(messages, []byte(`"content":[`)) || json.Unmarshal(messages, &list) != nil {
		return messages
	}
	for _, m := range list {
		if bytes.HasPrefix(m["content"], []byte("[")) {
			delete(m, "content")
		}
	}
	texts, _ := json.Marshal(list) // it came out of JSON
	return texts
}

func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": err.Error(), "type": "invalid_request_error"}})
}

func (r *modelReply) finish() string {
	if len(r.calls) > 0 {
		return "tool_calls"
	}
	return "stop"
}

func usage(request *chatRequest) map[string]any {
	input := len(request.Raw) / 4
	return map[string]any{"prompt_tokens": input, "completion_tokens": 7, "total_tokens": input + 7}
}

// whole writes the reply in one piece.
func (r *modelReply) whole(w http.ResponseWriter, request *chatRequest) {
	w.Header().Set("Content-Type", "application/json")
	said := message{Role: "assistant", Content: r.content, ToolCalls: r.calls}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request.Model,
		"choices": []any{map[string]any{"index": 0, "message": said, "finish_reason": r.finish()}},
		"usage":   usage(request),
	})
}

// stream writes the reply as server-sent events.
func (r *modelReply) stream(w http.ResponseWriter, request *chatRequest) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(choices []any, usage any) {
		data, _ := json.Marshal(map[string]any{
			"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": request.Model,
			"choices": choices, "usage": usage,
		})
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
		_ = http.NewResponseController(w).Flush()
	}
	for i, delta := range r.deltas() {
		if r.before != nil {
			r.before(i)
		}
		send([]any{map[string]any{"index": 0, "delta": delta, "finish_reason": nil}}, nil)
	}
	send([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": r.finish()}}, nil)
	send([]any{}, usage(request))
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// deltas are the parts of a streamed reply: the text first, then call by call.
func (r *modelReply) deltas() []map[string]any {
	deltas := []map[string]any{{"role": "assistant", "content": ""}}
	if r.content != nil {
		for _, part := range parts(*r.content) {
			deltas = append(deltas, map[string]any{"content": part})
		}
	}
	for i, c := range r.calls {
		deltas = append(deltas, map[string]any{"tool_calls": []any{map[string]any{
			"index": i, "id": c.ID, "type": "function", "function": map[string]any{"name": c.Function.Name, "arguments": ""},
		}}})
		for _, part := range parts(c.Function.Arguments) {
			deltas = append(deltas, map[string]any{"tool_calls": []any{map[string]any{
				"index": i, "function": map[string]any{"arguments": part},
			}}})
		}
	}
	return deltas
}

// parts cuts a text into pieces of a few characters.
func parts(text string) []string {
	const size = 24
	var all []string
	runes := []rune(text)
	for len(runes) > 0 {
		n := min(size, len(runes))
		all = append(all, string(runes[:n]))
		runes = runes[n:]
	}
	return all
}

// gate holds requests of chosen clients until they hang up, so that a test can
// kill a process that surely is in the middle of something.
type gate struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// hold lets the next request of the client wait; the channel is closed when it
// does.
func (g *gate) hold(client string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = map[string]chan struct{}{}
	}
	waits := make(chan struct{})
	g.held[client] = waits
	return waits
}

// holds waits until the client has hung up, if it is held, and reports whether
// it was.
func (g *gate) holds(r *http.Request, client string) bool {
	g.mu.Lock()
	waits := g.held[client]
	delete(g.held, client)
	g.mu.Unlock()
	if waits == nil {
		return false
	}
	close(waits)
	<-r.Context().Done()
	return true
}
