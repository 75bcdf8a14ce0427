// Package sse serves server-sent events to many clients. All event streams of a gateway, in
// whatever protocol, share its [Streams]: the limits, the reader of the log, and the end.
//
// A slow or lost client costs bounded memory for a bounded time and delays no other client.
package sse

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Options are the settings of [Streams]. All but Meter are required.
type Options struct {
	// Log is what the streams follow.
	Log *sharedlog.Log
	// Heartbeat is the interval of comments.
	Heartbeat time.Duration
	// WriteTimeout is how long one write to a client may take.
	WriteTimeout time.Duration
	// Max bounds the open streams, MaxClient those of one remote address.
	Max, MaxClient int
	// Meter counts clients that are lost, and the delay of records. May be nil.
	Meter  meter.Meter
	Logger *slog.Logger
}

// Streams are the event streams of a server. They are safe for concurrent use.
type Streams struct {
	o Options
	// Clients counts the clients that read a stream now.
	Clients atomic.Int64

	// closing is closed when the streams are to end.
	closing   chan struct{}
	closeOnce sync.Once

	mu       sync.Mutex
	all      int
	byClient map[string]int
}

// New returns Streams without a stream.
func New(o Options) *Streams {
	return &Streams{o: o, closing: make(chan struct{}), byClient: map[string]int{}}
}

// Close ends the context of every stream, and of those to come.
func (s *Streams) Close() { s.closeOnce.Do(func() { close(s.closing) }) }

// Closing is closed by [Streams.Close].
func (s *Streams) Closing() <-chan struct{} { return s.closing }

// Heartbeat returns a ticker for the comments of a stream.
func (s *Streams) Heartbeat() *time.Ticker { return time.NewTicker(s.o.Heartbeat) }

// ReadAhead is how many records are read ahead of a client, so that simultaneous records are
// sent together. It is the size of the channel for [Streams.Follow].
const ReadAhead = 8

// streamRetry is when a client that was refused a stream may try again.
const streamRetry = 5 * time.Second

// Open counts a stream until done is called. It refuses a stream beyond the limits. Clients
// are distinguished by remote address, so all clients behind a proxy are one.
func (s *Streams) Open(r *http.Request) (done func(), err error) {
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr // the server is not net/http's
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.all >= s.o.Max:
		return nil, tooManyStreams("this gateway has %d open event streams, its limit; try again later, or use another gateway", s.o.Max)
	case s.byClient[client] >= s.o.MaxClient:
		return nil, tooManyStreams("your address has %d open event streams, the limit for one address; close some, or follow all runs with GET /v1/events", s.o.MaxClient)
	}
	s.all++
	s.byClient[client]++
	return func() { s.done(client) }, nil
}

func (s *Streams) done(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.byClient[client]--; s.byClient[client] == 0 {
		delete(s.byClient, client)
	}
}

func tooManyStreams(format string, most int) error {
	e := refusal.New(refusal.TooMany, refusal.CodeTooManyStreams, format, most)
	e.RetryAfter = streamRetry
	return e
}

// Context returns the context of a stream, which ends with the request or with the server.
func (s *Streams) Context(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(r.Context())
	ended := make(chan struct{})
	go func() {
		select {
		case <-s.closing:
			stop()
		case <-ctx.Done():
		}
		close(ended)
	}()
	return ctx, func() { stop(); <-ended }
}

// Record is a record of a shard.
type Record struct {
	Shard int
	journal.Record
}

// Follow sends a shard's records to out until the context ends. Then it closes done.
func (s *Streams) Follow(ctx context.Context, shard int, filter journal.Filter, after uint64, out chan<- Record) (done chan struct{}) {
	done = make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		for rec, err := range s.o.Log.Follow(ctx, shard, filter, after) {
			if err != nil {
				if ctx.Err() == nil {
					s.o.Logger.Warn("an event stream was interrupted", "shard", shard, "reason", err)
				}
				return
			}
			select {
			case out <- Record{shard, rec}:
				if rec.Stored.After(began) {
					meter.Since(s.o.Meter, meter.FeedDelay, rec.Stored)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}
