package sim

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// hookSpec is a webhook and how its receiver does.
type hookSpec struct {
	Name string          `json:"name"`
	On   []webhooks.Kind `json:"on,omitempty"`
	// SubRuns is whether it is told of runs that answer calls, too.
	SubRuns bool `json:"sub_runs"`
	// At is when it is put, Down from when on and Until when its receiver is down.
	At, Down, Until time.Duration
	// Fails is how often the receiver fails otherwise: half of the time after it took the notice.
	Fails  float64 `json:"fails"`
	Chance uint64  `json:"chance"`
}

var ends = []webhooks.Kind{webhooks.Ended, webhooks.Failed, webhooks.Cancelled, webhooks.Budget, webhooks.Dead}

// hook draws webhooks, which one of ten scenarios has, and has leases move there.
func (s *scenario) hook(d draw) {
	if !d.oneIn(10) || s.LoseOneIn > 0 {
		return
	}
	s.Runs = s.Runs[:min(len(s.Runs), 3)]
	for i := range 1 + d.IntN(2) {
		h := hookSpec{Name: "hook" + string('a'+rune(i)), At: d.upTo(10 * time.Second), SubRuns: d.oneIn(2), Chance: d.Uint64()}
		h.On = [][]webhooks.Kind{nil, {webhooks.Waiting}, ends}[d.IntN(3)]
		if !s.calm() {
			h.Fails = 0.4 * d.Float64()
			h.Down = d.upTo(time.Minute)
			h.Until = h.Down + d.upTo(2*time.Minute)
		}
		s.Hooks = append(s.Hooks, h)
	}
	if s.CrashOneIn > 0 {
		s.Faults.Lease = d.Float64()
	}
}

// again are the pauses of notices that failed. No receiver is down for longer.
var again = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 20 * time.Second, time.Minute, time.Minute, time.Minute, time.Minute, time.Minute,
	time.Minute, time.Minute, time.Minute, time.Minute, time.Minute, time.Minute, time.Minute, time.Minute, time.Minute,
}

// receiver is who put a webhook, and gets its notices.
type receiver struct {
	*person
	spec   *hookSpec
	secret []byte
	began  time.Time
	// put is when the webhook was put.
	put asked

	mu sync.Mutex
	// got are the bodies by the notices' ids, order the ids of each run as they came first.
	got   map[string][]byte
	order map[string][]uint64
	// tries counts the attempts, repeats the notices that came again.
	tries, repeats int
}

func newReceiver(w *world, spec *hookSpec) *receiver {
	secret := sha256.Sum256([]byte(spec.Name))
	return &receiver{
		spec: spec, person: &person{w: w, spec: &runSpec{ID: spec.Name}, rand: rand.New(rand.NewPCG(spec.Chance, 2))},
		secret: secret[:], began: time.Now(), got: map[string][]byte{}, order: map[string][]uint64{},
	}
}

// live puts the webhook.
func (r *receiver) live(ctx context.Context) {
	sleep(ctx, r.spec.At)
	began := time.Now()
	r.askAt(ctx, func(at *process) error {
		_, err := at.hooks.PutWebhook(ctx, "", r.spec.Name, webhooks.Change{
			URL: "https://example.com/" + r.spec.Name, On: r.spec.On, SubRuns: r.spec.SubRuns,
			Secret: webhooks.SecretPrefix + base64.StdEncoding.EncodeToString(r.secret),
		})
		if is(err, refusal.CodeConflict) {
			return errLater
		}
		return err
	})
	r.put = asked{began, time.Now()}
}

// posting carries what a process posts to the receivers.
type posting struct{ p *process }

var errReset = errors.New("connection reset by peer")

// RoundTrip is the receiver's answer.
func (c posting) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(c.p.w.receivers, func(r *receiver) bool { return "/"+r.spec.Name == req.URL.Path })
	if i < 0 {
		return nil, errReset
	}
	r := c.p.w.receivers[i]
	r.mu.Lock()
	r.tries++
	try := r.tries
	r.mu.Unlock()
	if !c.p.waits(req.Context(), c.p.w.part(2*time.Second, "post", r.spec.Name, try)) {
		return nil, errReset
	}
	fails := simtest.Chance(c.p.w.scenario.Seed, "receiver", r.spec.Name, try)
	since := time.Since(r.began)
	switch {
	case since >= r.spec.Down && since < r.spec.Until && try%2 == 0:
		if c.p.waits(req.Context(), time.Minute) {
			r.fail("an attempt lasts longer than a minute")
		}
		return nil, errReset
	case since >= r.spec.Down && since < r.spec.Until, fails < r.spec.Fails/2:
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
	}
	r.take(req.Header, body)
	if fails < r.spec.Fails || !c.p.alive() {
		return nil, errReset
	}
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
}

func (r *receiver) fail(format string, args ...any) {
	r.w.audit.violate(r.spec.Name, "webhook", format, args...)
}

// take checks a notice that came.
func (r *receiver) take(h http.Header, body []byte) {
	id, stamp := h.Get("webhook-id"), h.Get("webhook-timestamp")
	mac := hmac.New(sha256.New, r.secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); h.Get("webhook-signature") != want {
		r.fail("notice %s is signed %s, want %s", id, h.Get("webhook-signature"), want)
	}
	var n webhooks.Notice
	if err := json.Unmarshal(body, &n); err != nil {
		r.fail("notice %s: %v", id, err)
	}
	if wrong := r.note(id, body, n); wrong != "" {
		r.fail("%s", wrong)
	}
}

// note notes a notice, and returns what is wrong with it beside those before. The audit locks itself
// before it reads what is noted, so nothing is reported in here.
func (r *receiver) note(id string, body []byte, n webhooks.Notice) (wrong string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, known := r.got[id]; known {
		r.repeats++
		if !bytes.Equal(was, body) {
			return fmt.Sprintf("notice %s came again with another body: %s, then %s", id, was, body)
		}
		return ""
	}
	r.got[id] = body
	if order := r.order[n.Data.Run]; len(order) > 0 && order[len(order)-1] > n.Data.N {
		wrong = fmt.Sprintf("the notice of event %d of run %s came after %v", n.Data.N, n.Data.Run, order)
	}
	r.order[n.Data.Run] = append(r.order[n.Data.Run], n.Data.N)
	return wrong
}

// missing returns the notices that have to come and have not, and checks that each of those that
// came is of an event that the webhook is for.
func (r *receiver) missing() (missing []string) {
	a := r.w.audit
	a.mu.Lock()
	defer a.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	stray := map[string]bool{}
	for id := range r.got {
		stray[id] = true
	}
	for _, rec := range a.records {
		e, err := a.machine.Codec().Decode(rec.Body)
		if err != nil || rec.Stored.Before(r.put.from) || !r.wants(e, a.runs[e.Run].mem.Control.Parent != nil) {
			continue
		}
		id := e.ID + "_" + r.spec.Name
		var n webhooks.Notice
		switch _ = json.Unmarshal(r.got[id], &n); {
		case !stray[id] && rec.Stored.After(r.put.to):
			missing = append(missing, id)
		case stray[id] && (n.Data.Run != e.Run || n.Data.N != e.N || n.Data.Event != e.Type() || n.Data.State != e.To):
			a.note(r.spec.Name, "webhook", "notice %s of event %d (%s) of run %s says %+v", id, e.N, e.Type(), e.Run, n.Data)
		}
		delete(stray, id)
	}
	for id := range stray {
		a.note(r.spec.Name, "webhook", "notice %s is of no event that the webhook is for: %s", id, r.got[id])
	}
	return missing
}

// wants reports whether the webhook is for an event.
func (r *receiver) wants(e *events.Event, subrun bool) bool {
	if subrun && !r.spec.SubRuns || e.From == e.To && e.N > 1 {
		return false
	}
	waits := e.To == events.WaitingForHuman || e.To == events.WaitingForUser
	over := e.To == events.Done || e.To == events.Errored || e.To == events.Cancelled
	return waits && !slices.Contains(r.spec.On, webhooks.Ended) || over && !slices.Contains(r.spec.On, webhooks.Waiting)
}

// awaitNotices waits until the receivers have all notices.
func (w *world) awaitNotices(ctx context.Context) {
	for _, r := range w.receivers {
		for ctx.Err() == nil && w.audit.violation() == nil && len(r.missing()) > 0 {
			sleep(ctx, 5*time.Second)
		}
		if missing := r.missing(); len(missing) > 0 {
			r.fail("after %s %d notices have not come: %s", patience, len(missing), strings.Join(missing, ", "))
		}
	}
}
