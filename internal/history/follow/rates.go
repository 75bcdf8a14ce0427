package follow

import (
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Window is the time that [Rates] are means of, in seconds.
const Window = 60

// Rates are what the log took a second.
type Rates struct {
	Events, Runs float64
}

// rates are what the log took of each namespace in each of the last seconds.
type rates struct {
	mu     sync.Mutex
	spaces map[string]*[ring]second
}

// ring is how many seconds are kept: more than [Window].
const ring = 128

// second is what the log took in one second.
type second struct{ at, events, runs int64 }

// took counts a record; first: it began a run.
func (r *rates) took(rec journal.Record, of events.Run, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spaces[of.Namespace] == nil {
		if r.spaces == nil {
			r.spaces = map[string]*[ring]second{}
		}
		r.spaces[of.Namespace] = &[ring]second{}
	}
	at := rec.Stored.Unix()
	slot := &r.spaces[of.Namespace][uint64(at)%ring]
	switch {
	case slot.at > at:
		return // shards are read side by side, and this one is behind
	case slot.at < at:
		*slot = second{at: at}
	}
	slot.events++
	if first {
		slot.runs++
	}
}

// Rates returns what the log took of a namespace in the last minute, by its own clock, as far as the follower has
// read it.
func (f *Follower) Rates(namespace string, now time.Time) (r Rates) {
	f.rates.mu.Lock()
	defer f.rates.mu.Unlock()
	seconds := f.rates.spaces[namespace]
	if seconds == nil {
		return r
	}
	for _, s := range seconds {
		if age := now.Unix() - s.at; age >= 0 && age < Window {
			r.Events, r.Runs = r.Events+float64(s.events)/Window, r.Runs+float64(s.runs)/Window
		}
	}
	return r
}
