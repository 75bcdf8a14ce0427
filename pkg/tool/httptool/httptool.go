// Package httptool makes tools of HTTP endpoints.
//
// The model's arguments are the request's body, byte for byte (none for empty
// arguments but `{}`); with method GET they become query parameters and have to
// be a flat object. Every request carries `Idempotency-Key: <run>/<call id>`,
// `X-Moorebus-Run` and `X-Moorebus-Call`. A 2xx answer's body is the result as
// text, whatever its content type. Everything else is a failure:
//
//   - http_status: another status, with the status and the start of the body;
//     429 and 5xx pass (see [tool.Failure]). Redirects are followed for GET only,
//     and only within the same host; others are such a failure too.
//   - unreachable: no whole answer came. NotSent is true where no connection was
//     ever made for the request; otherwise the registry makes it outcome_unknown for
//     a tool of class once.
//
// Header values, and path and query of the configured URL, may be secrets and
// appear in no error. A tool of class once uses each connection for one request only:
// on a connection that is used again, Go's client may send a request twice that
// has an idempotency key.
package httptool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

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

// parseURL does not wrap url.Parse's error: it quotes the whole URL.
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

// Definition returns the tool's definition, defaults applied.
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
