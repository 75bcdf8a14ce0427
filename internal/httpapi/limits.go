package httpapi

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/refusal"
)

// streamRetry is when a client that was refused a stream may try again.
const streamRetry = 5 * time.Second

// openStreams counts open event streams, in total and by client.
type openStreams struct {
	most, mostOfClient int

	mu       sync.Mutex
	all      int
	byClient map[string]int
}

// open counts a stream until done is called. It refuses a stream beyond the limits. Clients
// are told apart by remote address, so all clients behind a proxy are one.
func (o *openStreams) open(r *http.Request) (done func(), err error) {
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr // the server is not net/http's
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.all >= o.most:
		return nil, tooManyStreams("this gateway has %d open event streams, its limit; try again later, or use another gateway", o.most)
	case o.byClient[client] >= o.mostOfClient:
		return nil, tooManyStreams("your address has %d open event streams, the limit for one address; close some, or follow all runs with GET /v1/events", o.mostOfClient)
	}
	o.all++
	o.byClient[client]++
	return func() { o.close(client) }, nil
}

func (o *openStreams) close(client string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all--
	if o.byClient[client]--; o.byClient[client] == 0 {
		delete(o.byClient, client)
	}
}

func tooManyStreams(format string, most int) error {
	e := refusal.New(refusal.TooMany, refusal.CodeTooManyStreams, format, most)
	e.RetryAfter = streamRetry
	return e
}
