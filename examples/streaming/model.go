package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// words is what the model says.
const words = "Because whatever else there is can be thrown away and made of it again."

// model answers every request with words, one at a time.
type model struct{ pace func() }

// ServeHTTP streams the words as OpenAI's chat completions do.
func (m model) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i, word := range strings.SplitAfter(words, " ") {
		if i > 0 {
			m.pace()
		}
		send(w, map[string]any{"delta": map[string]string{"role": "assistant", "content": word}})
	}
	send(w, map[string]any{"delta": map[string]string{}, "finish_reason": "stop"})
	_, _ = fmt.Fprint(w, "data: [DONE]\n\n")
}

func send(w http.ResponseWriter, choice map[string]any) {
	choice["index"] = 0
	data, err := json.Marshal(map[string]any{"id": "1", "object": "chat.completion.chunk", "model": "local", "choices": []any{choice}})
	if err != nil {
		return // it is made of strings and numbers
	}
	_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}
