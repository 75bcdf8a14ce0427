// Package openai calls models that speak OpenAI's chat completions: OpenAI's own
// and every compatible server (Groq, Together, Ollama, llama.cpp, vLLM, …).
//
// What it promises:
//   - The conversation is sent as it is: one message for each message, in order,
//     nothing added, tool results that are empty as empty strings, arguments
//     and schemas verbatim. Only tools are named as [llm.ToolNames] says.
//   - A reply is scanned whole: tool calls outrank text wherever they stand, and
//     the text beside them is kept. Arguments are given back as the model wrote
//     them, valid or not. A call without an id gets "call_<reply>_<k>".
//   - A stream that breaks before its finish_reason, or goes silent for too long,
//     is followed by one plain call, in the same Call. Nothing else is ever sent
//     twice.
//   - Every failure is an *llm.Error with a kind, the provider's own message and
//     the wait it asked for, except the context's own error. No message holds
//     the key.
//   - Of a reply at most [Options.MaxBytes] are read.
//
// It reads no environment variables.
package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/sashabaranov/go-openai"
)

// DefaultBaseURL is where calls go when no other base URL is given.
const DefaultBaseURL = "https://api.openai.com/v1"

// Options configure a [Caller]. The zero value lacks only a key or a base URL.
type Options struct {
	// APIKey is sent as bearer token. It may be empty where BaseURL is set, for
	// servers that want none.
	APIKey string
	// BaseURL is the address up to and including the version, such as
	// http://localhost:11434/v1. Default [DefaultBaseURL].
	BaseURL string
	// Model is used by requests that name none.
	Model string
	// Header is sent with every request, for what some providers want beside
	// the key (an organization, an application's name).
	Header http.Header
	// ReasoningEffort is sent to reasoning models as reasoning_effort where it is
	// not empty.
	ReasoningEffort string
	// NoOutputSchema keeps a request's OutputSchema from servers that refuse
	// response_format; replies are then plain text.
	NoOutputSchema bool
	// Timeout bounds one Call in all. Default 10 minutes.
	Timeout time.Duration
	// Silence is how long a stream that has begun may bring no line, be it a
	// comment, before it is given up as broken. Default 2 minutes: models think.
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
	client *openai.Client
	http   *http.Client
	// grace is how long an answered stream may go on before it is closed.
	grace time.Duration
}

var _ llm.Defined = (*Caller)(nil)

// New returns a Caller, or an error that says which option to set. It sends
// nothing.
func New(opts Options) (*Caller, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("openai: %w", err)
	}
	config := openai.DefaultConfig(opts.APIKey)
	config.BaseURL = opts.BaseURL
	config.HTTPClient = &doer{client: opts.HTTPClient, header: opts.Header, limit: opts.MaxBytes}
	// Keep-alive comments may go on for as long as a model thinks; MaxBytes and
	// Timeout bound them.
	config.EmptyMessagesLimit = ^uint(0)
	return &Caller{
		opts:   opts,
		key:    llm.Secret(opts.APIKey),
		client: openai.NewClientWithConfig(config),
		http:   opts.HTTPClient,
		grace:  5 * time.Second,
	}, nil
}

// Definition names the address, the default model and what else decides on replies,
// see [llm.Defined].
func (c *Caller) Definition() string {
	return fmt.Sprintf("openai %s %q %q %t", llm.Address(c.opts.BaseURL), c.opts.Model, c.opts.ReasoningEffort, c.opts.NoOutputSchema)
}

// Close closes idle connections. Calls in flight go on.
func (c *Caller) Close() { c.http.CloseIdleConnections() }

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
	if stream != nil {
		res, err := c.streamed(ctx, req, stream)
		if !errors.Is(err, errBroken) || ctx.Err() != nil {
			return res, err
		}
	}
	return c.plain(ctx, req)
}

// plain asks for the reply in one piece.
func (c *Caller) plain(ctx context.Context, req llm.Request) (llm.Response, error) {
	x, err := c.exchange(req, false)
	if err != nil {
		return nil, err
	}
	res, err := c.client.CreateChatCompletion(x.in(ctx), openai.ChatCompletionRequest{})
	if err != nil {
		return nil, c.classify(err, x)
	}
	r, err := fromCompletion(res)
	if err != nil {
		return nil, err
	}
	return c.response(req, x.names, r)
}

func (o Options) withDefaults() (Options, error) {
	o.APIKey = strings.TrimSpace(o.APIKey)
	if strings.ContainsFunc(o.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return o, errors.New("the API key holds spaces or other characters that no key has; check how it was copied")
	}
	if o.BaseURL == "" {
		if o.APIKey == "" {
			return o, errors.New("no API key: set one (OPENAI_API_KEY), " +
				"or a base URL (OPENAI_BASE_URL) of a server that needs none")
		}
		o.BaseURL = DefaultBaseURL
	}
	base, err := cleanBaseURL(o.BaseURL)
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
func cleanBaseURL(base string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(base))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", errors.New("the base URL has to be an http or https address such as http://localhost:11434/v1")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the base URL must not have a query or a fragment")
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/chat/completions")
	u.RawPath = ""
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
