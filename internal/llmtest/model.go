package llmtest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Model is a model server that plays a conversation in the format of a
// provider's API. Which turn a request is about follows from the replies in it.
type Model struct {
	wire Wire
	conv Conversation

	mu       sync.Mutex
	requests [][]byte
}

// NewModel returns a handler that answers a run's first request with the first
// turn, its second one with the second, and refuses what goes beyond them.
func NewModel(wire Wire, turns ...Turn) *Model { return &Model{wire: wire, conv: turns} }

// Serve starts a server of the model for as long as the test runs and returns its
// address.
func (m *Model) Serve(t testing.TB) string {
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return server.URL
}

// Requests returns the bodies of the requests that came, in order.
func (m *Model) Requests() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// ServeHTTP answers one request, streamed where that is asked for.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // nobody is there any more
	}
	m.mu.Lock()
	m.requests = append(m.requests, body)
	m.mu.Unlock()
	req, err := m.wire.Read(body)
	turn := Turn{Err: &llm.Error{Kind: llm.KindInvalid, Message: "the conversation has no such turn"}}
	if err == nil && req.Turn < len(m.conv) {
		turn = m.conv[req.Turn]
	}
	switch {
	case turn.Hang:
		<-r.Context().Done()
	case turn.Err != nil:
		refuse(w, m.wire, turn.Err)
	case req.Stream:
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range m.wire.Events(turn, req) {
			_, _ = io.WriteString(w, event)
		}
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, m.wire.Plain(turn, req))
	}
}

func refuse(w http.ResponseWriter, wire Wire, e *llm.Error) {
	status, body, _ := wire.Error(e)
	w.Header().Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatFloat(e.RetryAfter.Seconds(), 'f', -1, 64))
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}
