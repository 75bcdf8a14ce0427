package list

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/pkg/events"
)

// Waiting says for whom a run waits.
type Waiting string

// The values of [Waiting] but for the empty one.
const (
	// WaitingHuman is for a decision or an answer, WaitingUser for the next message of a
	// conversation, WaitingClient for the client's tools or model, WaitingActor for an actor of
	// a pool that has none.
	WaitingHuman  Waiting = "human"
	WaitingUser   Waiting = "user"
	WaitingClient Waiting = "client"
	WaitingActor  Waiting = "actor"
)

// Unserved returns the pools without actors and since when they have none, as far as is known; the
// zero time: since before anybody looked.
type Unserved func(ctx context.Context) map[string]time.Time

// shown returns the run as it stands. unserved returns since when pools have no actors.
func (r *row) shown(unserved func() map[string]time.Time) Run {
	info := r.info
	info.Waiting = r.waits()
	if info.WaitsFor = r.waitsFor(unserved); info.WaitsFor != nil && info.Waiting == "" {
		info.Waiting = WaitingActor
	}
	return info
}

// waits returns for whom the run waits; empty: for nobody, or for an actor.
func (r *row) waits() Waiting {
	switch r.info.State {
	case events.WaitingForHuman:
		return WaitingHuman
	case events.WaitingForUser:
		return WaitingUser
	case events.Acting, events.ParallelActing:
		if len(r.open) > 0 {
			return WaitingClient
		}
	case events.Planning, events.Reflecting:
		if r.outside {
			return WaitingClient
		}
	}
	return ""
}

// sent is a call that waits in a pool. Without an id it is every call of a single or of a batch
// that one pool has.
type sent struct{ call, pool string }

// sends takes which pools the run's calls wait in. The subject of the event that sent them names
// the pool.
func (r *row) sends(s events.Subject, e *events.Event) {
	if e.To != events.Acting && e.To != events.ParallelActing {
		r.sent = nil
		return
	}
	switch p := e.Data.(type) {
	case *events.ToolCallResult:
		r.sent = slices.DeleteFunc(r.sent, func(c sent) bool { return c.call == p.CallID })
	case *events.ToolCallDispatched:
		if !slices.ContainsFunc(r.sent, func(c sent) bool { return c.call == p.CallID }) {
			r.sent = append(r.sent, sent{strings.Clone(p.CallID), kept(s.Pool)})
		}
	default:
		if e.From != e.To {
			r.sent = nil
		}
		if s.To == e.To && len(r.sent) == 0 { // also Resumed, after an event that woke nobody
			r.sent = []sent{{pool: kept(s.Pool)}}
		}
	}
}

// waitsFor returns the first pool without actors that has a call of the run; nil: there is none.
func (r *row) waitsFor(unserved func() map[string]time.Time) *runs.WaitsFor {
	if r.info.Paused || r.suspect {
		return nil
	}
	for _, c := range r.sent {
		if since, is := unserved()[c.pool]; is {
			return runs.NewWaitsFor(c.pool, since, r.info.Updated)
		}
	}
	return nil
}
