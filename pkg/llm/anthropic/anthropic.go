// Package anthropic calls Anthropic's models by its Messages API, and servers
// that are compatible with it.
//
// What it promises:
//   - The conversation is sent as the API wants it: the system prompt separately,
//     all results of a reply in one user message, failures marked, messages of the
//     same role merged, no empty text. Tools are named as [llm.ToolNames] says,
//     and the ids of calls are made good and unique for the request. Arguments
//     that are no JSON object are sent inside of one.
//   - Tools, system prompt and the conversation's end are marked for the prompt
//     cache, so that each request reads from it what the one before it sent.
//   - A reply is scanned whole: tool calls outrank text wherever they stand, and
//     the text beside them is kept. Streamed arguments are given back as the model
//     wrote them, valid or not.
//   - Thinking that a reply with calls came with is its Reasoning, and is sent back
//     unchanged and first in its message, to the model that wrote it.
//   - An output schema is offered as a tool: forced where it is the only one and
//     the model does not think, else with words that say when to call it.
//   - A stream that ends before message_stop, or goes silent for too long, is
//     followed by one plain call, in the same Call. Nothing else is sent twice.
//   - Every failure is an *llm.Error with a kind, the provider's own message and
//     the wait it asked for, except the context's own error. No message holds
//     the key.
//   - Of a reply at most [Options.MaxBytes] are read.
//
// It reads no environment variables, and neither does the library below it.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/moorebus/moorebus/pkg/llm"
)

// DefaultBaseURL is where calls go when no other base URL is given.
const DefaultBaseURL = "https://api.anthropic.com"

// DefaultMaxTokens bounds a reply where neither agent nor provider says how.
const DefaultMaxTokens = 4096

// Options configure a [Caller]. The zero value lacks only a key or a base URL.
type Options struct {
	// APIKey is sent as x-api-key. It may be empty where BaseURL is set, for
	// servers that want none.
	APIKey string
	// BaseURL is the address before /v1/messages. Default [DefaultBaseURL].
	BaseURL string
	// Model is used by requests that name none.
	Model string
	// Header is sent with every request, such as anthropic-beta.
	Header http.Header
	// MaxTokens bounds the replies to requests that do not, in tokens; thinking
	// comes on top of it. Default [DefaultMaxTokens].
	MaxTokens int
	// Timeout bounds one Call in all. Default 10 minutes.
	Timeout time.Duration
	// Silence is how long a stream that has begun may bring nothing, be it a
	// ping, before it is given up as broken. Default 2 minutes: models think.
	Silence time.Duration
	// MaxBytes bounds one reply of the server, in bytes. Default 32 MiB.
	MaxBytes int64
	// HTTPClient does the requests. Default is one of its own with the proxy of
	// the environment.
	HTTPClient *http.Client
}

// Caller calls one provider. It is safe for concurrent use.
type Caller struct {
	opts   Options
	key    llm.Secret
	client sdk.Client
}

var _ llm.Defined = (*Caller)(nil)

// New returns a Caller, or an error that says which option to set. It sends
// nothing.
func New(opts Options) (*Caller, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("anthropic: %w", err)
	}
	options := []option.RequestOption{
		option.WithoutEnvironmentDefaults(), option.WithoutOpenTelemetry(), option.WithMaxRetries(0),
		option.WithBaseURL(opts.BaseURL), option.WithRequestTimeout(opts.Timeout), option.WithHeader("User-Agent", "moorebus"),
	}
	if opts.APIKey != "" {
		options = append(options, option.WithAPIKey(opts.APIKey))
	}
	for name, values := range opts.Header {
		for _, value := range values {
			options = append(options, option.WithHeaderAdd(name, value))
		}
	}
	return &Caller{opts: opts, key: llm.Secret(opts.APIKey), client: sdk.NewClient(options...)}, nil
}

// Definition names the address, the default model and the bound of replies, see
// [llm.Defined].
func (c *Caller) Definition() string {
	return fmt.Sprintf("anthropic %s %q %d", llm.Address(c.opts.BaseURL), c.opts.Model, c.opts.MaxTokens)
}

// Close closes idle connections. Calls in flight go on.
func (c *Caller) Close() { c.opts.HTTPClient.CloseIdleConnections() }

// Call asks the provider for one reply; see [llm.Caller].
func (c *Caller) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	res, err := c.call(timed, req, stream)
	if err == nil {
		return res, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if timed.Err() != nil {
		return nil, &llm.Error{
			Kind:    llm.KindNetwork,
			Message: fmt.Sprintf("the model gave no complete reply within %v", c.opts.Timeout),
			Err:     timed.Err(),
		}
	}
	return nil, err
}

func (c *Caller) call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	x, err := c.exchange(req)
	if err != nil {
		return nil, err
	}
	if stream != nil {
		res, err := c.streamed(ctx, x, stream)
		if !errors.Is(err, errBroken) || ctx.Err() != nil {
			return res, err
		}
	}
	return c.plain(ctx, x)
}

// plain asks for the reply in one piece.
func (c *Caller) plain(ctx context.Context, x *exchange) (llm.Response, error) {
	d := &doer{client: c.opts.HTTPClient, limit: c.opts.MaxBytes}
	m, err := c.client.Messages.New(ctx, x.params, option.WithHTTPClient(d))
	if err != nil {
		return nil, c.classify(err, d)
	}
	if m.StopReason == "" && len(m.Content) == 0 {
		return nil, c.classify(errors.New("it has neither content nor a stop reason"), d)
	}
	return c.response(x, fromMessage(m))
}

func (o Options) withDefaults() (Options, error) {
	o.APIKey = strings.TrimSpace(o.APIKey)
	if strings.ContainsFunc(o.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return o, errors.New("the API key holds spaces or other characters that no key has; check how it was copied")
	}
	if o.BaseURL == "" {
		if o.APIKey == "" {
			return o, errors.New("no API key: set one (ANTHROPIC_API_KEY), " +
				"or a base URL (ANTHROPIC_BASE_URL) of a server that needs none")
		}
		o.BaseURL = DefaultBaseURL
	}
	base, err := cleanBaseURL(o.BaseURL)
	if err != nil {
		return o, err
	}
	o.BaseURL = base
	o.Header = o.Header.Clone()
	if o.MaxTokens <= 0 {
		o.MaxTokens = DefaultMaxTokens
	}
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
func cleanBaseURL(base string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(base))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", errors.New("the base URL has to be an http or https address such as " + DefaultBaseURL)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the base URL must not have a query or a fragment")
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/messages")
	u.Path = strings.TrimSuffix(u.Path, "/v1") + "/"
	u.RawPath = ""
	return u.String(), nil
}

// newHTTPClient has no timeout of its own: models think for minutes, and every
// call has a deadline. It follows no redirection, since the key would go with it.
func newHTTPClient() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConnsPerHost = 64
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}
