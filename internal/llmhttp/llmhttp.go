// Package llmhttp is what the adapters of models' HTTP APIs share: the transport,
// the sorting of errors, and the reading of event streams. An adapter adds the
// form of requests and replies.
//
// What it promises:
//   - Every failure is an *llm.Error with a kind, the provider's own message and
//     the wait it asked for, except the context's own error. No message holds
//     the key, or a header or query parameter of 8 bytes or more.
//   - A stream that ends before its reply is complete, or is silent for too long,
//     is an error of [llm.KindBroken] with what is known of the reply. Nothing is asked
//     twice, unless a server refuses to stream.
//   - Replies and errors hold the digest of the request's body.
//   - At most [Options.MaxBytes] of a reply are read.
//   - A redirection to another host is not followed, since the key would go with it.
//
// It reads no environment variables, except those of the proxy.
package llmhttp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Options are the options that all adapters have; see theirs.
type Options struct {
	APIKey string
	// Keys, if not nil, gives the key of each request, and is asked for another than the
	// refused one after an answer of status 401.
	Keys       func(ctx context.Context, refused string) (string, error)
	BaseURL    string
	Header     http.Header
	Timeout    time.Duration
	Silence    time.Duration
	MaxBytes   int64
	HTTPClient *http.Client
	// Like and Capabilities find the server in the table of models; see
	// [providers.HostOf].
	Like         string
	Capabilities json.RawMessage
	// ExtraBody are further keys of every request's body, which go before those of
	// the request; see
	// [providers.CheckExtraBody]. Query are parameters of its address.
	ExtraBody map[string]json.RawMessage
	Query     map[string]string
}

// Client calls one endpoint. It is safe for concurrent use.
type Client struct {
	row  providers.Provider
	opts Options
	// secrets and issued are kept out of errors.
	secrets secrets
	issued  issued
	host    providers.Host
	// extra is the ExtraBody as one object, or nil.
	extra json.RawMessage
	url   string
	http  *http.Client
	// grace is how long a stream may continue after its reply is complete.
	grace time.Duration
}

// New returns a Client for the API of a kind of provider, such as [providers.OpenAI]. The error
// says which option to set. It sends nothing.
func New(kind string, opts Options) (*Client, error) {
	row, _ := providers.Find(kind)
	opts, err := opts.withDefaults(row)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row.Name, err)
	}
	host, err := providers.HostOf(row.Name, opts.Like, opts.BaseURL, opts.Capabilities)
	if err != nil {
		return nil, err
	}
	if err := providers.CheckExtraBody(opts.ExtraBody); err != nil {
		return nil, err
	}
	var extra json.RawMessage
	if len(opts.ExtraBody) > 0 {
		extra, _ = json.Marshal(opts.ExtraBody) // the values are valid
	}
	client := *opts.HTTPClient
	if client.CheckRedirect == nil {
		client.CheckRedirect = sameServer
	}
	return &Client{
		row: row, opts: opts, secrets: secretsOf(opts), host: host, extra: extra, url: endpoint(row, opts),
		http: &client, grace: 5 * time.Second,
	}, nil
}

// endpoint is the address of replies, with the query.
func endpoint(row providers.Provider, opts Options) string {
	if len(opts.Query) == 0 {
		return opts.BaseURL + row.Path
	}
	query := url.Values{}
	for name, value := range opts.Query {
		query.Set(name, value)
	}
	return opts.BaseURL + row.Path + "?" + query.Encode()
}

// withoutQuery removes the query from the address that an error names: it may hold a key.
func withoutQuery(err error) error {
	var at *url.Error
	if !errors.As(err, &at) {
		return err
	}
	address, _, _ := strings.Cut(at.URL, "?")
	return &url.Error{Op: at.Op, URL: address, Err: at.Err}
}

// Caller is what every adapter is: its way to ask for a reply, on a [Client].
type Caller struct {
	client *Client
	call   llm.CallerFunc
	is     llm.Description
}

var (
	_ llm.Described = (*Caller)(nil)
	_ llm.Writer    = (*Caller)(nil)
)

// Caller returns an adapter on the client. The identity is what its own options make of it,
// formatted, with what further options change in replies.
func (c *Client) Caller(call llm.CallerFunc, model, format string, own ...any) *Caller {
	identity := fmt.Sprintf(format, own...)
	if settings := c.settings(); settings != "" {
		identity += " " + settings
	}
	return &Caller{c, call, llm.Description{Identity: identity, DefaultModel: model}}
}

// Call asks the provider for one reply; see [llm.Caller].
func (c *Caller) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	return c.call(ctx, req, stream)
}

// Describe returns the default model, and an identity of address, model and the options that
// affect replies.
func (c *Caller) Describe() llm.Description { return c.is }

// NeedsResponses reports whether a request to chat completions needs OpenAI's Responses API, by the
// table of models. sure is false where only the model's name says so: the server is not known.
func (c *Caller) NeedsResponses(req llm.Request) (needs, sure bool) {
	caps := c.client.Capabilities(cmp.Or(req.Model, c.is.DefaultModel))
	if len(req.ProviderTools) > 0 && caps.API == "" && caps.Row == "openai" {
		return true, true // OpenAI's chat completions have no provider tools
	}
	return caps.NeedsResponses(len(req.Tools) > 0, req.Sampling.Effort), c.client.Known() || caps.API != ""
}

// Close closes idle connections. Calls in flight go on.
func (c *Caller) Close() { c.client.Close() }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// settings is equal for clients whose options other than address and key affect replies in the
// same way, and empty if they have none. It holds no secrets.
func (c *Client) settings() string {
	o := c.opts
	if o.Like == "" && len(o.Capabilities) == 0 && len(c.extra) == 0 && len(o.Query) == 0 {
		return ""
	}
	// A map of strings is written in the order of its keys.
	all, _ := json.Marshal([]any{o.Like, o.Capabilities, c.extra, o.Query}) // the parts were checked
	sum := sha256.Sum256(all)
	return hex.EncodeToString(sum[:8])
}

// Capabilities returns what the server takes and wants for the model.
func (c *Client) Capabilities(model string) providers.Capabilities {
	return c.host.Capabilities(model)
}

// Known reports whether the server is one of the table of models.
func (c *Client) Known() bool { return c.host.Row() != "" }

// BaseURL is the base URL without a trailing slash.
func (c *Client) BaseURL() string { return c.opts.BaseURL }

// Address is the base URL without a user, a password or a query.
func (c *Client) Address() string {
	u, err := url.Parse(c.opts.BaseURL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

func (o Options) withDefaults(row providers.Provider) (Options, error) {
	o.APIKey = strings.TrimSpace(o.APIKey)
	if strings.ContainsFunc(o.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return o, errors.New("the API key holds spaces or other characters that no key has; check how it was copied")
	}
	if o.BaseURL == "" {
		if o.APIKey == "" && o.Keys == nil {
			return o, fmt.Errorf("no API key: set one (%s), or a base URL (%s) of a server that needs none", row.KeyVar, row.URLVar)
		}
		o.BaseURL = row.BaseURL
	}
	base, err := cleanBaseURL(o.BaseURL, row)
	if err != nil {
		return o, err
	}
	o.BaseURL = base
	o.Header = o.Header.Clone()
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.Silence <= 0 {
		o.Silence = 2 * time.Minute
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 32 << 20
	}
	if o.HTTPClient == nil {
		o.HTTPClient = newHTTPClient()
	}
	return o, nil
}

// cleanBaseURL never repeats the address in an error: it may hold a password.
func cleanBaseURL(base string, row providers.Provider) (string, error) {
	u, err := url.Parse(strings.TrimSpace(base))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", errors.New("the base URL has to be an http or https address such as " + row.ExampleURL)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the base URL must not have a query or a fragment; parameters belong into `query` of the provider file")
	}
	row.Trim(u)
	return u.String(), nil
}

// newHTTPClient has no timeout of its own: models think for minutes, and every
// call has a deadline.
func newHTTPClient() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConnsPerHost = 64
	return &http.Client{Transport: transport}
}

// sameServer follows up to ten redirections within one scheme and host. Any other
// redirection is the reply: the key would go to another server, or in the clear.
func sameServer(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if req.URL.Scheme != first.Scheme || req.URL.Host != first.Host || len(via) >= 10 {
		return http.ErrUseLastResponse
	}
	return nil
}

// Reply is a reply in one piece.
type Reply struct {
	Body     []byte
	response *http.Response
	client   *Client
}

// Post sends a request for a reply in one piece.
func (c *Client) Post(ctx context.Context, body []byte) (*Reply, error) {
	resp, err := c.do(ctx, body, "application/json")
	if err != nil {
		return nil, err
	}
	return c.whole(resp)
}

func (c *Client) send(ctx context.Context, body []byte, accept, key string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, c.network(err, 0)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "moorebus")
	tracecontext.SetHeader(ctx, req.Header.Set)
	c.row.Sign(req.Header, key)
	for name, values := range c.opts.Header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.network(withoutQuery(err), 0)
	}
	return resp, nil
}

// whole reads and closes the body.
func (c *Client) whole(resp *http.Response) (*Reply, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, c.opts.MaxBytes+1))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299: // its status says more than a cut body
		return nil, c.stated(data, resp)
	case int64(len(data)) > c.opts.MaxBytes:
		return nil, c.tooLarge(resp.StatusCode)
	case err != nil:
		return nil, c.network(err, resp.StatusCode)
	}
	return &Reply{Body: bytes.TrimPrefix(data, byteOrderMark), response: resp, client: c}, nil
}
