// Package faultserver is an HTTP server that fails in every way that endpoints
// of tools and models do. It is for tests.
//
// Each [Fault] has its own address; what follows it in the path does not
// matter, so that an address may be the base URL of a client. Faults that never
// end do so until the client goes away or the server is closed.
package faultserver

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Fault is a way to fail.
type Fault string

// The faults.
const (
	// Refused has nobody listening.
	Refused Fault = "refused"
	// Reset takes the request and resets the connection.
	Reset Fault = "reset"
	// Half sends half of the body that it announced and closes.
	Half Fault = "half"
	// Silent takes the request and never answers.
	Silent Fault = "silent"
	// SlowLoris sends headers forever, a byte at a time.
	SlowLoris Fault = "slow_loris"
	// Stops sends the beginning of a body and then nothing.
	Stops Fault = "stops"
	// Busy answers 429; BusyFor does so with a Retry-After of two minutes.
	Busy    Fault = "busy"
	BusyFor Fault = "busy_for"
	// Broken answers 500.
	Broken Fault = "broken"
	// InvalidJSON says that it sends JSON, and does not.
	InvalidJSON Fault = "invalid_json"
	// WrongType sends JSON, and says that it is HTML.
	WrongType Fault = "wrong_type"
)

// All returns every fault.
func All() []Fault {
	return []Fault{Refused, Reset, Half, Silent, SlowLoris, Stops, Busy, BusyFor, Broken, InvalidJSON, WrongType}
}

// Server fails on loopback. It is safe for concurrent use.
type Server struct {
	server  *httptest.Server
	refused string
	closing chan struct{}

	mu       sync.Mutex
	requests map[Fault]int
}

// New returns a server that listens. Close it.
func New() (*Server, error) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{refused: "http://" + gone.Addr().String(), closing: make(chan struct{}), requests: map[Fault]int{}}
	if err := gone.Close(); err != nil {
		return nil, err
	}
	s.server = httptest.NewServer(s)
	return s, nil
}

// URL returns the address of a fault, without a slash at its end.
func (s *Server) URL(f Fault) string {
	if f == Refused {
		return s.refused + "/" + string(f)
	}
	return s.server.URL + "/" + string(f)
}

// Requests returns how many requests a fault has seen; none can be seen of
// [Refused].
func (s *Server) Requests(f Fault) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[f]
}

// Close ends what never ends, and the server.
func (s *Server) Close() {
	close(s.closing)
	s.server.CloseClientConnections()
	s.server.Close()
}

// ServeHTTP fails as the path says.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	s.requests[Fault(name)]++
	s.mu.Unlock()
	switch Fault(name) {
	case Reset, Half, SlowLoris:
		s.raw(w, Fault(name))
	case Silent:
		s.forever(r)
	case Stops:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"begun": `)
		_ = http.NewResponseController(w).Flush()
		s.forever(r)
	case BusyFor:
		w.Header().Set("Retry-After", "120")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case Busy:
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case Broken:
		http.Error(w, "it broke", http.StatusInternalServerError)
	case InvalidJSON:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"not": json`)
	case WrongType:
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, `{"fine": true}`)
	default:
		http.NotFound(w, r)
	}
}

// forever waits until nobody does any more.
func (s *Server) forever(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-s.closing:
	}
}

// raw writes what no HTTP server would.
func (s *Server) raw(w http.ResponseWriter, f Fault) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic("a connection cannot be taken over: " + err.Error())
	}
	defer func() { _ = conn.Close() }()
	switch f {
	case Reset:
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	case Half:
		_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"half\": ")
	case SlowLoris:
		s.drip(conn)
	}
}

// drip sends a header that never ends.
func (s *Server) drip(conn net.Conn) {
	if _, err := fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nX-Slow: "); err != nil {
		return
	}
	rhythm := time.NewTicker(10 * time.Millisecond)
	defer rhythm.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-rhythm.C:
		}
		if _, err := conn.Write([]byte("a")); err != nil {
			return
		}
	}
}
