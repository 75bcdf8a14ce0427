package planner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/llm"
)

// limits tracks which providers are rate limited, keeps requests from them, and shuts the
// planner's gate while all of them are. Providers in this process have no limits.
type limits struct {
	policy llm.Policy
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

func newLimits(policy llm.Policy, callers map[string]llm.Caller) *limits {
	l := &limits{policy: policy, providers: map[string]*limit{}}
	for name, caller := range callers {
		if _, local := caller.(llm.InProcess); !local {
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
