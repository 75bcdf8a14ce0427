package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// endpoint answers a model's calls, in OpenAI's format, and those of the tool
// `slow`, each after a time.
type endpoint struct {
	server   *http.Server
	url      string
	wait     time.Duration
	inFlight atomic.Int64
	peak     atomic.Int64
	answered atomic.Int64
	ended    chan struct{}
	// The wait of each call begins when the gate is open: when together calls are
	// there, or open was called.
	together int64
	came     atomic.Int64
	gate     chan struct{}
	openOnce sync.Once
	// top is when the peak was reached, in nanoseconds.
	top atomic.Int64
}

// gatherTime bounds how long a call waits at the gate.
const gatherTime = 45 * time.Second

// newEndpoint listens on loopback. Its gate is open if together is 0, and waits for
// so many calls if it is more.
func newEndpoint(wait time.Duration, together int) (*endpoint, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &endpoint{
		url: "http://" + listener.Addr().String(), wait: wait, ended: make(chan struct{}),
		together: int64(together), gate: make(chan struct{}),
	}
	if together == 0 {
		e.open()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.model)
	mux.HandleFunc("POST /tools/slow", e.tool)
	e.server = &http.Server{Handler: mux, ReadHeaderTimeout: readyTime}
	go func() {
		defer close(e.ended)
		_ = e.server.Serve(listener) // ends by close
	}()
	return e, nil
}

func (e *endpoint) close() {
	_ = e.server.Close()
	<-e.ended
}

// shut is for newEndpoint: the gate is open only after open was called.
const shut = -1

// open lets calls through the gate.
func (e *endpoint) open() { e.openOnce.Do(func() { close(e.gate) }) }

// hold counts the call for as long as it is answered, and waits.
func (e *endpoint) hold(r *http.Request) (answer bool) {
	defer e.inFlight.Add(-1)
	for now := e.inFlight.Add(1); ; {
		peak := e.peak.Load()
		if now <= peak {
			break
		}
		if e.peak.CompareAndSwap(peak, now) {
			e.top.Store(time.Now().UnixNano())
			break
		}
	}
	if e.came.Add(1) == e.together {
		e.open()
	}
	late := time.NewTimer(gatherTime)
	defer late.Stop()
	select {
	case <-e.gate:
	case <-late.C:
	case <-r.Context().Done():
		return false
	}
	if !idle(r.Context(), e.wait) {
		return false
	}
	e.answered.Add(1)
	return true
}

// full is when the most calls were in flight.
func (e *endpoint) full() time.Time { return time.Unix(0, e.top.Load()) }

// env is what makes a planner ask this endpoint.
func (e *endpoint) env() []string { return []string{"OPENAI_BASE_URL=" + e.url + "/v1"} }

// tool answers with a word.
func (e *endpoint) tool(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if e.hold(r) {
		_, _ = io.WriteString(w, "done")
	}
}

// The parts of a reply that says one word.
const (
	chunkText  = `{"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"role":"assistant","content":"Done."},"finish_reason":null}]}`
	chunkEnd   = `{"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	chunkUsage = `{"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}}`
	replyWhole = `{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22}}`
)

func (e *endpoint) model(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Stream bool `json:"stream"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !e.hold(r) {
		return
	}
	if !request.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, replyWhole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, "data: %s\n\ndata: %s\n\ndata: %s\n\ndata: [DONE]\n\n", chunkText, chunkEnd, chunkUsage)
}
