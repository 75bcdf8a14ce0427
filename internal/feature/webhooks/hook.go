package webhooks

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Kind is what a webhook tells of.
type Kind string

// The kinds.
const (
	// Waiting is for runs that wait for a decision, an answer or a message of a person.
	Waiting Kind = "waiting"
	// Ended, Failed and Cancelled are for runs that ended in those ways.
	Ended     Kind = "ended"
	Failed    Kind = "failed"
	Cancelled Kind = "cancelled"
	// Budget is for runs that used up their budget.
	Budget Kind = "budget"
	// Dead is for runs that ended because they could not be processed.
	Dead Kind = "dead"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Waiting, Ended, Failed, Cancelled, Budget, Dead} }

// Form is the form of the bodies.
type Form string

// The forms: that of Standard Webhooks, and a text for what takes Slack's incoming webhooks.
const (
	Standard Form = "standard"
	Slack    Form = "slack"
)

const (
	// maxHooks bounds the webhooks of a namespace.
	maxHooks = 100
	// rotation is how long the secret before the present one signs, too.
	rotation = 24 * time.Hour
	// maxURL bounds a URL, in bytes, maxAgents the agents of a webhook.
	maxURL    = 2048
	maxAgents = 100
)

// hook is a webhook as it is stored.
type hook struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	URL       string   `json:"url"`
	On        []Kind   `json:"on"`
	Agents    []string `json:"agents,omitempty"`
	Form      Form     `json:"form"`
	SubRuns   bool     `json:"sub_runs,omitempty"`
	AllowHTTP bool     `json:"allow_http,omitempty"`
	// Secrets are the newest first.
	Secrets []secret `json:"secrets"`
	// Made is when the webhook was put first, or again after it was disabled, and From where
	// each shard of the log that was made at Log ended then.
	Made time.Time `json:"made"`
	From []uint64  `json:"from"`
	Log  time.Time `json:"log,omitzero"`
	// Disabled says why nothing is sent any more; empty: it is.
	Disabled string `json:"disabled,omitempty"`
	// Push is what a client of a protocol asked for; nil: this is no push.
	Push *control.Push `json:"push,omitempty"`
}

// secret signs until then; the zero time: for ever.
type secret struct {
	Key   string    `json:"key"`
	Until time.Time `json:"until,omitzero"`
}

// Change is what a webhook is to be.
type Change struct {
	URL string `json:"url" jsonschema:"Where notices are posted to: https, or http to a loopback address."`
	On  []Kind `json:"on,omitempty" jsonschema:"What to tell of: waiting, ended, failed, cancelled, budget, dead. Default: all."`
	// Agents are those that runs began with; empty: every agent.
	Agents    []string `json:"agents,omitempty" jsonschema:"Only runs that began with one of these agents."`
	Form      Form     `json:"form,omitempty" jsonschema:"standard (the default), or slack: a text."`
	Secret    string   `json:"secret,omitempty" jsonschema:"The signing secret, whsec_ and base64 of 24 to 64 bytes. Default: the present one, or a new one, which the answer shows once."`
	Rotate    bool     `json:"rotate,omitempty" jsonschema:"Make a new secret. The one before signs for 24 hours more."`
	SubRuns   bool     `json:"sub_runs,omitempty" jsonschema:"Also tell of runs that answer calls of other runs."`
	AllowHTTP bool     `json:"allow_http,omitempty" jsonschema:"Allow http to addresses that are not loopback. What is sent can then be read on the way."`
}

// Info is a webhook as it is shown: without its secrets, and without what may be secret in its
// URL.
type Info struct {
	Name    string   `json:"name"`
	URL     string   `json:"url" jsonschema:"Without what may be secret: the query, and for slack the path."`
	On      []Kind   `json:"on"`
	Agents  []string `json:"agents,omitempty"`
	Form    Form     `json:"form"`
	SubRuns bool     `json:"sub_runs,omitempty"`
	// Made is since when events are sent.
	Made     time.Time `json:"made" jsonschema:"Events since then are sent."`
	Disabled string    `json:"disabled,omitempty" jsonschema:"Why nothing is sent any more. Put the webhook again to enable it."`
	// Pending, Failing and Next say how delivery stands, as it was noted last.
	Pending int       `json:"pending" jsonschema:"How many notices wait to be delivered."`
	Failing string    `json:"failing,omitempty" jsonschema:"Why the first of them that failed did so."`
	Next    time.Time `json:"next,omitzero" jsonschema:"When it is tried again."`
	Dead    int       `json:"dead" jsonschema:"How many notices were given up."`
	// OldSecretUntil is how long the secret before the present one signs, too.
	OldSecretUntil time.Time `json:"old_secret_until,omitzero"`
	Secret         string    `json:"secret,omitempty" jsonschema:"A secret that was just made. It is not shown again."`
}

// Undelivered is a notice that was given up.
type Undelivered struct {
	ID       string    `json:"id" jsonschema:"The event."`
	Run      string    `json:"run_id"`
	Type     string    `json:"type"`
	Attempts int       `json:"attempts"`
	Reason   string    `json:"reason"`
	Time     time.Time `json:"time" jsonschema:"When it was given up."`
}

// bad is the refusal of a webhook.
func bad(format string, args ...any) error {
	return refusal.New(refusal.Invalid, row.CodeBadWebhook, format, args...)
}

// check completes a change and says what is wrong with it.
func (c *Change) check() error {
	if err := checkURL(c.URL, c.AllowHTTP); err != nil {
		return err
	}
	if len(c.On) == 0 {
		c.On = Kinds()
	}
	for _, kind := range c.On {
		if !slices.Contains(Kinds(), kind) {
			return bad("on: %.100q is not known; use %s", kind, Names())
		}
	}
	if c.Form == "" {
		c.Form = Standard
	}
	if c.Form != Standard && c.Form != Slack {
		return bad("form: %.100q is not known; use %s or %s", c.Form, Standard, Slack)
	}
	if len(c.Agents) > maxAgents {
		return bad("agents: at most %d may be named", maxAgents)
	}
	for _, agent := range c.Agents {
		if !events.ValidToken(agent) {
			return bad("agents: %.100q is not the name of an agent", agent)
		}
	}
	if c.Secret != "" && c.Rotate {
		return bad("rotate: a new secret is made, so give none")
	}
	if c.Secret == "" {
		return nil
	}
	if err := CheckSecret(c.Secret); err != nil {
		return bad("secret: %s", err.Error())
	}
	return nil
}

// Names returns the kinds as a text.
func Names() string {
	names := make([]string, len(Kinds()))
	for i, kind := range Kinds() {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

func checkURL(text string, allowHTTP bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return bad("url: is not a URL of the form https://host/path")
	case len(text) > maxURL:
		return bad("url: is longer than %d bytes", maxURL)
	case u.User != nil || u.Fragment != "":
		return bad("url: must have neither a user nor a fragment; the receiver checks the signature")
	case u.Scheme == "http" && !allowHTTP && !isLoopback(u.Hostname()):
		return bad("url: http is read and changed on the way; use https, or allow_http")
	}
	return nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

// shownURL leaves out what may be secret in a URL.
func shownURL(text string, form Form) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	shown := u.Scheme + "://" + u.Host
	switch {
	case form == Slack:
		return shown + "/…"
	case u.RawQuery != "":
		return shown + u.EscapedPath() + "?…"
	}
	return shown + u.EscapedPath()
}

// rotate makes a secret the present one. The one before signs for some time more.
func (h *hook) rotate(key string, now time.Time) {
	kept := []secret{{Key: key}}
	if len(h.Secrets) > 0 && h.Secrets[0].Key != key {
		kept = append(kept, secret{Key: h.Secrets[0].Key, Until: now.Add(rotation)})
	}
	h.Secrets = kept
}

// keys returns the secrets that sign now.
func (h *hook) keys(now time.Time) (keys []string) {
	for _, s := range h.Secrets {
		if s.Until.IsZero() || now.Before(s.Until) {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// message is a body on its way to the webhook.
func (h *hook) message(id string, body []byte) Message {
	return Message{URL: h.URL, ID: id, Secrets: h.keys(time.Now()), Body: body}
}

// wants reports whether the webhook tells of a kind.
func (h *hook) wants(kind Kind) bool { return slices.Contains(h.On, kind) }

// info returns what is shown of the webhook.
func (h *hook) info(s *state, dead int, now time.Time) Info {
	i := Info{
		Name: h.Name, URL: shownURL(h.URL, h.Form), On: h.On, Agents: h.Agents, Form: h.Form, SubRuns: h.SubRuns,
		Made: h.Made, Disabled: h.Disabled, Dead: dead,
	}
	if len(h.Secrets) > 1 && now.Before(h.Secrets[1].Until) {
		i.OldSecretUntil = h.Secrets[1].Until
	}
	if s.Made.Equal(h.Made) {
		i.Pending = len(s.Pending)
		for _, p := range s.Pending {
			if p.Attempts > 0 {
				i.Failing, i.Next = p.Error, p.Next
				break
			}
		}
	}
	return i
}
