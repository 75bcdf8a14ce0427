// Package httptool makes tools of HTTP endpoints.
//
// The request's body is the model's arguments, byte for byte (`{}` for empty arguments).
// With method GET the arguments become query parameters and must be a flat object. Every
// request has the headers `Idempotency-Key: <run>/<call id>`, `X-Moorebus-Run` and
// `X-Moorebus-Call`. The result is the body of a 2xx reply as text, whatever its content
// type, except that an image or a PDF whose bytes are no text is kept with the result and
// shown to models that take it. Everything else is a failure:
//
//   - http_status: any other status, with the status and the start of the body. 429 and 5xx
//     pass (see [tool.Failure]). Redirects are followed only for GET and within the same
//     host; any other redirect is such a failure.
//   - unreachable: no complete reply came. NotSent is true if no connection was made.
//     Otherwise a tool of class once gets the code outcome_unknown.
//
// Header values, and the path and query of the configured URL, may be secrets and appear in
// no error. A tool of class once uses each connection for one request only: on a reused
// connection, Go's client may send a request with an idempotency key twice.
package httptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

// defaultMaxOutput bounds a result: 8 MiB.
const defaultMaxOutput = 8 << 20

// The headers that every request carries.
const (
	headerKey  = "Idempotency-Key"
	headerRun  = "X-Moorebus-Run"
	headerCall = "X-Moorebus-Call"
)

const (
	dialTimeout   = 10 * time.Second
	idleTimeout   = 30 * time.Second
	idlePerHost   = 64
	maxErrorBody  = 16 << 10
	maxRedirects  = 5
	defaultMethod = http.MethodPost
)

// Options say which endpoint is called.
type Options struct {
	// URL is the endpoint, http or https. Required.
	URL string
	// Method is GET, POST, PUT, PATCH or DELETE. Default POST.
	Method string
	// Headers are sent with every request; their values count as secrets.
	Headers map[string]string
	// MaxOutput bounds the result in bytes; a longer one is cut and says so.
	// Default [defaultMaxOutput], at most 2 GiB.
	MaxOutput int64
}

// httpTool calls one endpoint. Close it when no call runs any more.
type httpTool struct {
	def    tool.Definition
	url    *url.URL
	method string
	header http.Header
	max    int64
	client *http.Client
}

var _ tool.Tool = (*httpTool)(nil)

// New makes a tool of an endpoint. The error names every wrong setting.
func New(def tool.Definition, opts Options) (tool.Tool, error) {
	def = def.WithDefaults()
	t := &httpTool{def: def, method: strings.ToUpper(opts.Method), header: http.Header{}, max: opts.MaxOutput}
	if t.method == "" {
		t.method = defaultMethod
	}
	if t.max <= 0 {
		t.max = defaultMaxOutput
	}
	t.max = min(t.max, math.MaxInt32)
	errs := []error{def.Validate()}
	var err error
	if t.url, err = parseURL(opts.URL); err != nil {
		errs = append(errs, fmt.Errorf("tool %q: %w", def.Name, err))
	}
	if !slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, t.method) {
		errs = append(errs, fmt.Errorf("tool %q: method %q must be GET, POST, PUT, PATCH or DELETE", def.Name, opts.Method))
	}
	for name, value := range opts.Headers {
		if err := checkHeader(name, value); err != nil {
			errs = append(errs, fmt.Errorf("tool %q: %w", def.Name, err))
		}
		t.header.Set(name, value)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t.client = newClient(def.Effect, t.method)
	return t, nil
}

// parseURL does not wrap url.Parse's error: it quotes the entire URL.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("url must be an absolute http or https URL")
	}
	return u, nil
}

// checkHeader keeps what net/http would refuse at every call out of the settings.
func checkHeader(name, value string) error {
	if name == "" || strings.ContainsFunc(name, notTokenRune) {
		return fmt.Errorf("header name %q is not valid", name)
	}
	if slices.Contains([]string{headerKey, headerRun, headerCall, "Content-Length"}, http.CanonicalHeaderKey(name)) {
		return fmt.Errorf("header %s is set by moorebus itself; remove it", name)
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return fmt.Errorf("the value of header %s has control characters", name)
	}
	return nil
}

func notTokenRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

func (t *httpTool) Definition() tool.Definition { return t.def }

// Close lets go of idle connections.
func (t *httpTool) Close() error {
	t.client.CloseIdleConnections()
	return nil
}

// Run sends the request and returns the answer's body as text.
func (t *httpTool) Run(ctx context.Context, call tool.Call) (string, error) {
	req, err := t.request(ctx, call)
	if err != nil {
		return "", err
	}
	var sent sentMark
	res, err := t.client.Do(sent.watch(req))
	if err != nil {
		return "", t.transportFailure(ctx, &sent, err)
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return "", statusFailure(res)
	}
	return t.read(ctx, res)
}

func newClient(effect tool.Effect, method string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: idlePerHost,
			IdleConnTimeout:     idleTimeout,
			DisableKeepAlives:   !effect.Repeatable(),
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			from := via[0].URL
			sameHost := req.URL.Host == from.Host && (req.URL.Scheme == from.Scheme || req.URL.Scheme == "https")
			if method != http.MethodGet || !sameHost || len(via) > maxRedirects {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

func (t *httpTool) request(ctx context.Context, call tool.Call) (*http.Request, error) {
	target, body := t.url.String(), io.Reader(nil)
	if t.method == http.MethodGet {
		u, err := withQuery(t.url, call.Arguments)
		if err != nil {
			return nil, err
		}
		target = u
	} else {
		arguments := call.Arguments
		if arguments == "" {
			arguments = "{}"
		}
		body = strings.NewReader(arguments)
	}
	req, err := http.NewRequestWithContext(ctx, t.method, target, body)
	if err != nil {
		return nil, tool.Failf(tool.CodeFailed, "the request cannot be made")
	}
	req.Header = t.header.Clone()
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	setDefault(req.Header, "User-Agent", "moorebus")
	if body != nil {
		setDefault(req.Header, "Content-Type", "application/json")
	}
	req.Header.Set(headerKey, call.IdempotencyKey())
	req.Header.Set(headerRun, call.Run)
	req.Header.Set(headerCall, call.ID)
	if call.TraceParent != "" {
		req.Header.Set(tracecontext.Header, call.TraceParent)
	}
	return req, nil
}

func setDefault(h http.Header, name, value string) {
	if _, ok := h[name]; !ok {
		h.Set(name, value)
	}
}

// withQuery adds the members of a flat JSON object to the URL's query: strings
// as they are, numbers and booleans as they are written, null not at all.
func withQuery(base *url.URL, arguments string) (string, error) {
	if strings.TrimSpace(arguments) == "" {
		return base.String(), nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(arguments), &members); err != nil {
		return "", tool.Failf(tool.CodeInvalidArguments, "the arguments must be a JSON object: %v", err)
	}
	query := base.Query()
	for name, raw := range members {
		value := string(raw)
		switch raw[0] {
		case '{', '[':
			return "", tool.Failf(tool.CodeInvalidArguments,
				"%q must be a text, a number or a boolean: this tool takes its arguments in the URL", name)
		case 'n':
			continue
		case '"':
			if err := json.Unmarshal(raw, &value); err != nil {
				return "", tool.Failf(tool.CodeInvalidArguments, "%q: %v", name, err)
			}
		}
		query.Set(name, value)
	}
	u := *base
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// sentMark remembers whether a request ever had a connection to be sent on.
type sentMark struct{ connected atomic.Bool }

func (s *sentMark) watch(req *http.Request) *http.Request {
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { s.connected.Store(true) },
	}))
}

// read returns the body of a good answer, cut at the limit. One byte beyond it
// tells whether there is more; an answer that breaks off is not a result.
func (t *httpTool) read(ctx context.Context, res *http.Response) (string, error) {
	var body strings.Builder
	n, err := io.Copy(&body, io.LimitReader(res.Body, t.max+1))
	if err != nil {
		return "", t.broken(ctx, n, err)
	}
	if n <= t.max {
		return callctx.Text(ctx, res.Header.Get("Content-Type"), body.String()), nil
	}
	return truncate.Result(body.String(), t.max, res.ContentLength), nil
}

// broken is the failure of an answer that ended in the middle of its body.
func (t *httpTool) broken(ctx context.Context, n int64, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("reading the answer: %w", ctx.Err())
	}
	return tool.Failf(tool.CodeUnreachable, "the answer of %s broke off after %d bytes: %v", t.place(), n, err)
}

// transportFailure is the classifier of the client's errors.
func (t *httpTool) transportFailure(ctx context.Context, sent *sentMark, err error) error {
	// The client's wrapping quotes the entire URL with its query.
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	f := tool.Failf(tool.CodeUnreachable, "%s cannot be reached: %v", t.place(), err)
	if sent.connected.Load() {
		f.Message = fmt.Sprintf("no answer came from %s: %v", t.place(), err)
	} else {
		f.NotSent, f.Err = true, err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.Code = tool.CodeTimeout
	} else if ctx.Err() != nil {
		f.Code = codes.Cancelled
	}
	return f
}

// place is the endpoint as errors may name it: without user, path and query,
// each of which may hold a key.
func (t *httpTool) place() string { return t.url.Scheme + "://" + t.url.Host }

// statusFailure is the failure of an answer that is not 2xx.
func statusFailure(res *http.Response) error {
	// What can be read of the body is enough; the status is the news.
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody+1))
	f := tool.Failf(tool.CodeHTTPStatus, "HTTP status %d", res.StatusCode)
	if text := http.StatusText(res.StatusCode); text != "" {
		f.Message += " " + text
	}
	if location := res.Header.Get("Location"); location != "" && res.StatusCode < 400 {
		f.Message += " (a redirect, not followed)"
	}
	if text := strings.TrimSpace(string(body)); text != "" {
		f.Message += ": " + truncate.Result(text, maxErrorBody, res.ContentLength)
	}
	f.Passing = res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500
	if f.RetryAfter = retry.FromHeader(res.Header, time.Now()); f.RetryAfter > 0 {
		f.Message += fmt.Sprintf(" (try again in %s)", f.RetryAfter.Round(time.Second))
	}
	return f
}
