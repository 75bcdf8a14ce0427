package planner

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// limits tracks which providers are rate limited, keeps requests from them, and shuts the
// planner's gate while all of them are. Providers in this process have no limits.
type limits struct {
	policy Policy
	gate   worker.Gate

	mu        sync.Mutex
	providers map[string]*limit
}

// limit is how one provider stands.
type limit struct {
	// limited says that it refused a call, and served no call that began after the wait.
	// It is not called until the time, and probed after it.
	limited bool
	until   time.Time
	// inRow counts the refusals since it last served. Calls in flight that are refused
	// together count once.
	inRow int
	// probed is when the last probe began, zero when it has ended.
	probed time.Time
}

// ticket is one call of a provider.
type ticket struct {
	limit *limit
	began time.Time
}

func newLimits(policy Policy, callers map[string]llm.Caller) *limits {
	l := &limits{policy: policy, providers: map[string]*limit{}}
	for name, caller := range callers {
		if !llm.Describe(caller).Local {
			l.providers[name] = &limit{}
		}
	}
	return l
}

// admit lets a call through, or returns how long its provider is not to be called.
func (l *limits) admit(provider string) (t ticket, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, now := l.providers[provider], time.Now()
	t = ticket{limit: p, began: now}
	switch {
	case p == nil || !p.limited:
		return t, 0
	case now.Before(p.until):
		return t, p.until.Sub(now)
	}
	// While all are limited the gate lets the probes through.
	if next := p.probed.Add(worker.ProbeInterval); now.Before(next) && !l.allLimited() {
		return t, next.Sub(now)
	}
	p.probed = now
	return t, 0
}

// remaining returns how long a provider is still not to be called.
func (l *limits) remaining(provider string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.providers[provider]; p != nil {
		return max(0, time.Until(p.until))
	}
	return 0
}

// serving notes that a call is served: its reply has begun.
func (l *limits) serving(t ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A call that began before the end of the wait says nothing about later calls.
	if p := t.limit; p != nil && p.limited && !t.began.Before(p.until) {
		p.limited, p.inRow, p.probed = false, 0, time.Time{}
		l.gate.Open()
	}
}

// record notes the outcome of a call; a nil error is a reply.
func (l *limits) record(t ticket, err error) {
	if errors.Is(err, context.Canceled) || t.limit == nil {
		return // it says nothing about the provider
	}
	var e *llm.Error
	if !errors.As(err, &e) || e.Kind != llm.KindRateLimited {
		l.serving(t)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, now := t.limit, time.Now()
	if !now.Before(p.until) {
		p.inRow++
	}
	p.limited, p.probed = true, time.Time{}
	if until := now.Add(l.policy.Wait(e, p.inRow)); until.After(p.until) {
		p.until = until
	}
	if l.allLimited() {
		l.gate.Shut(l.earliest())
	}
}

// allLimited reports whether all providers are limited. The lock is held.
func (l *limits) allLimited() bool {
	for _, p := range l.providers {
		if !p.limited {
			return false
		}
	}
	return true
}

// earliest returns when the first provider may be called again. The lock is held.
func (l *limits) earliest() time.Time {
	var first time.Time
	for _, p := range l.providers {
		if first.IsZero() || p.until.Before(first) {
			first = p.until
		}
	}
	return first
}

// notAskedError is a call that was not made: the provider is rate limited, or another
// planner has to make it. It is logged, so that the next delivery does not count a lost
// worker. It counts as no failure.
type notAskedError struct {
	kind    llm.ErrorKind
	message string
	// delay is how long the run waits before a planner gets it again.
	delay time.Duration
}

func (e *notAskedError) Error() string { return e.message }

// elsewhere reports whether another planner may be able to make the call.
func (e *notAskedError) elsewhere() bool { return e.kind != llm.KindRateLimited }

// notAsked returns the result of work whose call was not made.
func notAsked(err error) (worker.Result, *notAskedError) {
	var e *notAskedError
	if !errors.As(err, &e) {
		return worker.Result{}, nil
	}
	failure := events.LLMAttemptFailed{Kind: string(e.kind), Message: clean(e.message), NotAsked: true}
	return worker.Retry(failure, e.delay), e
}

const (
	// providerWait is how long a provider may be unannounced before the runs that need it
	// end. A planner withdraws its announcement when it stops, so a restart must fit in.
	providerWait = 30 * time.Second
	// forgetMissing is how long after its last check a missing provider is forgotten. The
	// runs that need it come every few seconds, but also to other planners.
	forgetMissing = time.Minute
)

var (
	// limitedPauses are the pauses of a run whose provider is rate limited and did not say
	// for how long. With jitter the longest is two minutes.
	limitedPauses = retry.Policy{First: worker.ProbeInterval, Factor: 2, Max: 96 * time.Second}
	// passedOnPauses are the pauses before a delivery goes to a planner again, which may
	// again be one without the provider. After these attempts the pauses are limitedPauses:
	// the planner that has the provider may take no work for hours, since it is limited.
	passedOnPauses = retry.Policy{Attempts: 7, First: 50 * time.Millisecond, Factor: 2}
	// unannouncedPauses are the pauses while no planner announces the provider.
	unannouncedPauses = retry.Policy{First: time.Second, Factor: 2, Max: 5 * time.Second}
)

// limited is the error of a call whose provider is not to be called for a time. The run
// waits at least that long. While other runs probe a provider that does not answer, that
// time stays short for hours. So each further pause is twice as long, which keeps the run's
// log small.
func limited(c modelCall, rest time.Duration) error {
	wait := rest
	if n := c.before.NotAsked; n > 0 {
		wait = max(rest, limitedPauses.Delay(n+1))
	}
	return &notAskedError{
		kind: llm.KindRateLimited, delay: wait + jitter(c.run, c.before.Total(), wait),
		message: fmt.Sprintf("the provider %q was not asked: it is rate limited for %s more", c.req.Provider, rest.Round(time.Millisecond)),
	}
}

// jitter is what a run adds to a wait for its provider, so that the runs do not all come at
// once: up to a quarter of the wait, or half a second if that is more.
func jitter(run events.Run, attempts int, wait time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(run.ID + "/" + strconv.Itoa(attempts)))
	return time.Duration(h.Sum64() % uint64(min(max(wait/4, 500*time.Millisecond), limitedPauses.Max/4)))
}

// missing is the error of a call of a provider that this planner does not have. Another
// planner may have it, unless none has announced it for [providerWait].
func (p *Planner) missing(ctx context.Context, c modelCall) error {
	living, err := p.directory.Providers(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		p.missed.Clear()
		return passOn(c, "this planner has no provider %q and cannot see which one has it: %s", c.req.Provider, err)
	}
	p.missed.Found(living...)
	switch {
	case slices.Contains(living, c.req.Provider):
		return passOn(c, "this planner has no provider %q: the run waits for a planner that has it", c.req.Provider)
	case p.missed.Miss(c.req.Provider) < providerWait:
		return &notAskedError{
			kind: llm.KindOther, delay: unannouncedPauses.Delay(c.before.NotAsked + 1),
			message: fmt.Sprintf("this planner has no provider %q, and no planner announces it: the run waits up to %s for one that does", c.req.Provider, providerWait),
		}
	}
	return &llm.Error{Kind: llm.KindOther, Message: fmt.Sprintf("this planner has no provider %q, and no planner has announced it for %s; this one has %v", c.req.Provider, providerWait, p.names.providers)}
}

// passOn leaves a call to another planner.
func passOn(c modelCall, message string, args ...any) error {
	e := &notAskedError{kind: llm.KindOther, message: fmt.Sprintf(message, args...)}
	if n := c.before.NotAsked; n < passedOnPauses.Attempts {
		e.delay = passedOnPauses.Delay(n + 1)
	} else {
		wait := limitedPauses.Delay(n - passedOnPauses.Attempts + 2)
		e.delay = wait + jitter(c.run, c.before.Total()-passedOnPauses.Attempts+1, wait)
	}
	return e
}

// lookForMissing notes missing providers that are announced again while no run asks for them.
func (p *Planner) lookForMissing(ctx context.Context) {
	if !p.missed.Any() {
		return
	}
	living, err := p.directory.Providers(ctx)
	if err != nil {
		p.missed.Clear()
		return
	}
	p.missed.Found(living...)
}
