package webhooks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
)

// PerHost is how many messages should be on the way to one host at once.
const PerHost = 8

const (
	// attemptTime bounds one attempt, dialTime its connection.
	attemptTime = 15 * time.Second
	dialTime    = 5 * time.Second
	// maxAnswer is how much of an answer is read, so that the connection can be used again.
	maxAnswer = 64 << 10
	// maxRetryAfter bounds what a receiver may ask for.
	maxRetryAfter = 24 * time.Hour
)

// Sender posts messages. It is safe for concurrent use. It follows no redirection and uses no proxy, and connects only to addresses
// that are allowed, whatever a name resolves to.
type Sender struct {
	client  *http.Client
	allowed Networks

	mu sync.Mutex
	// hosts have the places of those who post to a host.
	hosts map[string]*host
}

type host struct {
	users  int
	places chan struct{}
}

// NewSender returns a Sender that reaches public addresses, and those of the allowed networks.
func NewSender(allowed Networks) *Sender {
	s := &Sender{allowed: allowed, hosts: map[string]*host{}}
	dialer := &net.Dialer{Timeout: dialTime, Control: s.control}
	s.client = &http.Client{
		Timeout: attemptTime,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTime, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: PerHost, MaxIdleConns: 256, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

// control is called with the address of each connection before it is made.
func (s *Sender) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !s.allowed.MayReach(at.Addr()) {
		return &errForbidden{address}
	}
	return nil
}

// Message is what is posted. Every one of the secrets signs it; without one it is not signed.
type Message struct {
	URL, ID string
	Secrets []string
	Body    []byte
	// Media is the body's type; empty: application/json. Header has further headers.
	Media  string
	Header map[string]string
}

// Outcome is how an attempt went.
type Outcome struct {
	// Status is that of the answer; 0: there is none, and Err says why, without the URL.
	Status int
	Err    error
	// After is how long the receiver asks to be left alone, at most a day.
	After time.Duration
	Took  time.Duration
}

// Delivered reports whether the receiver took the message.
func (o *Outcome) Delivered() bool { return o.Err == nil && o.Status/100 == 2 }

// Gone reports whether the receiver wants no more messages.
func (o *Outcome) Gone() bool { return o.Err == nil && o.Status == http.StatusGone }

// Reason says why a message was not delivered. It has nothing of the URL or the answer's body.
func (o *Outcome) Reason() string {
	switch {
	case o.Err != nil:
		return o.Err.Error()
	case o.Status/100 == 3:
		return fmt.Sprintf("the receiver answers %d; redirections are not followed", o.Status)
	}
	return fmt.Sprintf("the receiver answers %d %s", o.Status, http.StatusText(o.Status))
}

// Post makes one attempt, which takes at most 15 s.
func (s *Sender) Post(ctx context.Context, m Message) (o Outcome) {
	began := time.Now()
	defer func() { o.Took = time.Since(began) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err == nil {
		err = s.allowed.Check(req.URL)
	}
	if err == nil {
		for name, value := range m.Header {
			req.Header.Set(name, value)
		}
		req.Header.Set("Content-Type", cmp.Or(m.Media, "application/json"))
		req.Header.Set("User-Agent", "moorebus-webhooks")
		err = sign(req.Header, m, began)
	}
	if err != nil {
		return Outcome{Err: withoutURL(err)}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return Outcome{Err: withoutURL(err)}
	}
	defer func() { _ = resp.Body.Close() }()                         // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // what is in it does not matter
	return Outcome{Status: resp.StatusCode, After: min(retry.FromHeader(resp.Header, began), maxRetryAfter)}
}

// withoutURL takes the URL out of an error: it may hold a secret.
func withoutURL(err error) error {
	var forbidden *errForbidden
	if errors.As(err, &forbidden) {
		return forbidden
	}
	var of *url.Error
	if errors.As(err, &of) {
		if of.Timeout() {
			return fmt.Errorf("no answer within %s", attemptTime)
		}
		return of.Err
	}
	return err
}

// Enter returns the places of a URL's host, [PerHost] of them, for one who posts to it until it
// leaves. Whoever posts takes a place by sending to the channel.
func (s *Sender) Enter(address string) (places chan struct{}, leave func()) {
	name := ""
	if u, err := url.Parse(address); err == nil {
		name = u.Host
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	if h == nil {
		h = &host{places: make(chan struct{}, PerHost)}
		s.hosts[name] = h
	}
	h.users++
	return h.places, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(s.hosts, name)
		}
	}
}
