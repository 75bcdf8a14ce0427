package natsbus

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// denials wakes those who wait for an answer that will not come, because the bus
// refused the publish or the connection broke: both are told to the connection's
// handlers, without any relation to the request, which would only time out.
type denials struct {
	mu       sync.Mutex
	waiting  map[string]map[*func(error)]struct{}
	inFlight map[*func(error)]struct{}
	// batches tell whether a subject is one of theirs.
	batches map[*func(error)]func(subject string) bool
	// noAnswers is why no answer can come, while the connection lasts.
	noAnswers atomic.Pointer[deafError]
	// replies are the inboxes whose requests are told as well; nil: none.
	replies atomic.Pointer[replies]
}

// watchRequest calls cancel when a publish on the subject is refused or the
// connection breaks, until release.
func (d *denials) watchRequest(subject string, cancel func(error)) (release func()) {
	unwatch := d.watch(subject, cancel)
	key := &cancel
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent(key)
	return func() {
		d.mu.Lock()
		delete(d.inFlight, key)
		d.mu.Unlock()
		unwatch()
	}
}

// watchBatch is watchRequest for many subjects: has is asked for a refused one, and
// must not block.
func (d *denials) watchBatch(has func(subject string) bool, cancel func(error)) (release func()) {
	key := &cancel
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batches == nil {
		d.batches = make(map[*func(error)]func(string) bool)
	}
	d.batches[key] = has
	d.sent(key)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.inFlight, key)
		delete(d.batches, key)
	}
}

// sent notes a request that is on its way. The lock is held.
func (d *denials) sent(key *func(error)) {
	if d.inFlight == nil {
		d.inFlight = make(map[*func(error)]struct{})
	}
	d.inFlight[key] = struct{}{}
	if deaf := d.noAnswers.Load(); deaf != nil {
		(*key)(deaf)
	}
}

// disconnected ends the wait of every request that was on its way.
func (d *denials) disconnected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noAnswers.Store(nil)
	for cancel := range d.inFlight {
		(*cancel)(nats.ErrDisconnected)
	}
	d.replies.Load().fail(nats.ErrDisconnected, anySubject)
}

// anySubject stands for all subjects in [denials.watch].
const anySubject = ""

// watch calls cancel when a publish on the subject is refused, until release.
func (d *denials) watch(subject string, cancel func(error)) (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = make(map[string]map[*func(error)]struct{})
	}
	all := d.waiting[subject]
	if all == nil {
		all = make(map[*func(error)]struct{}, 1)
		d.waiting[subject] = all
	}
	key := &cancel
	all[key] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(all, key)
		if len(all) == 0 && len(d.waiting[subject]) == 0 {
			delete(d.waiting, subject)
		}
	}
}

// note looks at an error of the connection and reports whether it was a refused
// publish that somebody waited for, or refused answers to those who wait.
func (d *denials) note(err error, inboxes string) bool {
	if subject, ok := deniedSubject(err, `subscription to "`); ok && strings.HasPrefix(subject, inboxes) {
		return d.deaf(subject)
	}
	subject, ok := deniedSubject(err, `publish to "`)
	if !ok {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	found := false
	for _, waiting := range []map[*func(error)]struct{}{d.waiting[subject], d.waiting[anySubject]} {
		for cancel := range waiting {
			(*cancel)(&deniedError{subject: subject})
			found = true
		}
	}
	for cancel, has := range d.batches {
		if has(subject) {
			(*cancel)(&deniedError{subject: subject})
			found = true
		}
	}
	told := d.replies.Load().fail(&deniedError{subject: subject}, subject)
	return found || told
}

// deaf ends the wait of every request, and of those to come: there is no answer.
func (d *denials) deaf(inbox string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	deaf := &deafError{inbox: inbox}
	d.noAnswers.Store(deaf)
	for cancel := range d.inFlight {
		(*cancel)(deaf)
	}
	return d.replies.Load().fail(deaf, anySubject) || len(d.inFlight) > 0
}

// deniedSubject takes the subject that follows the mark out of the server's text,
// which is all that the client library passes on.
func deniedSubject(err error, mark string) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	text := err.Error()
	at := strings.Index(strings.ToLower(text), mark)
	if at < 0 {
		return "", false
	}
	subject, _, ok = strings.Cut(text[at+len(mark):], `"`)
	return subject, ok
}
