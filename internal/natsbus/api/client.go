// Package api asks JetStream over one connection: requests that fail at once when they
// are refused, the server's errors as those of the journal, descriptions of streams and
// consumers, and reads without a consumer. It knows nothing of runs.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Client asks JetStream. It is safe for concurrent use and holds nothing that needs
// closing; the connection is the caller's.
//
// It does not use the client library's requests for what is frequent, for two reasons. Only
// the connection's handlers learn of a refused publish and a broken connection, so that a
// request of the library would time out; here it fails at once. And an inbox is
// used for one request after another, which spares each append a context, a timer and a
// channel (219 allocations for each transition became 188, see BenchmarkAppend) and the
// server the search for new ways.
type Client struct {
	NC  *nats.Conn
	JS  jetstream.JetStream
	Log *slog.Logger
	// Timeout bounds the wait for one answer.
	Timeout time.Duration
	// Replicas is on how many servers the streams lie. With several, a replica that lags
	// may answer a direct get.
	Replicas int
	// OrderedFrom is how much has to be ahead of a read for a consumer, see [Client.Query].
	OrderedFrom uint64
	// Unordered says that this user may not make consumers to read with.
	Unordered atomic.Bool

	// breaks counts how often the connection broke.
	breaks atomic.Uint64
	// leaderless has the streams whose leader may not be asked.
	leaderless sync.Map
	// asking holds a token for each page that was asked for and not answered yet.
	asking chan struct{}

	mu   sync.Mutex
	idle map[int][]*Inbox
	// waiters get refused publishes.
	waiters map[*waiter]struct{}
	// slow are called when their subscriptions have lost messages.
	slow map[*nats.Subscription]func()
	// deaf is why no answer can come, while the connection lasts.
	deaf error
}

// New returns a client. Until close is called it is in front of the connection's error
// and disconnect handlers.
func New(conn *nats.Conn, timeout time.Duration, log *slog.Logger) (c *Client, unhook func(), err error) {
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(timeout))
	if err != nil {
		return nil, nil, err
	}
	c = &Client{
		NC: conn, JS: js, Log: log, Timeout: timeout, Replicas: 1, OrderedFrom: orderedFrom, asking: make(chan struct{}, PagesAtOnce),
		idle: map[int][]*Inbox{}, waiters: map[*waiter]struct{}{}, slow: map[*nats.Subscription]func(){},
	}
	onError, onDisconnect := conn.ErrorHandler(), conn.DisconnectErrHandler()
	conn.SetErrorHandler(func(conn *nats.Conn, sub *nats.Subscription, err error) {
		if !c.handled(sub, err) && onError != nil {
			onError(conn, sub, err)
		}
	})
	conn.SetDisconnectErrHandler(func(conn *nats.Conn, err error) {
		c.disconnected()
		c.breaks.Add(1)
		if onDisconnect != nil {
			onDisconnect(conn, err)
		}
	})
	return c, func() {
		conn.SetErrorHandler(onError)
		conn.SetDisconnectErrHandler(onDisconnect)
	}, nil
}

// handled passes an error of the connection on to whom it concerns.
func (c *Client) handled(sub *nats.Subscription, err error) bool {
	if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
		c.mu.Lock()
		lost := c.slow[sub]
		c.mu.Unlock()
		if lost != nil {
			lost()
			return true
		}
	}
	return c.refused(err)
}

// WatchSlow calls lost when a subscription has lost messages, until release.
func (c *Client) WatchSlow(sub *nats.Subscription, lost func()) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow[sub] = lost
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.slow, sub)
	}
}

// Breaks returns how often the connection broke.
func (c *Client) Breaks() uint64 { return c.breaks.Load() }

// Request sends a message and waits for the one answer, for limit at most; 0: for
// Timeout. If the server refuses the subject it fails at once.
func (c *Client) Request(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	if limit == 0 {
		limit = c.Timeout
	}
	in, err := c.Take(OneAnswer, msg.Subject)
	if err != nil {
		return nil, err
	}
	answer, err := c.Exchange(ctx, in, msg, limit)
	c.Give(in, err == nil)
	return answer, err
}

// ServiceReplies begins the subjects on which NATS services answer; the connection's inbox
// prefix follows. They are no inboxes: a service could guess those from the ones that it
// sees, and answer requests to JetStream.
const ServiceReplies = "_SERVICES."

// ServiceInfo is the subject on which services are asked what they are; the name of one may
// follow.
const ServiceInfo = "$SRV.INFO"

// Prefix begins the subjects of JetStream's API.
const Prefix = "$JS.API."

// Ask sends a request to the JetStream API and decodes its answer.
func (c *Client) Ask(ctx context.Context, limit time.Duration, endpoint string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	msg, err := c.Request(ctx, limit, &nats.Msg{Subject: Prefix + endpoint, Data: body})
	if err != nil {
		return off(err)
	}
	var refusal struct {
		Error *Error `json:"error"`
	}
	if err = json.Unmarshal(msg.Data, &refusal); err == nil && refusal.Error != nil {
		return Classify(refusal.Error)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(msg.Data, answer)
	}
	if err != nil {
		return fmt.Errorf("answer of the bus: %w", err)
	}
	return nil
}

// off says what it means that nobody answers for the API. That passes when the server has
// started or the cluster has a leader again, so it is not ErrNotReady of package journal.
func off(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("nobody answers for JetStream: it is off, still starting, or without a leader: %w", err)
	}
	return Classify(err)
}

// Do runs a call of the client library, which asks this endpoint of the API and no other. It
// ends at once when the server refuses that, and when the connection breaks. Whether a subject
// is refused depends on the user alone, so the refusal of another caller's request to the same
// endpoint is that of this one, too. The error is classified.
func (c *Client) Do(ctx context.Context, endpoint string, call func(context.Context) error) error {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	defer c.OnFailed(func(s string) bool { return s == Prefix+endpoint }, refuse)()
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, nats.ErrTimeout)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return off(err)
}

// Stream returns a stream's description.
func (c *Client) Stream(ctx context.Context, name string) (info *jetstream.StreamInfo, err error) {
	err = c.Do(ctx, "STREAM.INFO."+name, func(ctx context.Context) error {
		stream, err := c.JS.Stream(ctx, name)
		if err == nil {
			info = stream.CachedInfo()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return info, nil
}

// Consumer returns a consumer of a stream.
func (c *Client) Consumer(ctx context.Context, stream, name string) (consumer jetstream.Consumer, err error) {
	err = c.Do(ctx, "CONSUMER.INFO."+stream+"."+name, func(ctx context.Context) (err error) {
		consumer, err = c.JS.Consumer(ctx, stream, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s of %s: %w", name, stream, err)
	}
	return consumer, nil
}

// StreamNames returns the names of all streams.
func (c *Client) StreamNames(ctx context.Context) (names []string, err error) {
	err = c.Do(ctx, "STREAM.NAMES", func(ctx context.Context) error {
		all := c.JS.StreamNames(ctx)
		for name := range all.Name() {
			names = append(names, name)
		}
		return all.Err()
	})
	return names, err
}

// Subjects calls fn with the subjects of a stream's messages that match, each once, in no
// order.
func (c *Client) Subjects(ctx context.Context, stream, filter string, fn func(subject string)) error {
	for offset := 0; ; {
		var info struct {
			Total int `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		request := map[string]any{"subjects_filter": filter, "offset": offset}
		if err := c.Ask(ctx, 0, "STREAM.INFO."+stream, request, &info); err != nil {
			return err
		}
		for subject := range info.State.Subjects {
			fn(subject)
		}
		offset += len(info.State.Subjects)
		if len(info.State.Subjects) == 0 || offset >= info.Total {
			return nil
		}
	}
}

// PurgeOn removes a stream's messages on a subject, or on all of them if that is empty, up
// to a sequence number if that is not 0, and returns how many they were. Limit is how long
// the server may take, 0: Timeout.
func (c *Client) PurgeOn(ctx context.Context, limit time.Duration, stream, subject string, upTo uint64) (uint64, error) {
	request := struct {
		Filter string `json:"filter,omitempty"`
		Seq    uint64 `json:"seq,omitempty"` // the first one that stays
	}{Filter: subject}
	if upTo > 0 {
		request.Seq = upTo + 1
	}
	var answer struct {
		Purged uint64 `json:"purged"`
	}
	err := c.Ask(ctx, limit, "STREAM.PURGE."+stream, request, &answer)
	return answer.Purged, err
}
