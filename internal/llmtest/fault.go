package llmtest

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Fault is something that goes wrong with a model server.
type Fault struct {
	Name string
	// Kind is the error of a plain call that meets the fault, and of a streamed one, unless
	// the stream had begun: that is [llm.KindBroken].
	Kind llm.ErrorKind
	// StreamOnly says that a plain request does not meet it.
	StreamOnly bool
	// Hangs says that the reply never ends: only the caller's timeout ends the
	// request.
	Hangs bool

	serve func(x reply, w http.ResponseWriter, r *http.Request)
}

// reply is one that is being made: whole, or as events.
type reply struct {
	wire   Wire
	plain  string
	events []string // nil where no stream was asked for
}

func (x reply) stream() bool { return x.events != nil }

// begin says what kind of reply follows.
func (x reply) begin(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if x.stream() {
		w.Header().Set("Content-Type", "text/event-stream")
	}
}

// first is the beginning of the reply, in whole events if it is a stream.
func (x reply) first() string {
	if x.stream() {
		return strings.Join(x.events[:len(x.events)/2], "")
	}
	return x.plain[:len(x.plain)/2]
}

// Faults returns every fault except a refused connection, which needs no server.
func Faults() []Fault {
	return []Fault{
		{Name: "reset", Kind: llm.KindNetwork, serve: reset},
		{Name: "half a response", Kind: llm.KindNetwork, serve: half},
		{Name: "no response", Kind: llm.KindNetwork, Hangs: true, serve: func(_ reply, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{Name: "slow loris", Kind: llm.KindNetwork, Hangs: true, serve: trickle},
		{Name: "429 with Retry-After", Kind: llm.KindRateLimited, serve: limited("20")},
		{Name: "429 without Retry-After", Kind: llm.KindRateLimited, serve: limited("")},
		{Name: "overloaded", Kind: llm.KindOverloaded, serve: stated(&llm.Error{Kind: llm.KindOverloaded, Message: "boom"})},
		{Name: "500 without a body", Kind: llm.KindOverloaded, serve: refusal(http.StatusInternalServerError, "text/plain", "")},
		{Name: "invalid JSON", Kind: llm.KindOther, serve: invalid},
		{Name: "wrong content type", Kind: llm.KindOther, serve: refusal(http.StatusOK, "text/html", "<html>Please log in.</html>")},
		{Name: "a stream that stops", Kind: llm.KindBroken, StreamOnly: true, Hangs: true, serve: stops},
		{Name: "a stream that ends early", Kind: llm.KindBroken, StreamOnly: true, serve: endsEarly},
	}
}

// Server answers the first faulty requests with the fault (all of them if faulty
// is negative), and the others with the text, streamed where that is asked for.
// It counts the requests.
type Server struct {
	// Wire is the format that it speaks; nil is [OpenAI].
	Wire     Wire
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
	x := reply{wire: s.Wire}
	if x.wire == nil {
		x.wire = OpenAI{}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // nobody is there any more
	}
	req, _ := x.wire.Read(body) // a request that cannot be read is none that asks for a stream
	turn := Turn{Reply: llm.Text{Content: s.Text, Meta: llm.Meta{Model: "m", Usage: llm.Usage{Input: 1, Output: 1, Total: 2}}}}
	x.plain = x.wire.Plain(turn, req)
	if req.Stream {
		x.events = x.wire.Events(turn, req)
	}
	if (s.Faulty < 0 || n <= s.Faulty) && (req.Stream || !s.Fault.StreamOnly) {
		s.Fault.serve(x, w, r)
		return
	}
	x.begin(w)
	if req.Stream {
		x.plain = strings.Join(x.events, "")
	}
	_, _ = io.WriteString(w, x.plain)
}

// reset ends the connection hard.
func reset(_ reply, w http.ResponseWriter, _ *http.Request) {
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
func half(x reply, w http.ResponseWriter, _ *http.Request) {
	x.begin(w)
	_, _ = io.WriteString(w, x.first()[:len(x.first())-1])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// trickle sends a byte now and then, for as long as somebody listens.
func trickle(x reply, w http.ResponseWriter, r *http.Request) {
	x.begin(w)
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

// limited is a rate limit that asks for a wait in milliseconds, or for none.
func limited(wait string) func(reply, http.ResponseWriter, *http.Request) {
	return func(x reply, w http.ResponseWriter, r *http.Request) {
		if wait != "" {
			w.Header().Set("Retry-After-Ms", wait)
		}
		refuse(w, x.wire, &llm.Error{Kind: llm.KindRateLimited, Message: "slow down"})
	}
}

func stated(e *llm.Error) func(reply, http.ResponseWriter, *http.Request) {
	return func(x reply, w http.ResponseWriter, _ *http.Request) { refuse(w, x.wire, e) }
}

func refusal(status int, contentType, body string) func(reply, http.ResponseWriter, *http.Request) {
	return func(_ reply, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func invalid(x reply, w http.ResponseWriter, _ *http.Request) {
	x.begin(w)
	text := x.plain
	if x.stream() {
		text = x.events[0]
	}
	_, _ = io.WriteString(w, strings.Replace(text, `"model"`, `model`, 1))
}

// stops sends the beginning of a stream and then nothing more.
func stops(x reply, w http.ResponseWriter, r *http.Request) {
	x.begin(w)
	_, _ = io.WriteString(w, x.first())
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// endsEarly ends a stream in order, but before the reply is complete.
func endsEarly(x reply, w http.ResponseWriter, _ *http.Request) {
	x.begin(w)
	_, _ = io.WriteString(w, x.first())
}
