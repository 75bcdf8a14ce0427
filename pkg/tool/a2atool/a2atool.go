// Package a2atool makes a tool of an agent that speaks A2A 1.0, over HTTP with JSON or over
// JSON-RPC.
//
// [New] makes a tool.Source with one tool. It reads the agent's card, whose description is the
// tool's, and reads it again every minute. Until it has the card there is no tool; afterwards
// the tool stays.
//
// # Calls
//
// A call is a task of the other agent. Its message is the argument `task`, or with
// [Options].Over.Schema all arguments as data. The call waits for the end of the task, however
// often the other server is away meanwhile. The result is the text of the task's artifacts, or
// of its last message; data is JSON, and files are kept with the result. The chunks of a text
// that was streamed are put together as they are. Failures are:
//
//   - a2a_failed, a2a_rejected, a2a_canceled: the task ended so.
//   - a2a_input_required, a2a_auth_required: the task waits for an answer, and no human can be
//     asked. The failure has the question and the task's id, with which the model can answer.
//   - a2a_error: the agent refused a request over JSON-RPC.
//   - unreachable and http_status as in httptool.
//
// # Questions
//
// A task that needs input, or an authorization, has its question put to a human. The call then
// waits in the log, which has the task's id. With the answer the tool runs again, sends it to
// the task as the next message, and waits for the end again. Nothing cancels the task meanwhile.
//
// # Twice
//
// The id of the message is the call's idempotency key. What a server does with a message that it
// got before is its own affair: the protocol allows it to begin a second task. So the class is
// once, unless the card names the extension
// https://github.com/moorebus/moorebus/a2a/idempotent-messages/v1, as that of a Moorebus gateway
// does: then it is idempotent, and a call that is carried out again, because its actor died,
// finds its task. [Options].Over.Effect overrides both.
//
// A call that is no longer wanted, since its run was cancelled or it took too long, cancels its
// task. It tries that once. A process that ends leaves the task alone.
package a2atool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/tool"
)

// idempotentMessages is the extension of A2A by which a server promises that a message which it
// gets again belongs to the task that it belonged to before, and begins no other.
const idempotentMessages = "https://github.com/moorebus/moorebus/a2a/idempotent-messages/v1"

const (
	cardPath = "/.well-known/agent-card.json"
	version  = "1.0"
	// defaultTimeout is how long a task may take. Tasks take longer than calls of other tools.
	defaultTimeout = 30 * time.Minute
	// patience is how long a call waits for the card.
	patience     = 30 * time.Second
	refreshEvery = time.Minute
	// maxDescription bounds what a card may say to the model, in bytes.
	maxDescription = 8 << 10
)

var cardPauses = retry.Policy{First: 200 * time.Millisecond, Factor: 2, Max: 30 * time.Second}

// taskSchema is the schema of a tool that has none.
var taskSchema = json.RawMessage(`{"type":"object","properties":{"task":{"type":"string","description":"What the agent is to do, with all that it has to know."},"task_id":{"type":"string","description":"Only to answer a question of the agent: the id of its task that waits. The argument task is then the answer."}},"required":["task"],"additionalProperties":false}`)

// Options name an agent. All but Over are required, Headers may be empty.
type Options struct {
	// URL is that of the agent's card, or where the card is at /.well-known/agent-card.json.
	// A card that names another scheme or host for the agent is refused.
	URL string
	// Headers are sent with every request. Their values count as secrets.
	Headers map[string]string
	// Over is the tool's definition; its name is required. What is not set is the card's, or
	// the default: class as the package says, timeout 30 minutes.
	Over tool.Definition
}

// source is a tool.Source with the tool of one agent.
type source struct {
	o      Options
	card   string
	origin *url.URL
	client *http.Client

	once sync.Once
	// up is closed when the card was read for the first time. why is why it was not, until then.
	up  chan struct{}
	mu  sync.Mutex
	why error
}

var _ tool.Source = (*source)(nil)

// New makes a source of the agent's tool. The error names every wrong setting.
func New(o Options) (tool.Source, error) {
	s := &source{o: o, up: make(chan struct{}), why: errors.New("its card was not read yet")}
	var errs []error
	if err := o.Over.Validate(); err != nil {
		errs = append(errs, err)
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		errs = append(errs, fmt.Errorf("tool %q: a2a must be an absolute http or https URL", o.Over.Name)) // it may hold a secret
	} else {
		s.origin = &url.URL{Scheme: u.Scheme, Host: u.Host}
		if !strings.HasSuffix(u.Path, ".json") {
			u = u.JoinPath(cardPath)
		}
		s.card = u.String()
	}
	for name, value := range o.Headers {
		if name == "" || strings.ContainsAny(name, " \t\r\n:") || strings.ContainsAny(value, "\r\n\x00") {
			errs = append(errs, fmt.Errorf("tool %q: header %q is not valid", o.Over.Name, name))
		}
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: requestTimeout}).DialContext, TLSHandshakeTimeout: requestTimeout,
			ForceAttemptHTTP2: true, IdleConnTimeout: 30 * time.Second,
			// Go's client sends a request twice if a reused connection breaks.
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, errors.Join(errs...)
}

// Name returns the tool's name.
func (s *source) Name() string { return s.o.Over.Name }

// Pools returns the tool's pool.
func (s *source) Pools() []string { return []string{s.o.Over.WithDefaults().Pool} }

// Claims reports whether a name is that of the tool.
func (s *source) Claims(name string) bool { return name == s.o.Over.Name }

// Patience is how long a call waits for the card.
func (s *source) Patience() time.Duration { return patience }

// Up waits until the card was read. The error says why it was not.
func (s *source) Up(ctx context.Context) error {
	select {
	case <-s.up:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.why
	}
}

// Run reads the card, again and again, until ctx ends.
func (s *source) Run(ctx context.Context, logger *slog.Logger, put func([]tool.Tool)) {
	defer s.client.CloseIdleConnections()
	failures := 0
	for {
		pause := refreshEvery
		t, err := s.read(ctx)
		switch {
		case err == nil:
			failures = 0
			put([]tool.Tool{t})
			s.once.Do(func() { close(s.up) })
		case ctx.Err() != nil:
			return
		default:
			if failures++; failures == 1 {
				logger.Warn("the card of an A2A agent cannot be read", "tool", s.Name(), "reason", err)
				s.mu.Lock()
				s.why = err
				s.mu.Unlock()
				select {
				case <-s.up: // its tool stays
				default:
					put(nil)
				}
			}
			pause = cardPauses.Delay(failures)
		}
		if !retry.Wait(ctx, pause) {
			return
		}
	}
}

// card is what counts of an agent's card.
type card struct {
	Name         string `json:"name"`
	Description  string `json:"description"`
	Capabilities struct {
		Extensions []struct {
			URI string `json:"uri"`
		} `json:"extensions"`
	} `json:"capabilities"`
	Interfaces []struct {
		URL     string `json:"url"`
		Binding string `json:"protocolBinding"`
		Version string `json:"protocolVersion"`
		Tenant  string `json:"tenant"`
	} `json:"supportedInterfaces"`
	Skills []struct {
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"skills"`
}

// read reads the card and returns the agent's tool.
func (s *source) read(ctx context.Context) (*agentTool, error) {
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	defer stop()
	var c card
	if err := s.do(ctx, http.MethodGet, s.card, nil, &c); err != nil {
		return nil, err
	}
	at, err := s.place(&c)
	if err != nil {
		return nil, err
	}
	return &agentTool{source: s, at: at, def: s.definition(&c)}, nil
}

// place returns where the agent is, and which binding it speaks there.
func (s *source) place(c *card) (place, error) {
	for _, binding := range []string{overHTTP, overJSONRPC} {
		for _, i := range c.Interfaces {
			if i.Binding != binding || i.Version != version {
				continue
			}
			u, err := url.Parse(i.URL)
			switch {
			case err != nil || u.Host == "":
				return place{}, errors.New("the card's interface has no absolute URL")
			case u.Host != s.origin.Host || u.Scheme != s.origin.Scheme:
				return place{}, fmt.Errorf("the card of %s names %.200q, and a card may not name another host; give the URL of a card there", s.origin, u.Scheme+"://"+u.Host)
			}
			return place{binding: binding, url: u.String(), tenant: i.Tenant}, nil
		}
	}
	return place{}, fmt.Errorf("the card has no interface for %s %s or %s %s", overHTTP, version, overJSONRPC, version)
}

// definition is that of the options, completed by the card.
func (s *source) definition(c *card) tool.Definition {
	def := s.o.Over
	if def.Description == "" {
		lines := []string{c.Description}
		for _, skill := range c.Skills {
			if skill.Description != "" && skill.Description != c.Description {
				lines = append(lines, "- "+skill.Name+": "+skill.Description)
			}
		}
		def.Description = truncate.Prefix(strings.Join(lines, "\n"), maxDescription)
	}
	if len(def.Schema) == 0 {
		def.Schema = taskSchema
	}
	if def.Timeout == 0 {
		def.Timeout = defaultTimeout
	}
	promises := slices.ContainsFunc(c.Capabilities.Extensions, func(e struct {
		URI string `json:"uri"`
	}) bool {
		return e.URI == idempotentMessages
	})
	if def.Effect == "" && promises {
		def.Effect = tool.Idempotent
	}
	return def
}
