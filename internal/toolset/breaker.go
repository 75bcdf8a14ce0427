package toolset

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The defaults of [tool.Breaker].
const (
	DefaultFailures = 5
	DefaultOpen     = 30 * time.Second
)

var (
	errDown      = errors.New("the tool is down")
	errCancelled = errors.New("the call was cancelled")
)

// breaker keeps calls from a tool that is down.
//
// The circuit opens after a number of failures in a row that are the tool's and not the
// call's. Calls then fail at once with code circuit_open and the time at which the tool may
// work again, instead of each waiting for its timeout. At that time one call is let through
// as a probe. It closes the circuit or opens it again. Each process has its own circuits.
// Cancelled calls do not count.
type breaker struct {
	name    string
	circuit *gobreaker.TwoStepCircuitBreaker[any]
	// until is when an open circuit lets a call through; last is why it opened.
	until atomic.Pointer[time.Time]
	last  atomic.Pointer[string]
}

// newBreaker returns the breaker of a tool, or nil if there is none.
func (r *Registry) newBreaker(def tool.Definition) *breaker {
	if !r.breakers || def.Breaker.Off {
		return nil
	}
	failures, open := def.Breaker.Failures, def.Breaker.Open
	if failures <= 0 {
		failures = DefaultFailures
	}
	if open <= 0 {
		open = DefaultOpen
	}
	b := &breaker{name: def.Name}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name: def.Name, MaxRequests: 1, Timeout: open,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(failures) },
		IsExcluded:  func(err error) bool { return errors.Is(err, errCancelled) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				until := time.Now().Add(open)
				b.until.Store(&until)
			}
		},
	})
	return b
}

// enter admits a run of the tool, whose failure (or nil) goes to leave at its end. If it does not
// admit it, refused is the outcome of the call.
func (b *breaker) enter() (leave func(*tool.Failure), refused *tool.Failure) {
	done, err := b.circuit.Allow()
	if err != nil {
		return nil, b.refusal(err)
	}
	return func(f *tool.Failure) {
		switch {
		case f == nil:
			done(nil)
		case f.Code == codes.Cancelled, Short(f):
			done(errCancelled)
		case down(f):
			b.last.Store(&f.Code)
			done(errDown)
		default:
			done(nil)
		}
	}, nil
}

// down reports whether a failure is the tool's own rather than the call's: it did not
// answer, was overloaded, or panicked. Any other call would fail too.
func down(f *tool.Failure) bool {
	return f.Passing || f.Code == tool.CodeTimeout || f.Code == tool.CodeUnreachable || f.Code == codes.Panic
}

// refusal is the failure of a call that is not let through.
func (b *breaker) refusal(err error) *tool.Failure {
	when := "one call is trying it at this moment: try again soon"
	if until := b.until.Load(); errors.Is(err, gobreaker.ErrOpenState) && until != nil {
		left := max(time.Until(*until).Round(time.Second), time.Second)
		when = fmt.Sprintf("it may work again in %s, at %s", left, until.UTC().Format(time.RFC3339))
	}
	last := ""
	if code := b.last.Load(); code != nil {
		last = "; the last failure was: " + *code
	}
	f := tool.Failf(codes.CircuitOpen, "the tool %q failed again and again and was not called; %s%s", b.name, when, last)
	f.NotSent = true
	return f
}
