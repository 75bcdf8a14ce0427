package toolcall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/worker"
)

const (
	// DefaultToolWait is how long nobody of a pool may have a tool until its calls are
	// answered that it was not found.
	DefaultToolWait = 30 * time.Second
	// lendAgain is how soon it is tried again to lend a call that nobody took, lendSlowly
	// how soon after that was tried for a while: each time the log is read.
	lendAgain, lendSlowly = 250 * time.Millisecond, 2 * time.Second
)

// Elsewhere decides what becomes of calls of tools that an actor does not have: another
// actor of the pool does them, if one has the tool. It is safe for concurrent use.
type Elsewhere struct {
	directory journal.Directory
	wait      time.Duration
	log       *slog.Logger

	mu sync.Mutex
	// missed are the tools whose calls nobody took, by pool and name.
	missed map[[2]string]miss
	denied sync.Once
}

// miss is since when nobody took calls of a tool, and when that was seen last.
type miss struct{ since, last time.Time }

// NewElsewhere makes it for an actor. wait is how long nobody may have a tool before its
// calls are answered without it; 0: [DefaultToolWait].
func NewElsewhere(directory journal.Directory, wait time.Duration, log *slog.Logger) *Elsewhere {
	if wait <= 0 {
		wait = DefaultToolWait
	}
	return &Elsewhere{directory: directory, wait: wait, log: log, missed: map[[2]string]miss{}}
}

// PeersOf returns the queue's way to lend, nil if it has none.
func PeersOf(q journal.Queue) journal.Peers {
	p, _ := q.(journal.Peers)
	return p
}

// Lend is work that has another actor of the pool do a call. One that nobody takes is
// tried again, since actors come and go; after the wait missing answers that there is no
// such tool. If a living actor announces the tool nevertheless, that is a failed attempt.
func (e *Elsewhere) Lend(pool, tool string, missing worker.Work) worker.Work {
	lent := func(ctx context.Context, retry time.Duration, err error) worker.Result {
		return e.lent(ctx, [2]string{pool, tool}, retry, err, missing)
	}
	return func(context.Context) worker.Result { return worker.Lend(tool, lent) }
}

func (e *Elsewhere) lent(ctx context.Context, key [2]string, retry time.Duration, err error, missing worker.Work) worker.Result {
	nobody := err != nil
	for _, somebody := range []error{journal.ErrPeerHolds, journal.ErrPeerLost, journal.ErrPeersBusy} {
		nobody = nobody && !errors.Is(err, somebody)
	}
	if !nobody {
		e.seen(key)
	}
	switch {
	case err == nil:
		return worker.Elsewhere(retry)
	case errors.Is(err, journal.ErrPeerHolds):
		return worker.Held()
	case errors.Is(err, journal.ErrPeerLost):
		return worker.Retry(events.LLMAttemptFailed{
			Kind: events.KindWorkerLost, Message: "the worker that the call was passed on to went away before it was done",
		}, lendAgain)
	case ctx.Err() != nil:
		return worker.Fail(context.Cause(ctx))
	case !nobody:
		return later(ctx, lendAgain)
	}
	missed := e.missedFor(key)
	if missed >= e.wait {
		return e.giveUp(ctx, key[0], key[1], missing)
	}
	if !errors.Is(err, journal.ErrNoPeer) {
		e.say(key[0], err)
	}
	return later(ctx, min(max(lendAgain, missed/4), lendSlowly, e.wait-missed))
}

// later has the call planned again after a pause.
func later(ctx context.Context, d time.Duration) worker.Result {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return worker.Elsewhere(0)
	case <-ctx.Done():
		return worker.Fail(context.Cause(ctx))
	}
}

// giveUp answers a call that nobody took for as long as it is waited for that.
func (e *Elsewhere) giveUp(ctx context.Context, pool, tool string, missing worker.Work) worker.Result {
	announced, err := e.directory.PoolTools(ctx, pool)
	switch {
	case err != nil && !errors.Is(err, journal.ErrDenied):
		return worker.Fail(fmt.Errorf("nobody of pool %s takes the call, and it is not known who has %s: %w", pool, tool, err))
	case slices.ContainsFunc(announced, func(t events.ToolSpec) bool { return t.Name == tool }):
		return worker.Fail(fmt.Errorf("an actor of pool %s announces %s, but takes no calls from other actors: it is an older build, or its user lacks the permission, see `moorebus init --print-permissions`", pool, tool))
	}
	return missing(ctx)
}

func (e *Elsewhere) seen(key [2]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.missed, key)
}

// forgetMiss is how old the last sign of a missing tool may be for the time before it to
// count: nobody looks while there are no calls.
const forgetMiss = 5 * time.Second

// missedFor returns for how long nobody took calls of a tool.
func (e *Elsewhere) missedFor(key [2]string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(e.missed, func(_ [2]string, m miss) bool { return now.Sub(m.last) > forgetMiss })
	m, known := e.missed[key]
	if !known {
		m.since = now
	}
	m.last = now
	e.missed[key] = m
	return now.Sub(m.since)
}

// say logs once that calls cannot be passed on.
func (e *Elsewhere) say(pool string, err error) {
	e.denied.Do(func() {
		e.log.Warn("calls of tools that this actor does not have cannot be passed on to other actors of the pool", "pool", pool, "reason", err)
	})
}
