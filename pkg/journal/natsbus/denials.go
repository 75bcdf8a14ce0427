package natsbus

import (
	"errors"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// denials wakes those who wait for an answer that will not come, because the bus
// refused the publish or the connection broke: both are told to the connection's
// handlers, without any relation to the request, which would only time out.
type denials struct {
	mu       sync.Mutex
	waiting  map[string]map[*func(error)]struct{}
	inFlight map[*func(error)]struct{}
}

// watchRequest calls cancel when a publish on the subject is refused or the
// connection breaks, until release.
func (d *denials) watchRequest(subject string, cancel func(error)) (release func()) {
	unwatch := d.watch(subject, cancel)
	key := &cancel
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inFlight == nil {
		d.inFlight = make(map[*func(error)]struct{})
	}
	d.inFlight[key] = struct{}{}
	return func() {
		d.mu.Lock()
		delete(d.inFlight, key)
		d.mu.Unlock()
		unwatch()
	}
}

// disconnected ends the wait of every request that was on its way.
func (d *denials) disconnected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for cancel := range d.inFlight {
		(*cancel)(nats.ErrDisconnected)
	}
}

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
// publish that somebody waited for.
func (d *denials) note(err error) bool {
	subject, ok := deniedPublish(err)
	if !ok {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.waiting[subject]
	for cancel := range all {
		(*cancel)(&deniedError{subject: subject})
	}
	return len(all) > 0
}

// deniedPublish takes the subject out of the server's text, which is all that
// the client library passes on.
func deniedPublish(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	const mark = `publish to "`
	text := err.Error()
	at := strings.Index(strings.ToLower(text), mark)
	if at < 0 {
		return "", false
	}
	subject, _, ok = strings.Cut(text[at+len(mark):], `"`)
	return subject, ok
}
