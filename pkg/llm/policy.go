package llm

import (
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
)

// Policy decides whether and when a failed call is tried again. The zero value
// is ready to use.
type Policy struct {
	// Base is the wait after the first failure; it doubles each time.
	// Default 500 ms.
	Base time.Duration
	// Max bounds one wait that the provider did not ask for. Default 30 s.
	Max time.Duration
	// MaxRetryAfter bounds a wait that the provider asked for. Default 10 min.
	MaxRetryAfter time.Duration
	// Attempts is how often a call is tried in all when the network or an
	// overloaded provider is the cause. Default 6.
	Attempts int
	// RateLimitAttempts is the same for rate limits, which always pass. Default
	// 100: by the other defaults that is three quarters of an hour at least.
	RateLimitAttempts int
}

// Next says, after the given number of failed attempts (1 or more), of which
// err is the last, how long to wait before the next one; false means never.
// Authentication errors, invalid requests and a context that is too long are
// never tried again: the same request would fail the same way.
func (p Policy) Next(err error, failed int) (time.Duration, bool) {
	p = p.withDefaults()
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Kind: KindOther}
	}
	limit := 0
	switch e.Kind {
	case KindRateLimited:
		limit = p.RateLimitAttempts
	case KindOverloaded, KindNetwork:
		limit = p.Attempts
	case KindOther:
		limit = min(2, p.Attempts)
	case KindAuth, KindInvalid, KindContextTooLong:
		return 0, false
	}
	if failed >= limit {
		return 0, false
	}
	return p.wait(e, failed), true
}

// Wait says how long to wait after the given number of failed attempts in a row,
// for who has no need to give up.
func (p Policy) Wait(err error, failed int) time.Duration {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Kind: KindOther}
	}
	return p.withDefaults().wait(e, failed)
}

// wait doubles from Base to Max. What the provider asks for holds instead, but
// at a rate limit only a few times if it is shorter: who asks for a second each
// time, for minutes, would use all attempts up.
func (p Policy) wait(e *Error, failed int) time.Duration {
	asked := min(e.RetryAfter, p.MaxRetryAfter)
	if asked > 0 {
		if failed -= politeTries; failed <= 0 || e.Kind != KindRateLimited {
			return asked
		}
	}
	return max(asked, retry.Policy{First: p.Base, Factor: 2, Max: p.Max}.Delay(failed))
}

// politeTries is how often a provider's short wait at a rate limit is taken at
// its word.
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
