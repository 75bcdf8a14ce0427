package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// callModel is an endpoint in OpenAI's format that asks for the calculator in each step
// and then answers. It streams as such servers do: the arguments and the text in pieces
// of a token or so, each written at once.
type callModel struct {
	url    string
	steps  atomic.Int64
	server *http.Server
	ended  chan struct{}
}

func newCallModel() (*callModel, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &callModel{url: "http://" + listener.Addr().String(), ended: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", m.answer)
	m.server = &http.Server{Handler: mux, ReadHeaderTimeout: readyTime}
	go func() {
		defer close(m.ended)
		_ = m.server.Serve(listener) // ends by close
	}()
	return m, nil
}

func (m *callModel) close() {
	_ = m.server.Close()
	<-m.ended
}

// pieces are a sixth of what is sent, so that a reply has about eight chunks.
func pieces(text string) []string {
	var all []string
	size := max(1, (len(text)+5)/6)
	for len(text) > size {
		all, text = append(all, text[:size]), text[size:]
	}
	return append(all, text)
}

// lastStep is the number of the last call of a request. Reading the entire request would be
// work of the load.
func lastStep(request []byte) (n int64) {
	end := bytes.LastIndex(request, []byte(` * (17 + 4)`))
	for unit := int64(1); end > 0 && request[end-1] >= '0' && request[end-1] <= '9'; unit *= 10 {
		end--
		n += unit * int64(request[end]-'0')
	}
	return n
}

func (m *callModel) answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	step := lastStep(body)
	w.Header().Set("Content-Type", "text/event-stream")
	flush := func() { _ = http.NewResponseController(w).Flush() }
	send := func(delta any, finish string) {
		reason := "null"
		if finish != "" {
			reason = `"` + finish + `"`
		}
		text, err := json.Marshal(delta)
		if err != nil {
			panic(err) // it is made of strings
		}
		_, _ = fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`+"\n\n", text, reason)
		flush()
	}
	type object = map[string]any
	if step < m.steps.Load() {
		call := func(fields object) object { fields["index"] = 0; return object{"tool_calls": []object{fields}} }
		send(call(object{"id": fmt.Sprintf("call_%d", step), "type": "function", "function": object{"name": "calculator", "arguments": ""}}), "")
		for _, piece := range pieces(fmt.Sprintf(`{"expression":"%d * (17 + 4)"}`, step+1)) {
			send(call(object{"function": object{"arguments": piece}}), "")
		}
		send(object{}, "tool_calls")
	} else {
		send(object{"role": "assistant", "content": ""}, "")
		for _, piece := range pieces("All steps are done: " + strings.Repeat("210, ", 3) + "210.") {
			send(object{"content": piece}, "")
		}
		send(object{}, "stop")
	}
	_, _ = io.WriteString(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":20,"total_tokens":220}}`+"\n\ndata: [DONE]\n\n")
}
