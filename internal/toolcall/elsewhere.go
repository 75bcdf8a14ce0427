package toolcall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// DefaultToolWait is how long nobody of a pool may have a tool until its calls are
// answered that it was not found.
const DefaultToolWait = 30 * time.Second

// lendAgain says when to try again to lend a call that nobody took.
var lendAgain = retry.Policy{
	First: 250 * time.Millisecond, Factor: 2, Max: 2 * time.Second,
	Jitter: func(d time.Duration) time.Duration { return d/2 + rand.N(d/2) },
}

// Elsewhere decides what becomes of calls of tools that an actor does not have: another
// actor of the pool does them, if one has the tool. It is safe for concurrent use.
type Elsewhere struct {
	directory journal.Directory
	wait      time.Duration
	log       *slog.Logger

	// misses are the tools whose calls nobody took, by pool and name.
	misses *announce.Misses[[2]string]
	denied sync.Once
}

// NewElsewhere makes it for an actor. wait is how long nobody may have a tool before its
// calls are answered without it; 0: [DefaultToolWait].
func NewElsewhere(directory journal.Directory, wait time.Duration, log *slog.Logger) *Elsewhere {
	if wait <= 0 {
		wait = DefaultToolWait
	}
	return &Elsewhere{directory: directory, wait: wait, log: log, misses: announce.NewMisses[[2]string](forgetMiss)}
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
	return e.loan([2]string{pool, tool}, missing, e.missed).ask
}

// TryLend is Lend for a call that need not be done elsewhere: missing answers it as soon
// as nobody takes it.
func (e *Elsewhere) TryLend(pool, tool string, missing worker.Work) worker.Work {
	return e.loan([2]string{pool, tool}, missing, func(ctx context.Context, _ *loan, _ error) worker.Result { return missing(ctx) }).ask
}

func (e *Elsewhere) loan(key [2]string, missing worker.Work, untaken func(context.Context, *loan, error) worker.Result) *loan {
	return &loan{Elsewhere: e, key: key, missing: missing, untaken: untaken}
}

// loan is a call that is to be done elsewhere.
type loan struct {
	*Elsewhere
	// key is the pool and the tool.
	key     [2]string
	missing worker.Work
	// untaken decides what becomes of the call that nobody took, for the reason given.
	untaken func(context.Context, *loan, error) worker.Result
	// busy counts the workers in a row that had no room for the call.
	busy int
}

func (l *loan) ask(context.Context) worker.Result { return worker.Lend(l.key[1], l.lent) }

// lent is what becomes of the call that somebody was asked to do.
func (l *loan) lent(ctx context.Context, retry time.Duration, err error) worker.Result {
	offered := err == nil || errors.Is(err, journal.ErrPeerHolds) || errors.Is(err, journal.ErrPeerLost) || errors.Is(err, journal.ErrPeersBusy)
	if offered {
		l.misses.Found(l.key)
	}
	switch {
	case err == nil:
		return worker.Elsewhere(retry)
	case errors.Is(err, journal.ErrPeerHolds):
		return worker.Held()
	case errors.Is(err, journal.ErrPeerLost):
		return worker.Retry(events.LLMAttemptFailed{
			Kind: events.KindWorkerLost, Message: "the worker that the call was passed on to went away before it was done",
		}, lendAgain.First)
	case ctx.Err() != nil:
		return worker.Fail(context.Cause(ctx))
	case offered: // by workers that are busy
		return l.afterPause(ctx)
	}
	return l.untaken(ctx, l, err)
}

// afterPause asks again after a pause, which grows and differs between the calls that
// wait, so that many of them are no load.
func (l *loan) afterPause(ctx context.Context) worker.Result {
	l.busy++
	if !retry.Wait(ctx, lendAgain.Delay(l.busy)) {
		return worker.Fail(context.Cause(ctx))
	}
	return l.ask(ctx)
}

// missed has a call that nobody took planned again, until its tool has been missing for
// too long.
func (e *Elsewhere) missed(ctx context.Context, l *loan, err error) worker.Result {
	missed := e.misses.Miss(l.key)
	if missed >= e.wait {
		return e.giveUp(ctx, l.key[0], l.key[1], l.missing)
	}
	if !errors.Is(err, journal.ErrNoPeer) {
		e.say(l.key[0], err)
	}
	if !retry.Wait(ctx, min(max(lendAgain.First, missed/4), lendAgain.Max, e.wait-missed)) {
		return worker.Fail(context.Cause(ctx))
	}
	return worker.Elsewhere(0)
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

// forgetMiss is how old the last sign of a missing tool may be for the time before it to
// count: nobody looks while there are no calls.
const forgetMiss = 5 * time.Second

// say logs once that calls cannot be passed on.
func (e *Elsewhere) say(pool string, err error) {
	e.denied.Do(func() {
		e.log.Warn("calls of tools that this actor does not have cannot be passed on to other actors of the pool", "pool", pool, "reason", err)
	})
}
