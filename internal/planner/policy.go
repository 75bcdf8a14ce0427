package planner

import (
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Policy decides whether and when a failed model call is repeated. The zero value has
// the defaults.
type Policy struct {
	// Base is the wait after the first failure; it doubles each time.
	// Default 500 ms.
	Base time.Duration
	// Max bounds a wait that the provider did not ask for. Default 30 s.
	Max time.Duration
	// MaxRetryAfter bounds a wait that the provider asked for. Default 10 min.
	MaxRetryAfter time.Duration
	// Attempts bounds the attempts of one call that fail for one reason: the network fails,
	// replies break off, or the provider is overloaded. Each reason is counted apart.
	// Default 6.
	Attempts int
	// RateLimitAttempts is the same for rate limits, which always pass. Default 100,
	// which with the other defaults takes at least three quarters of an hour. It also bounds
	// all attempts of one call together, whatever they fail for, unless Attempts is more.
	RateLimitAttempts int
}

// Failures are the failed attempts of one call. Kind are those of the same kind as the last one,
// Unlimited those that no rate limit caused, and All are all; each includes the last one.
type Failures struct{ Kind, Unlimited, All int }

// Next returns the wait before the next attempt, or false if there is none. failed counts the
// failed attempts, and err is the last error. Waits grow with all failures, so that a provider
// that fails in two ways is not asked twice as often. Every other kind is
// not repeated, such as authentication errors, invalid requests, refusals and a context that
// is too long: the same request would fail in the same way.
func (p Policy) Next(err error, failed Failures) (time.Duration, bool) {
	p = p.withDefaults()
	var e *llm.Error
	if !errors.As(err, &e) {
		e = &llm.Error{Kind: llm.KindOther}
	}
	limit := 0
	switch e.Kind {
	case llm.KindRateLimited:
		limit = p.RateLimitAttempts
	case llm.KindOverloaded, llm.KindNetwork, llm.KindBroken:
		limit = p.Attempts
	case llm.KindOther:
		limit = min(2, p.Attempts)
	}
	if failed.Kind >= limit || failed.All >= max(p.Attempts, p.RateLimitAttempts) {
		return 0, false
	}
	if e.Kind == llm.KindRateLimited {
		return p.wait(e, failed.Kind), true
	}
	return p.wait(e, failed.Unlimited), true
}

// Wait is [Policy.Next] for callers that never give up.
func (p Policy) Wait(err error, failed int) time.Duration {
	var e *llm.Error
	if !errors.As(err, &e) {
		e = &llm.Error{Kind: llm.KindOther}
	}
	return p.withDefaults().wait(e, failed)
}

// wait doubles from Base to Max. A wait that the provider asks for replaces it. At a rate
// limit a shorter wait replaces it only a few times, since a provider that asks for one
// second for minutes would use up all attempts.
func (p Policy) wait(e *llm.Error, failed int) time.Duration {
	asked := min(e.RetryAfter, p.MaxRetryAfter)
	if asked > 0 {
		if failed -= politeTries; failed <= 0 || e.Kind != llm.KindRateLimited {
			return asked
		}
	}
	return max(asked, retry.Policy{First: p.Base, Factor: 2, Max: p.Max}.Delay(failed))
}

// politeTries is how often a short wait that a provider asks for is used.
const politeTries = 5

func (p Policy) withDefaults() Policy {
	if p.Base <= 0 {
		p.Base = 500 * time.Millisecond
	}
	if p.Max <= 0 {
		p.Max = 30 * time.Second
	}
	if p.MaxRetryAfter <= 0 {
		p.MaxRetryAfter = 10 * time.Minute
	}
	if p.Attempts <= 0 {
		p.Attempts = 6
	}
	if p.RateLimitAttempts <= 0 {
		p.RateLimitAttempts = 100
	}
	return p
}
