// Package gatewaylog is a gateway as commands use it over HTTP: the connection for their requests,
// and reading the log and the live feed.
//
// What the gateway refuses is the *refusal.Error with the code that the gateway gave.
package gatewaylog

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Options name a gateway.
type Options struct {
	// URL is where its paths begin, such as https://moorebus.example/agents.
	URL string
	// Token is its bearer token; may be empty.
	Token string
	// CA is a file of certificates (PEM) that sign the gateway's; empty: those of the system.
	CA string
	// Cert and Key are files of the client's own certificate (PEM), for a gateway that wants one.
	// They are read for each connection. May be empty.
	Cert, Key string
}

// ErrCertificateWanted says that a gateway lets in only clients with a certificate.
var ErrCertificateWanted = errors.New("the gateway lets in only clients with a certificate")

// Client speaks to one gateway. It is safe for concurrent use.
type Client struct {
	// API sends the requests.
	API    route.Client
	token  string
	http   *http.Client
	shards int
	// wanted says that the gateway asked for a certificate, and there is none. answered says that it
	// has answered all the same.
	wanted, answered *atomic.Bool

	mu sync.Mutex
	// marks are the last records that were read of runs.
	marks map[events.Run]mark
}

// mark is the place of a record: its number in the log, and that in its run.
type mark struct{ seq, n uint64 }

// How long a gateway may take: to accept a connection, for a request in all, and between two
// parts of a stream, which has comments while nothing happens.
const (
	dialTimeout    = 10 * time.Second
	requestTimeout = time.Minute
	silence        = time.Minute
)

// New returns a client, which is not connected. A URL or CA that cannot be is an error.
func New(o Options) (*Client, error) {
	base, err := checkURL(o.URL)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.ResponseHeaderTimeout = requestTimeout
	wanted := new(atomic.Bool)
	transport.TLSClientConfig = &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		wanted.Store(true)
		return new(tls.Certificate), nil // what the gateway says then is lost if it hangs up first
	}}
	if o.Cert != "" {
		read := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
			return &pair, err
		}
		if _, err := read(nil); err != nil {
			return nil, fmt.Errorf("%s and %s: %w", o.Cert, o.Key, err)
		}
		transport.TLSClientConfig.GetClientCertificate = read
	}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", o.CA)
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	c := &Client{
		token: o.Token, wanted: wanted, answered: new(atomic.Bool), marks: map[events.Run]mark{},
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	c.API = route.Client{URL: base, Transport: c, Timeout: requestTimeout}
	return c, nil
}

// Connect asks the gateway how its log is laid out, which all other methods need. What answers as
// no gateway does is an error, and a wrong token a refusal, unauthorized.
func (c *Client) Connect(ctx context.Context) error {
	at, err := c.position(ctx)
	if refusal.Is(err, refusal.CodeNotFound) {
		return c.API.NotAGateway(err.Error())
	}
	c.shards = len(at)
	return err
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func checkURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("%q is not the URL of a gateway; write it as in https://moorebus.example", u.Redacted())
	case u.User != nil:
		return "", errors.New("the URL of a gateway has no user; give the token apart")
	case u.RawQuery != "", u.Fragment != "":
		return "", fmt.Errorf("%q is not the URL of a gateway: it has a query or a fragment", text)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// RoundTrip sends a request with the token. Its errors, and those of the answer, say whether a later
// attempt may not meet them.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if err != nil && c.lacksCertificate(err) {
		return nil, ErrCertificateWanted
	}
	if err != nil {
		return nil, away(err)
	}
	c.wanted.Store(false)
	c.answered.Store(true)
	resp.Body = answerBody{resp.Body}
	return resp, nil
}

// answerBody is an answer whose errors are those of [away].
type answerBody struct{ io.ReadCloser }

func (b answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = away(err)
	}
	return n, err
}

// lacksCertificate reports whether a connection failed because there is no certificate: the
// gateway refused it by an alert of TLS, or hung up before the alert could be read, for which
// HTTP/2 has errors of its own. One that has answered without a certificate may hang up for any reason.
func (c *Client) lacksCertificate(err error) bool {
	var unsigned *tls.CertificateVerificationError
	var late net.Error
	var op *net.OpError
	errors.As(err, &op)
	switch {
	case !c.wanted.Load(), errors.Is(err, context.Canceled), errors.As(err, &late) && late.Timeout(), errors.As(err, &unsigned):
		return false
	case op != nil && op.Op == "remote error":
		return true
	case op != nil && op.Op == "dial":
		return false
	}
	return !c.answered.Load()
}

// away makes the error of a connection one that a later attempt may not meet. A certificate that
// nobody signed stays what it is, and so does TLS that the gateway refuses or has not.
func away(err error) error {
	var unsigned *tls.CertificateVerificationError
	var remote *net.OpError
	switch {
	case errors.As(err, &unsigned), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert of TLS
		return fmt.Errorf("the gateway refuses this client's certificate, or its TLS: %w", err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%w; the gateway has no TLS, so its URL begins with http", err)
	}
	return refusal.Wrap(err, refusal.Unavailable, refusal.CodeUnavailable, "%s", err.Error())
}

// position returns where the log ends.
func (c *Client) position(ctx context.Context) (logwalk.Position, error) {
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	defer stop()
	r, err := requests.FollowEvents.Request(ctx, c.API, requests.AllEvents{})
	if err != nil {
		return nil, err
	}
	r.Method = http.MethodHead
	resp, err := c.API.Send(r)
	if err != nil {
		// An answer to HEAD has no body that says why.
		_, why := requests.Version.Call(ctx, c.API, requests.None{})
		return nil, cmp.Or(why, err)
	}
	_ = resp.Body.Close() // it is empty
	text := resp.Header.Get(requests.PositionHeader)
	at, err := make(logwalk.Position, strings.Count(text, ",")+1).Parse(text)
	if err != nil {
		return nil, c.API.NotAGateway("without the header " + requests.PositionHeader)
	}
	return at, nil
}
