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
	"strconv"
	"strings"
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
	g.def = definition(httpGetName, "Fetches a page by HTTP GET and returns its text. Allowed hosts: "+hosts.String()+".", httpGetSchema)
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

// dial connects only to addresses that the host's entry allows. It checks the address after
// the name was resolved, so that no name can lead to another host.
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
	f.NotSent, f.Err = errors.As(err, &dial) && dial.Op == "dial", err
	return f
}

func statusFailure(res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody+1)) // what could be read is enough
	f := tool.Failf(tool.CodeHTTPStatus, "HTTP status %d: %s", res.StatusCode, truncate.Result(string(body), maxErrorBody, res.ContentLength))
	f.Passing = res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500
	if f.RetryAfter = retry.FromHeader(res.Header, time.Now()); f.RetryAfter > 0 {
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

// trust is how much an entry of the list of hosts vouches for an address.
type trust int

const (
	trustNone    trust = iota
	trustPublic        // matched by a wildcard: public addresses only
	trustName          // listed by name: also private and loopback addresses
	trustAddress       // listed by address: that address, whatever it is
)

// hostRule is one entry of the list.
type hostRule struct {
	host  string // lower case; without "*" where it is a wildcard
	port  string // "" stands for 80 and 443
	trust trust
}

// hostList decides whom http_get may ask.
type hostList []hostRule

func newHostList(entries []string) (hostList, error) {
	if len(entries) == 0 {
		return nil, errors.New("http_get needs a list of allowed hosts")
	}
	var list hostList
	for _, entry := range entries {
		rule, err := parseHost(strings.ToLower(strings.TrimSpace(entry)))
		if err != nil {
			return nil, fmt.Errorf("http_get: host %q: %w", entry, err)
		}
		list = append(list, rule)
	}
	return list, nil
}

func parseHost(entry string) (hostRule, error) {
	rule := hostRule{host: strings.Trim(entry, "[]"), trust: trustName}
	if host, port, err := net.SplitHostPort(entry); err == nil {
		rule.host, rule.port = host, port
	}
	if _, err := strconv.ParseUint(rule.port, 10, 16); rule.port != "" && err != nil {
		return hostRule{}, errHostForm
	}
	if addr, err := netip.ParseAddr(rule.host); err == nil {
		rule.host, rule.trust = addr.String(), trustAddress
		return rule, nil
	}
	if below, ok := strings.CutPrefix(rule.host, "*."); ok {
		rule.host, rule.trust = "."+below, trustPublic
	}
	rule.host = strings.TrimSuffix(rule.host, ".")
	if rule.host == "" || rule.host == "." || strings.ContainsAny(rule.host, "*/:@?# ") {
		return hostRule{}, errHostForm
	}
	return rule, nil
}

var errHostForm = errors.New("write example.org, example.org:8080, *.example.org or an IP address")

// match returns how far host and port are trusted.
func (l hostList) match(host, port string) trust {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
	}
	best := trustNone
	for _, rule := range l {
		if rule.port != port && (rule.port != "" || port != "80" && port != "443") {
			continue
		}
		if rule.host == host || rule.trust == trustPublic && strings.HasSuffix(host, rule.host) {
			best = max(best, rule.trust)
		}
	}
	return best
}

// check refuses what is not an http or https URL of an allowed host.
func (l hostList) check(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return invalid("the URL must begin with http:// or https://")
	}
	if u.User != nil {
		return invalid("the URL must not contain a user name or password")
	}
	if u.Hostname() == "" {
		return invalid("the URL has no host")
	}
	if l.match(u.Hostname(), portOf(u)) == trustNone {
		return invalid("the host %q is not allowed; allowed are: %s", u.Host, l)
	}
	return nil
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// String lists the hosts as they are written in the settings.
func (l hostList) String() string {
	names := make([]string, len(l))
	for i, rule := range l {
		names[i] = rule.host
		if rule.trust == trustPublic {
			names[i] = "*" + rule.host
		}
		if rule.port != "" {
			names[i] = net.JoinHostPort(names[i], rule.port)
		}
	}
	return strings.Join(names, ", ")
}

// special are the ranges that netip does not know as private but that are not
// the public internet either.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
}

// mayDial reports whether the address that a name was resolved to is allowed. Link-local ones
// (where clouds keep credentials) have to be listed by address.
func mayDial(t trust, addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if t == trustAddress {
		return true
	}
	if addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
		return false
	}
	if t == trustName {
		return true
	}
	for _, p := range special {
		if p.Contains(addr) {
			return false
		}
	}
	return t == trustPublic && !addr.IsPrivate() && !addr.IsLoopback()
}
