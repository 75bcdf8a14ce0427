package llmtest

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Fault is something that goes wrong with a model server which speaks OpenAI's
// protocol over HTTP.
type Fault struct {
	Name string
	// Kind is the error that a call comes to whose every request meets the fault.
	Kind llm.ErrorKind
	// StreamOnly says that a plain request does not meet it.
	StreamOnly bool

	serve func(w http.ResponseWriter, r *http.Request, stream bool)
}

// Faults returns every fault, but for a server that refuses the connection: that
// is one which is not there.
func Faults() []Fault {
	return []Fault{
		{Name: "reset", Kind: llm.KindNetwork, serve: reset},
		{Name: "half a response", Kind: llm.KindNetwork, serve: half},
		{Name: "no response", Kind: llm.KindNetwork, serve: func(_ http.ResponseWriter, r *http.Request, _ bool) { <-r.Context().Done() }},
		{Name: "slow loris", Kind: llm.KindNetwork, serve: trickle},
		{Name: "429 with Retry-After", Kind: llm.KindRateLimited, serve: limited(http.Header{"Retry-After-Ms": {"20"}})},
		{Name: "429 without Retry-After", Kind: llm.KindRateLimited, serve: limited(nil)},
		{Name: "500", Kind: llm.KindOverloaded, serve: refusal(http.StatusInternalServerError, "application/json", `{"error":{"message":"boom","type":"server_error"}}`)},
		{Name: "500 without a body", Kind: llm.KindOverloaded, serve: refusal(http.StatusInternalServerError, "text/plain", "")},
		{Name: "invalid JSON", Kind: llm.KindOther, serve: invalid},
		{Name: "wrong content type", Kind: llm.KindOther, serve: refusal(http.StatusOK, "text/html", "<html>Please log in.</html>")},
		{Name: "a stream that stops", StreamOnly: true, serve: stops},
		{Name: "a stream that ends early", StreamOnly: true, serve: endsEarly},
	}
}

// Server answers the first faulty requests with the fault (all of them if faulty
// is negative), and the others with the text, streamed where that is asked for.
// It counts the requests.
type Server struct {
	Fault    Fault
	Faulty   int64
	Text     string
	requests atomic.Int64
}

// Requests returns how many requests came.
func (s *Server) Requests() int { return int(s.requests.Load()) }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.requests.Add(1)
	var body struct {
		Stream bool `json:"stream"`
	}
	// A request that cannot be read is none that asks for a stream.
	_ = json.NewDecoder(r.Body).Decode(&body)
	if (s.Faulty < 0 || n <= s.Faulty) && (body.Stream || !s.Fault.StreamOnly) {
		s.Fault.serve(w, r, body.Stream)
		return
	}
	if !body.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, completion(s.Text))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, event(s.Text, "")+event("", "stop")+"data: [DONE]\n\n")
}

// completion is a plain reply.
func completion(text string) string {
	return `{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":` +
		quoted(text) + `}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
}

// event is a part of a streamed reply; finish is empty but in the last one.
func event(text, finish string) string {
	reason := "null"
	if finish != "" {
		reason = quoted(finish)
	}
	return `data: {"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":` +
		quoted(text) + `},"finish_reason":` + reason + "}]}\n\n"
}

func quoted(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		panic("a text does not marshal: " + err.Error())
	}
	return string(data)
}

// reset ends the connection hard.
func reset(w http.ResponseWriter, _ *http.Request, _ bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// half breaks the connection off in the middle of a reply.
func half(w http.ResponseWriter, _ *http.Request, stream bool) {
	text := completion("half of it is missing")
	w.Header().Set("Content-Type", "application/json")
	if stream {
		text = event("half of it is missing", "")
		w.Header().Set("Content-Type", "text/event-stream")
	}
	_, _ = io.WriteString(w, text[:len(text)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// trickle sends a byte now and then, for as long as somebody listens.
func trickle(w http.ResponseWriter, r *http.Request, stream bool) {
	w.Header().Set("Content-Type", "application/json")
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func limited(header http.Header) func(http.ResponseWriter, *http.Request, bool) {
	refuse := refusal(http.StatusTooManyRequests, "application/json", `{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}`)
	return func(w http.ResponseWriter, r *http.Request, stream bool) {
		for key, values := range header {
			w.Header()[key] = values
		}
		refuse(w, r, stream)
	}
}

func refusal(status int, contentType, body string) func(http.ResponseWriter, *http.Request, bool) {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func invalid(w http.ResponseWriter, _ *http.Request, stream bool) {
	w.Header().Set("Content-Type", "application/json")
	text := completion("x")
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
		text = event("x", "")
	}
	_, _ = io.WriteString(w, strings.Replace(text, `"choices"`, `choices`, 1))
}

// stops sends the beginning of a stream and then nothing more.
func stops(w http.ResponseWriter, r *http.Request, _ bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, event("the beginning of", ""))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// endsEarly ends a stream in order, but before the reply is complete.
func endsEarly(w http.ResponseWriter, _ *http.Request, _ bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, event("the beginning of", "")+"data: [DONE]\n\n")
}
