package builtin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

const httpGetSchema = `{"type":"object","properties":{"url":{"type":"string",` +
	`"description":"The address, with http:// or https://","minLength":1}},"required":["url"],"additionalProperties":false}`

const (
	maxRedirects = 5
	maxErrorBody = 4 << 10
	dialTimeout  = 10 * time.Second
)

// httpGet fetches pages from the allowed hosts.
type httpGet struct {
	def    tool.Definition
	hosts  hostList
	client *http.Client
	max    int64
}

func newHTTPGet(opts Options) (*httpGet, error) {
	hosts, err := newHostList(opts.Hosts)
	if err != nil {
		return nil, err
	}
	g := &httpGet{hosts: hosts, max: opts.MaxBytes}
	g.def = definition(HTTPGet, "Fetches a page by HTTP GET and returns its text. Allowed hosts: "+hosts.String()+".", httpGetSchema)
	g.def.Timeout = opts.Timeout
	g.client = &http.Client{
		CheckRedirect: g.redirect,
		// No proxy: the addresses that are dialled have to be the hosts' own.
		Transport: &http.Transport{
			DialContext: g.dial, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8,
			IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: dialTimeout,
		},
	}
	return g, nil
}

// Definition returns the tool's definition.
func (g *httpGet) Definition() tool.Definition { return g.def }

// Close lets go of idle connections.
func (g *httpGet) Close() error {
	g.client.CloseIdleConnections()
	return nil
}

// Run takes {"url"} and returns the body of a 2xx answer as text.
func (g *httpGet) Run(ctx context.Context, call tool.Call) (string, error) {
	var in struct {
		URL string `json:"url"`
	}
	if err := decode(call.Arguments, &in); err != nil {
		return "", err
	}
	u, err := url.Parse(in.URL)
	if err != nil {
		return "", invalid("the URL cannot be parsed")
	}
	if err := g.hosts.check(u); err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", invalid("the URL cannot be used: %v", err)
	}
	req.Header.Set("User-Agent", "moorebus")
	req.Header.Set("Idempotency-Key", call.IdempotencyKey())
	res, err := g.client.Do(req)
	if err != nil {
		return "", g.failure(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return "", statusFailure(res)
	}
	return g.read(ctx, res)
}

func (g *httpGet) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return tool.Failf(tool.CodeFailed, "more than %d redirects", maxRedirects)
	}
	return g.hosts.check(req.URL)
}

// dial connects only to addresses that the host's entry vouches for. It looks at
// the address after the name was resolved, so that no name can lead elsewhere.
func (g *httpGet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	t := g.hosts.match(host, port)
	d := net.Dialer{Timeout: dialTimeout, Control: func(_, resolved string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(resolved)
		if err != nil || !mayDial(t, to.Addr()) {
			return tool.Failf(tool.CodeInvalidArguments, "the host %q has an address that is not public", host)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}

// failure is the classifier of the client's errors.
func (g *httpGet) failure(ctx context.Context, err error) error {
	var refused *tool.Failure
	if errors.As(err, &refused) {
		return tool.Failf(refused.Code, "%s", refused.Message)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fetching the page: %w", ctx.Err())
	}
	f := tool.Failf(tool.CodeUnreachable, "the host cannot be reached: %v", err)
	var dial *net.OpError
	f.NotSent = errors.As(err, &dial) && dial.Op == "dial"
	return f
}

func statusFailure(res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody+1)) // what could be read is enough
	f := tool.Failf(tool.CodeHTTPStatus, "HTTP status %d: %s", res.StatusCode, truncate.Result(string(body), maxErrorBody, res.ContentLength))
	f.Passing = res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500
	if f.RetryAfter = retry.ParseHeader(res.Header.Get("Retry-After"), time.Now()); f.RetryAfter > 0 {
		f.Message += fmt.Sprintf(" (try again in %s)", f.RetryAfter.Round(time.Second))
	}
	return f
}

func (g *httpGet) read(ctx context.Context, res *http.Response) (string, error) {
	data, err := io.ReadAll(io.LimitReader(res.Body, g.max+1))
	if err != nil {
		return "", g.failure(ctx, err)
	}
	if looksBinary(data) {
		return "", tool.Failf(tool.CodeFailed, "the page is not text (%s)", res.Header.Get("Content-Type"))
	}
	return truncate.Result(string(data), g.max, res.ContentLength), nil
}
