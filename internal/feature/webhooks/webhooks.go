// Package webhooks tells other programs what a person should know of runs: that they wait, ended,
// failed, were cancelled, used up their budget or could not be processed.
//
// Webhooks are a projection of the log. One gateway at a time delivers, under a lease. Each webhook
// has a reader of its own, which notes up to where it has read each shard and what of it is not
// delivered yet. So a receiver that is down holds back nobody else, and what it has to get
// is bounded: beyond [maxPending] notices its reader pauses.
//
// Every notice is delivered at least once, or given up after the last attempt. Its
// id and body follow from the event alone. The notices of a run arrive in the order of its
// events.
package webhooks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Settings are what an operator says of webhooks. The zero value is useful.
type Settings struct {
	// ConsoleURL is where people find the console, for links to runs; empty: no links.
	ConsoleURL string
	// Allowed are networks that webhooks may reach besides public addresses.
	Allowed []netip.Prefix
	// Client says that another process delivers, so that its networks count where a webhook is
	// put, as far as it has noted them.
	Client bool
	// Retries are the pauses after each failed attempt. A notice is given up after
	// one attempt more. Default: that of Standard Webhooks, three days.
	Retries []time.Duration
	// Transport carries the messages. Default: HTTP to allowed addresses.
	Transport http.RoundTripper
}

// Retries returns the default of [Settings.Retries].
func Retries() []time.Duration {
	return []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
		10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
	}
}

// Loopback returns the networks that only this machine reaches.
func Loopback() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// Hooks keeps webhooks, and delivers to them in [Hooks.Run]. It is safe for concurrent use.
type Hooks struct {
	Settings

	cfg    control.Config
	runs   *runs.Editor
	sender *Sender
	facts  *facts
	// most is how many notices may wait for a webhook.
	most int
	// changed is told when this process has changed a webhook.
	changed chan struct{}
	// updates makes the notices of pushes. Nil: nobody does.
	updates atomic.Pointer[control.Updates]
	// queued is how many notices wait in this process.
	queued atomic.Int64
}

// New returns the webhooks of a bus, to which its controller posts the updates of runs. Only
// [Hooks.Run] delivers.
func New(c *control.Controller, s Settings) *Hooks {
	if len(s.Retries) == 0 {
		s.Retries = Retries()
	}
	s.ConsoleURL = strings.TrimRight(s.ConsoleURL, "/")
	sender := NewSender(s.Allowed)
	if s.Transport != nil {
		sender.client.Transport = s.Transport
	}
	h := &Hooks{Settings: s, cfg: c.Config(), runs: c.Editor, sender: sender, facts: newFacts(c.Editor), most: maxPending, changed: make(chan struct{}, 1)}
	if to := c.Store.Meter(); to != nil {
		to.Read(func(_ context.Context, emit meter.Emit) {
			emit(row.Waiting, float64(h.queued.Load()), meter.Values{})
		})
	}
	c.Pushes = h
	return h
}

// The keys of the store: the webhook itself, its progress, what was given up, and what is to be
// tried again.
const (
	kindHook  = "hook"
	kindState = "state"
	kindDead  = "dead"
	kindRetry = "retry"
)

// noteReach keeps which networks this process allows, for commands in other processes.
func (h *Hooks) noteReach(ctx context.Context) error {
	data, err := json.Marshal(h.Allowed)
	if err != nil {
		return err
	}
	was, revision, err := buckets.Position(ctx, h.cfg.KV, lease)
	switch {
	case err != nil && !errors.Is(err, journal.ErrNotFound):
		return err
	case err == nil && bytes.Equal(was, data):
		return nil
	}
	_, err = buckets.PutPosition(ctx, h.cfg.KV, lease, data, revision)
	return err
}

// reach returns the networks of the process that delivers, or delivered last.
func (h *Hooks) reach(ctx context.Context) (Networks, error) {
	if !h.Client {
		return h.Allowed, nil
	}
	data, _, err := buckets.Position(ctx, h.cfg.KV, lease)
	if errors.Is(err, journal.ErrNotFound) {
		return h.Allowed, nil
	}
	var noted Networks
	if err == nil {
		err = json.Unmarshal(data, &noted)
	}
	return noted, err
}

// checkReach refuses a URL to which nothing can ever be delivered.
func (h *Hooks) checkReach(ctx context.Context, text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return bad("url: is not a URL")
	}
	allowed, err := h.reach(ctx)
	if err != nil {
		return err
	}
	if err := allowed.Check(u); err != nil {
		return bad("url: %s", err.Error())
	}
	return nil
}

func key(kind, ns, name string, more ...string) string {
	return strings.Join(append([]string{kind, ns, name}, more...), ".")
}

// checked returns the namespace, if the webhook can have that name.
func (h *Hooks) checked(ns, name string) (string, error) {
	ns, err := h.runs.CheckNamespace(ns)
	switch {
	case err != nil:
		return "", err
	case name != "" && !events.ValidToken(name):
		return "", bad("name: %.100q is not [a-z0-9][a-z0-9_-]{0,62}", name)
	}
	return ns, nil
}

// webhook reads a webhook. One that is not there is a CodeWebhookNotFound.
func (h *Hooks) webhook(ctx context.Context, ns, name string) (*hook, uint64, error) {
	ns, err := h.checked(ns, cmp.Or(name, "?"))
	if err != nil {
		return nil, 0, err
	}
	data, revision, err := h.value(ctx, key(kindHook, ns, name))
	if errors.Is(err, journal.ErrNotFound) {
		return nil, 0, refusal.New(refusal.NotFound, row.CodeWebhookNotFound, "there is no webhook %q in namespace %s", name, ns)
	}
	var found hook
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	return &found, revision, err
}

// PutWebhook makes or changes a webhook. A new one, and one that was disabled, gets the events from
// now on. The answer has the secret if one was made. Refusals: bad_webhook, conflict.
func (h *Hooks) PutWebhook(ctx context.Context, ns, name string, c Change) (Info, error) {
	ns, err := h.checked(ns, cmp.Or(name, "?"))
	if err == nil {
		err = c.check()
	}
	if err == nil {
		err = h.checkReach(ctx, c.URL)
	}
	if err != nil {
		return Info{}, err
	}
	w, revision, err := h.webhook(ctx, ns, name)
	switch {
	case refusal.Is(err, row.CodeWebhookNotFound):
		if err = h.room(ctx, ns); err != nil {
			return Info{}, err
		}
		w = &hook{Namespace: ns, Name: name, Disabled: "new"}
	case err != nil:
		return Info{}, err
	}
	now, made := time.Now().UTC(), ""
	if c.Secret == "" && (len(w.Secrets) == 0 || c.Rotate) {
		made = NewSecret()
	}
	if key := cmp.Or(c.Secret, made); key != "" && (len(w.Secrets) == 0 || w.Secrets[0].Key != key) {
		w.rotate(key, now)
	}
	w.URL, w.On, w.Agents, w.Form, w.SubRuns, w.AllowHTTP = c.URL, c.On, c.Agents, c.Form, c.SubRuns, c.AllowHTTP
	if w.Disabled != "" {
		w.Disabled, w.Made = "", now
		if w.From, err = h.ends(ctx); err != nil {
			return Info{}, err
		}
		if w.Log, err = h.cfg.KV.Born(ctx); err != nil {
			return Info{}, err
		}
	}
	if err := h.put(ctx, w, revision); err != nil {
		return Info{}, err
	}
	info, err := h.Webhook(ctx, ns, name)
	info.Secret = made
	return info, err
}

// room refuses a webhook beyond those that a namespace may have.
func (h *Hooks) room(ctx context.Context, ns string) error {
	count := 0
	err := h.values(ctx, kindHook+"."+ns, func(string, []byte, uint64) { count++ })
	switch {
	case errors.Is(err, journal.ErrNotReady):
		return nil // to put the first one makes the bucket, where this user may
	case err == nil && count >= maxHooks:
		return refusal.New(refusal.Conflict, refusal.CodeConflict, "namespace %s has %d webhooks, and may have no more", ns, count)
	}
	return err
}

// ends returns where each shard of the log ends.
func (h *Hooks) ends(ctx context.Context) ([]uint64, error) {
	ends := make([]uint64, h.runs.Log.Shards())
	for shard := range ends {
		end, err := h.runs.Log.Last(ctx, shard)
		if err != nil {
			return nil, err
		}
		ends[shard] = end
	}
	return ends, nil
}

// put stores a webhook.
func (h *Hooks) put(ctx context.Context, w *hook, revision uint64) error {
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	_, err = h.putValue(ctx, w.key(), data, revision, 0)
	if errors.Is(err, journal.ErrConflict) {
		return refusal.Wrap(err, refusal.Conflict, refusal.CodeConflict, "somebody else changes the webhook %s; try again", w.Name)
	}
	h.wake()
	return err
}

func (h *Hooks) wake() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Webhook shows a webhook. One that is not there is a CodeWebhookNotFound.
func (h *Hooks) Webhook(ctx context.Context, ns, name string) (Info, error) {
	w, _, err := h.webhook(ctx, ns, name)
	if err != nil {
		return Info{}, err
	}
	s, _, err := h.state(ctx, w)
	if err != nil {
		return Info{}, err
	}
	count := 0
	err = h.values(ctx, key(kindDead, w.Namespace, name), func(string, []byte, uint64) { count++ })
	return w.info(s, count, time.Now()), err
}

// Webhooks shows the webhooks of the namespace, sorted by name.
func (h *Hooks) Webhooks(ctx context.Context, ns string) ([]Info, error) {
	ns, err := h.checked(ns, "")
	if err != nil {
		return nil, err
	}
	var hooks []*hook
	err = h.values(ctx, kindHook+"."+ns, func(_ string, value []byte, _ uint64) {
		var w hook
		if json.Unmarshal(value, &w) == nil {
			hooks = append(hooks, &w)
		}
	})
	if err != nil {
		return nil, err
	}
	given := map[string]int{}
	err = h.values(ctx, kindDead+"."+ns, func(key string, _ []byte, _ uint64) { given[strings.Split(key, ".")[2]]++ })
	if err != nil {
		return nil, err
	}
	slices.SortFunc(hooks, func(x, y *hook) int { return cmp.Compare(x.Name, y.Name) })
	all := make([]Info, len(hooks))
	for i, w := range hooks {
		s, _, err := h.state(ctx, w)
		if err != nil {
			return nil, err
		}
		all[i] = w.info(s, given[w.Name], time.Now())
	}
	return all, nil
}

// DeleteWebhook removes a webhook, with what was not delivered. One that is not there is a
// CodeWebhookNotFound.
func (h *Hooks) DeleteWebhook(ctx context.Context, ns, name string) error {
	w, revision, err := h.webhook(ctx, ns, name)
	if err != nil {
		return err
	}
	if err := h.deleteValue(ctx, key(kindHook, w.Namespace, name), revision); err != nil {
		return err
	}
	h.wake()
	revisions := map[string]uint64{}
	note := func(key string, _ []byte, revision uint64) { revisions[key] = revision }
	for _, kind := range []string{kindDead, kindRetry} {
		if err := h.values(ctx, key(kind, w.Namespace, name), note); err != nil {
			return err
		}
	}
	if _, revision, err := h.value(ctx, key(kindState, w.Namespace, name)); err == nil {
		revisions[key(kindState, w.Namespace, name)] = revision
	}
	for key, revision := range revisions {
		if err := h.deleteValue(ctx, key, revision); err != nil && !errors.Is(err, journal.ErrConflict) {
			return err
		}
	}
	return nil
}

// Tested is how a test of a webhook went.
type Tested struct {
	Delivered bool   `json:"delivered"`
	Status    int    `json:"status,omitempty" jsonschema:"The status of the receiver's answer."`
	Error     string `json:"error,omitempty"`
	// Took is in milliseconds.
	Took int64 `json:"took_ms"`
}

// TestWebhook sends a notice of the type webhook.test from this process, once, and says how that
// went.
func (h *Hooks) TestWebhook(ctx context.Context, ns, name string) (Tested, error) {
	w, _, err := h.webhook(ctx, ns, name)
	if err != nil {
		return Tested{}, err
	}
	n := Notice{Type: TypeTest, Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Data: Data{Namespace: w.Namespace, Webhook: w.Name}}
	body, err := n.body(w.Form)
	if err != nil {
		return Tested{}, err
	}
	o := h.sender.Post(ctx, w.message("test_"+uuid.NewString(), body))
	t := Tested{Delivered: o.Delivered(), Status: o.Status, Took: o.Took.Milliseconds()}
	if !t.Delivered {
		t.Error = o.Reason()
	}
	return t, nil
}

// deadLetter is a notice that was given up, as it is stored.
type deadLetter struct {
	pending
	Type string    `json:"type"`
	At   time.Time `json:"at"`
}

// letters returns what was given up by the keys' revisions, the oldest first. ids are the events;
// none: all. An event that is not there is a CodeNotDead.
func (h *Hooks) letters(ctx context.Context, ns, name string, ids []string) (letters []deadLetter, revisions []uint64, err error) {
	w, _, err := h.webhook(ctx, ns, name)
	if err != nil {
		return nil, nil, err
	}
	type stored struct {
		deadLetter
		revision uint64
	}
	var found []stored
	err = h.values(ctx, key(kindDead, w.Namespace, name), func(_ string, value []byte, revision uint64) {
		var l deadLetter
		if json.Unmarshal(value, &l) == nil && (len(ids) == 0 || slices.Contains(ids, l.Event)) {
			found = append(found, stored{l, revision})
		}
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(found, func(x, y stored) int { return x.At.Compare(y.At) })
	for _, f := range found {
		letters, revisions = append(letters, f.deadLetter), append(revisions, f.revision)
	}
	for _, id := range ids {
		if !slices.ContainsFunc(letters, func(l deadLetter) bool { return l.Event == id }) {
			return nil, nil, refusal.New(refusal.NotFound, refusal.CodeNotDead, "%.100q is not in the list of what webhook %s gave up; nothing was changed", id, name)
		}
	}
	return letters, revisions, nil
}

// WebhookDead lists the notices that were given up, the oldest first.
func (h *Hooks) WebhookDead(ctx context.Context, ns, name string) ([]Undelivered, error) {
	letters, _, err := h.letters(ctx, ns, name, nil)
	all := make([]Undelivered, len(letters))
	for i, l := range letters {
		all[i] = Undelivered{ID: l.Event, Run: l.Run, Type: l.Type, Attempts: l.Attempts, Reason: l.Error, Time: l.At}
	}
	return all, err
}

// RetryWebhook has notices delivered that were given up, by their events; none: all of them. It
// returns how many. They come behind what the run's receivers have already.
func (h *Hooks) RetryWebhook(ctx context.Context, ns, name string, ids []string) (int, error) {
	defer h.wake()
	return h.takeLetters(ctx, ns, name, ids, func(ns string, l deadLetter) error {
		data, err := json.Marshal(l.pending)
		if err != nil {
			return err
		}
		_, err = h.putValue(ctx, key(kindRetry, ns, name, l.Event), data, 0, 0)
		if errors.Is(err, journal.ErrConflict) {
			return nil // it is asked for already
		}
		return err
	})
}

// DropWebhook forgets notices that were given up, by their events; none: all of them. It returns how
// many.
func (h *Hooks) DropWebhook(ctx context.Context, ns, name string, ids []string) (int, error) {
	return h.takeLetters(ctx, ns, name, ids, func(string, deadLetter) error { return nil })
}

// takeLetters removes what was given up, after keep has returned for it.
func (h *Hooks) takeLetters(ctx context.Context, ns, name string, ids []string, keep func(ns string, l deadLetter) error) (int, error) {
	letters, revisions, err := h.letters(ctx, ns, name, ids)
	if err != nil {
		return 0, err
	}
	ns, err = h.checked(ns, name)
	for i := 0; i < len(letters) && err == nil; i++ {
		if err = keep(ns, letters[i]); err == nil {
			err = h.deleteValue(ctx, key(kindDead, ns, name, letters[i].Event), revisions[i])
		}
		if errors.Is(err, journal.ErrConflict) {
			err = nil // somebody else took it
		}
		if err != nil {
			return i, fmt.Errorf("after %d of %d notices: %w", i, len(letters), err)
		}
	}
	return len(letters), err
}
