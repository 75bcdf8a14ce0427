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
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ToolWait is how long a tool may be missing in a pool until its calls are answered
// with not_found.
const ToolWait = buckets.AnnouncementTTL

// lendAgain says when a call that no worker borrowed is lent again.
var lendAgain = retry.Policy{
	First: 250 * time.Millisecond, Factor: 2, Max: 2 * time.Second,
	Jitter: func(d time.Duration) time.Duration { return d/2 + rand.N(d/2) },
}

// Elsewhere lends calls of tools that an actor does not have to other actors of the pool.
// It is safe for concurrent use.
type Elsewhere struct {
	directory *announce.Directory
	log       *slog.Logger

	// misses are the tools whose calls no worker borrowed, by pool and name.
	misses *announce.Misses[[2]string]
	denied sync.Once
}

// NewElsewhere makes it for an actor.
func NewElsewhere(directory *announce.Directory, log *slog.Logger) *Elsewhere {
	return &Elsewhere{directory: directory, log: log, misses: announce.NewMisses[[2]string](forgetMiss)}
}

// PeersOf returns the queue as [ports.Peers], nil if it does not lend.
func PeersOf(q journal.Queue) ports.Peers {
	p, _ := q.(ports.Peers)
	return p
}

// Lend returns work that lends a call to another actor of the pool. A call that no actor
// borrows is lent again, since actors come and go. After [ToolWait], missing answers that
// there is no such tool. If a living actor announces the tool nevertheless, the attempt
// fails.
func (e *Elsewhere) Lend(pool, tool string, missing worker.Work) worker.Work {
	return e.loan([2]string{pool, tool}, missing, e.missed).lend
}

// TryLend is Lend for a call that need not be lent: missing answers it as soon as no actor
// borrows it.
func (e *Elsewhere) TryLend(pool, tool string, missing worker.Work) worker.Work {
	return e.loan([2]string{pool, tool}, missing, func(ctx context.Context, _ *loan, _ error) worker.Result { return missing(ctx) }).lend
}

func (e *Elsewhere) loan(key [2]string, missing worker.Work, untaken func(context.Context, *loan, error) worker.Result) *loan {
	return &loan{Elsewhere: e, key: key, missing: missing, untaken: untaken}
}

// loan is a call that is to be lent.
type loan struct {
	*Elsewhere
	// key is the pool and the tool.
	key     [2]string
	missing worker.Work
	// untaken returns the result of a call that no worker borrowed, with the reason.
	untaken func(context.Context, *loan, error) worker.Result
	// busy counts how often in a row the workers had no free slot for the call.
	busy int
}

func (l *loan) lend(context.Context) worker.Result { return worker.Lend(l.key[1], l.lent) }

// lent turns the outcome of a loan into a result.
func (l *loan) lent(ctx context.Context, delay time.Duration, err error) worker.Result {
	offered := err == nil || errors.Is(err, ports.ErrPeerHolds) || errors.Is(err, ports.ErrPeerLost) || errors.Is(err, ports.ErrPeersBusy)
	if offered {
		l.misses.Found(l.key)
	}
	switch {
	case err == nil:
		return worker.Elsewhere(delay)
	case errors.Is(err, ports.ErrPeerHolds):
		return worker.Held()
	case errors.Is(err, ports.ErrPeerLost):
		return worker.Retry(events.LLMAttemptFailed{
			Kind: codes.KindWorkerLost, Message: "the worker that the call was passed on to went away before it was done",
		}, lendAgain.First)
	case ctx.Err() != nil:
		return worker.Fail(context.Cause(ctx))
	case offered: // by workers that are busy
		return l.afterPause(ctx)
	}
	return l.untaken(ctx, l, err)
}

// afterPause lends the call again after a pause. The pause grows and differs between
// calls, so that many waiting calls are no load.
func (l *loan) afterPause(ctx context.Context) worker.Result {
	l.busy++
	if !retry.Wait(ctx, lendAgain.Delay(l.busy)) {
		return worker.Fail(context.Cause(ctx))
	}
	return l.lend(ctx)
}

// missed plans a call again that no worker borrowed, until its tool has been missing for
// too long.
func (e *Elsewhere) missed(ctx context.Context, l *loan, err error) worker.Result {
	missed := e.misses.Miss(l.key)
	if missed >= ToolWait {
		return e.giveUp(ctx, l.key[0], l.key[1], l.missing)
	}
	if !errors.Is(err, ports.ErrNoPeer) {
		e.warnOnce(l.key[0], err)
	}
	if !retry.Wait(ctx, min(max(lendAgain.First, missed/4), lendAgain.Max, ToolWait-missed)) {
		return worker.Fail(context.Cause(ctx))
	}
	return worker.Elsewhere(0)
}

// giveUp answers a call whose tool has been missing for the wait.
func (e *Elsewhere) giveUp(ctx context.Context, pool, tool string, missing worker.Work) worker.Result {
	announced, err := e.directory.PoolTools(ctx, pool)
	switch {
	case err != nil && !errors.Is(err, journal.ErrDenied):
		return worker.Fail(fmt.Errorf("no actor of pool %s takes the call, and it is unknown which one has %s: %w", pool, tool, err))
	case slices.ContainsFunc(announced, func(t events.ToolSpec) bool { return t.Name == tool }):
		return worker.Fail(fmt.Errorf("an actor of pool %s announces %s, but takes no calls from other actors: it is an older build, or its user lacks the permission, see `moorebus init --print-permissions`", pool, tool))
	}
	return missing(ctx)
}

// forgetMiss is how long after its last call a missing tool is forgotten: without calls
// nothing checks for it.
const forgetMiss = 5 * time.Second

// warnOnce logs once that calls cannot be passed on.
func (e *Elsewhere) warnOnce(pool string, err error) {
	e.denied.Do(func() {
		e.log.Warn("calls of tools that this actor does not have cannot be passed on to other actors of the pool", "pool", pool, "reason", err)
	})
}
