// Package retry says when failed work is tried again, and tries it.
//
// A [Policy] is the rule as data. [Policy.Do] is the one loop that follows it, and
// [Policy.Delay] is the same rule for attempts that are counted in another place, such as a
// run's log. An error of the work may overrule the policy: [Stop] ends the loop, and
// [After] says "later, not before": a Retry-After header, a rate limit, a breaker that
// cools down, a delivery that is handed back with a delay. [Wait] is the one pause.
package retry

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Policy says how often failed work is tried, and how long the pauses are. The zero
// value tries forever without a pause, so set at least First.
type Policy struct {
	// Attempts bounds the attempts, the first one included. 0: no bound.
	Attempts int
	// First is the delay after the first failure. Each further delay is Factor times
	// as long as the one before. A Factor of 1 or less keeps the delay constant.
	First  time.Duration
	Factor float64
	// Max bounds the delays that the policy itself asks for. 0: no bound.
	Max time.Duration
	// Budget is the time after which a failure is final, counted from the beginning of
	// the first attempt. 0: no bound.
	Budget time.Duration
	// Jitter turns each delay of the policy into the one that is used, so that those who
	// failed together do not come back together. Nil: the delays are used as they are.
	Jitter func(time.Duration) time.Duration
}

// Delay returns the pause after the given number of failures in a row. Less than one
// failure counts as one.
func (p Policy) Delay(failures int) time.Duration {
	delay := float64(p.First)
	for i := 1; i < failures && p.Factor > 1; i++ {
		if delay *= p.Factor; delay >= float64(p.bound()) {
			break
		}
	}
	pause := time.Duration(min(delay, float64(p.bound())))
	if p.Jitter != nil {
		pause = p.Jitter(pause)
	}
	return pause
}

// bound is the longest delay; without one it is a century, which no multiplication
// above overflows.
func (p Policy) bound() time.Duration {
	if p.Max > 0 {
		return p.Max
	}
	return 100 * 365 * 24 * time.Hour
}

// Do calls try until it returns nil, and returns nil then. It gives up, and returns the
// last error, when that is marked by [Stop] or when the policy's attempts or budget are
// used up. When ctx ends during a pause it returns the context's cause. It does not look
// at ctx before the first attempt.
//
// waiting, which may be nil, is called before each pause with the error and the length
// of the pause.
func (p Policy) Do(ctx context.Context, try func(context.Context) error, waiting func(err error, delay time.Duration)) error {
	began := time.Now()
	for failures := 1; ; failures++ {
		err := try(ctx)
		if err == nil {
			return nil
		}
		var stop *stopError
		if errors.As(err, &stop) {
			return stop.err
		}
		if (p.Attempts > 0 && failures >= p.Attempts) || (p.Budget > 0 && time.Since(began) >= p.Budget) {
			return err
		}
		delay := p.Delay(failures)
		if asked, ok := Asked(err); ok {
			delay = max(delay, asked)
		}
		if waiting != nil {
			waiting(err, delay)
		}
		if !Wait(ctx, delay) {
			return context.Cause(ctx)
		}
	}
}

// Wait pauses for d, and reports false if ctx ended first. It does not pause if d is
// not positive.
func Wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stopError is an error that no further attempt mends.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// Stop marks an error as final: [Policy.Do] returns err as it is. Stop(nil) is nil.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

// Later is work that is to be tried again, but not before a delay has passed.
type Later struct {
	// Delay counts from when the error was made.
	Delay time.Duration
	// Err is why; it may be nil where waiting is no failure.
	Err error
}

// Error says when, and why.
func (l *Later) Error() string {
	if l.Err == nil {
		return "try again in " + l.Delay.String()
	}
	return l.Err.Error()
}

// Unwrap returns the reason.
func (l *Later) Unwrap() error { return l.Err }

// After returns a [*Later]: the work may be tried again when the delay has passed.
// [Policy.Do] waits at least that long.
func After(delay time.Duration, err error) error { return &Later{Delay: delay, Err: err} }

// Asked returns the delay that an error asks for by [After], the longest one where
// several errors are joined.
func Asked(err error) (delay time.Duration, asked bool) {
	switch e := err.(type) {
	case nil:
		return 0, false
	case *Later:
		delay, asked = e.Delay, true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner, ok := Asked(e.Unwrap()); ok {
			delay, asked = max(delay, inner), true
		}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if inner, ok := Asked(one); ok {
				delay, asked = max(delay, inner), true
			}
		}
	}
	return delay, asked
}

// FromHeader returns how long a server asks to be left alone, from the headers in use:
// retry-after-ms, and Retry-After in seconds or as a date (RFC 9110). It returns 0 if the
// server does not ask.
func FromHeader(h http.Header, now time.Time) time.Duration {
	if d, ok := span(h.Get("retry-after-ms"), time.Millisecond); ok {
		return d
	}
	after := strings.TrimSpace(h.Get("Retry-After"))
	if d, ok := span(after, time.Second); ok {
		return d
	}
	if at, err := http.ParseTime(after); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// span parses a number of units. More than a year is a mistake, and could overflow a
// duration.
func span(s string, unit time.Duration) (time.Duration, bool) {
	const year = float64(365 * 24 * time.Hour)
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	d := f * float64(unit)
	return time.Duration(min(d, year)), err == nil && d > 0 && d < year
}
