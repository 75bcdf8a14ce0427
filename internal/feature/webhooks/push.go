package webhooks

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Pushes are webhooks that only the protocol of their client shows: [control.Pushes].

// SetUpdates says who makes the updates of pushes. Without it none is sent.
func (h *Hooks) SetUpdates(u control.Updates) { h.updates.Store(&u) }

const (
	kindPush = "push"
	// maxPushes bounds the pushes of a run, maxAllPushes those of a namespace, and maxPushText each
	// of their texts, in bytes.
	maxPushes    = 10
	maxAllPushes = 1000
	maxPushText  = 4096
	// keepPush is how long it is kept how far delivery is.
	keepPush = 30 * 24 * time.Hour
	// tokenHeader has the token. Receivers of a2a-go read the other one.
	tokenHeader      = "X-A2A-Notification-Token"
	otherTokenHeader = "A2A-Notification-Token"
)

// hashed makes a token of an id.
func hashed(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// key is where a webhook is kept.
func (h *hook) key() string {
	if h.Push != nil {
		return key(kindPush, h.Namespace, h.Push.Run, hashed(h.Push.ID))
	}
	return key(kindHook, h.Namespace, h.Name)
}

// CheckPush returns what is wrong with a push: a bad_webhook.
func (h *Hooks) CheckPush(ctx context.Context, p control.Push) error {
	if err := checkPush(&p); err != nil {
		return err
	}
	return h.checkReach(ctx, p.URL)
}

func checkPush(p *control.Push) error {
	if err := checkURL(p.URL, false); err != nil {
		return err
	}
	for name, text := range map[string]string{"id": p.ID, "token": p.Token, "authentication.scheme": p.Scheme, "authentication.credentials": p.Credentials} {
		if len(text) > maxPushText || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return bad("%s: must be one line of at most %d bytes", name, maxPushText)
		}
	}
	if strings.Contains(p.Scheme, " ") || p.Scheme == "" && p.Credentials != "" {
		return bad("authentication.scheme: must be a word such as Bearer")
	}
	return nil
}

// PutPush has the updates of a run posted. A push with the same id is replaced, and one that is
// equal stays as it is. The run has to be there. Refusals: bad_webhook, conflict.
func (h *Hooks) PutPush(ctx context.Context, ns string, p control.Push) (control.Push, error) {
	ns, err := h.checked(ns, "")
	if err != nil {
		return p, err
	}
	if p.ID == "" {
		p.ID = uuid.NewString()
	}
	if err := h.CheckPush(ctx, p); err != nil {
		return p, err
	}
	w := &hook{Namespace: ns, Name: p.Run + "-" + hashed(p.ID), URL: p.URL, Push: &p, Made: time.Now().UTC()}
	all, revisions, err := h.pushes(ctx, ns, p.Run)
	if err != nil {
		return p, err
	}
	i := slices.IndexFunc(all, func(o control.Push) bool { return o.ID == p.ID })
	var revision uint64
	switch {
	case i >= 0:
		was := all[i]
		was.After, was.Base = p.After, p.Base
		if was == p {
			return all[i], nil
		}
		revision = revisions[i]
	case len(all) >= maxPushes:
		return p, refusal.New(refusal.Conflict, refusal.CodeConflict, "the task has %d push notification configurations, and may have no more", maxPushes)
	default:
		if err := h.roomForPush(ctx, ns); err != nil {
			return p, err
		}
	}
	w.From = make([]uint64, h.runs.Log.Shards())
	if w.Log, err = h.cfg.KV.Born(ctx); err != nil {
		return p, err
	}
	return p, h.put(ctx, w, revision)
}

// roomForPush refuses a push beyond those that a namespace may have. Each has a reader.
func (h *Hooks) roomForPush(ctx context.Context, ns string) error {
	count := 0
	err := h.values(ctx, kindPush+"."+ns, func(string, []byte, uint64) { count++ })
	switch {
	case errors.Is(err, journal.ErrNotReady):
		return nil
	case err == nil && count >= maxAllPushes:
		return refusal.New(refusal.Conflict, refusal.CodeConflict, "namespace %s has %d push notification configurations of open tasks, and may have no more; get this task from time to time, or subscribe to it", ns, count)
	}
	return err
}

// Pushes returns those of a run, sorted by id.
func (h *Hooks) Pushes(ctx context.Context, ns, run string) ([]control.Push, error) {
	ns, err := h.checked(ns, "")
	if err != nil {
		return nil, err
	}
	all, _, err := h.pushes(ctx, ns, run)
	return all, err
}

// DeletePush removes a push. One that is not there is no error.
func (h *Hooks) DeletePush(ctx context.Context, ns, run, id string) error {
	ns, err := h.checked(ns, "")
	if err != nil {
		return err
	}
	all, revisions, err := h.pushes(ctx, ns, run)
	if i := slices.IndexFunc(all, func(o control.Push) bool { return o.ID == id }); err == nil && i >= 0 {
		err = h.deleteValue(ctx, key(kindPush, ns, run, hashed(id)), revisions[i])
		h.wake()
	}
	return err
}

func (h *Hooks) pushes(ctx context.Context, ns, run string) (all []control.Push, revisions []uint64, err error) {
	type stored struct {
		control.Push
		revision uint64
	}
	var found []stored
	err = h.values(ctx, key(kindPush, ns, run), func(_ string, value []byte, revision uint64) {
		var w hook
		if json.Unmarshal(value, &w) == nil && w.Push != nil {
			found = append(found, stored{*w.Push, revision})
		}
	})
	if errors.Is(err, journal.ErrNotReady) {
		err = nil // to put the first one makes the bucket, where this user may
	}
	slices.SortFunc(found, func(a, b stored) int { return strings.Compare(a.ID, b.ID) })
	for _, f := range found {
		all, revisions = append(all, f.Push), append(revisions, f.revision)
	}
	return all, revisions, err
}

// address puts what the receiver wants into a message.
func address(p *control.Push, m *Message, media string) {
	m.Media, m.Header = media, map[string]string{}
	if p.Token != "" {
		m.Header[tokenHeader], m.Header[otherTokenHeader] = p.Token, p.Token
	}
	switch strings.ToLower(p.Scheme) {
	case "":
	case "basic":
		credentials := p.Credentials
		if strings.Contains(credentials, ":") { // user:password, not encoded yet
			credentials = base64.StdEncoding.EncodeToString([]byte(credentials))
		}
		m.Header["Authorization"] = p.Scheme + " " + credentials
	default:
		m.Header["Authorization"] = p.Scheme + " " + p.Credentials
	}
}

// readPush hands on the updates of the run of a push. owes says that some were not delivered yet.
func (r *reader) readPush(ctx context.Context, updates control.Updates, shard int, after uint64, owes bool) {
	p := r.hook.Push
	run := r.runs.Store.Place(r.hook.Namespace, p.Run)
	if run.Shard != shard {
		return
	}
	ends := func() {
		select {
		case r.done <- result{p: &pending{Run: p.Run, Last: true}, gone: true}:
		case <-ctx.Done():
		}
	}
	if _, err := record(ctx, r.log, run, 0); errors.Is(err, journal.ErrNotFound) {
		ends() // it was purged
		return
	}
	next := updates.Follow(r.hook.Namespace, p.Run)
	for rec, err := range r.log.Follow(ctx, shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		if err != nil {
			return // ctx ended
		}
		n, changed, over, err := next(ctx, rec)
		if err != nil {
			r.logger.Warn("the updates of a task cannot be read; they are read again later", "run", p.Run, "reason", err)
			return
		}
		e := r.runs.Decode(rec)
		fresh := rec.Seq > after && n > p.After
		if e != nil && changed && fresh && (slices.Contains(r.owed, e.ID) || !e.Time.Before(r.since.Add(-clockSkew))) {
			select {
			case r.found <- pending{Event: e.ID, Run: p.Run, Shard: shard, Seq: rec.Seq, Last: over}:
			case <-ctx.Done():
				return
			}
		} else if over && !owes {
			ends()
		}
		r.seen[shard].Store(max(rec.Seq, after))
		if over {
			return
		}
	}
}

// errOver says that a push is not needed any more.
var errOver = errors.New("the task has ended")

// endPush removes a push.
func (r *reader) endPush(ctx context.Context) error {
	if err := r.note(ctx); err != nil { // a process that starts it again meanwhile sends nothing twice
		return err
	}
	err := r.deleteValue(ctx, r.hook.key(), r.hookRevision)
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		return err
	}
	return errOver
}
