package httptool

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/moorebus/moorebus/pkg/tool"
)

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
