package planner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/worker"
)

// inUse is how long a provider counts as one that runs ask: one that is
// configured but that nobody asks keeps no gate open.
const inUse = 5 * time.Minute

// limits knows which providers are rate limited, and shuts the planner's gate
// while all of those in use are.
type limits struct {
	policy llm.Policy
	gate   worker.Gate

	mu        sync.Mutex
	providers map[string]*limit
}

// limit is how one provider stands.
type limit struct {
	asked time.Time
	// until is how long it is limited, and inRow how often it was found so since
	// it last answered. Refusals of calls that were under way count once.
	until time.Time
	inRow int
}

func newLimits(policy llm.Policy) *limits {
	return &limits{policy: policy, providers: map[string]*limit{}}
}

// asked notes that a provider is in use.
func (l *limits) asked(provider string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.providers[provider] == nil {
		l.providers[provider] = &limit{}
	}
	l.providers[provider].asked = time.Now()
}

// answered takes what a call of a provider came to; nil is a reply.
func (l *limits) answered(provider string, err error) {
	if errors.Is(err, context.Canceled) {
		return // it says nothing of the provider
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, now := l.providers[provider], time.Now()
	var e *llm.Error
	if !errors.As(err, &e) || e.Kind != llm.KindRateLimited {
		if !now.Before(p.until) {
			p.inRow = 0
			l.gate.Open()
		}
		return
	}
	if !now.Before(p.until) {
		p.inRow++
	}
	if until := now.Add(l.policy.Wait(e, p.inRow)); until.After(p.until) {
		p.until = until
	}
	if until, all := l.allLimited(now); all {
		l.gate.Shut(until)
	}
}

// allLimited reports whether every provider in use is limited, and when the
// first of them may answer again.
func (l *limits) allLimited(now time.Time) (first time.Time, all bool) {
	for _, p := range l.providers {
		switch {
		case now.Sub(p.asked) > inUse:
		case !p.until.After(now):
			return time.Time{}, false
		case first.IsZero() || p.until.Before(first):
			first = p.until
		}
	}
	return first, !first.IsZero()
}
