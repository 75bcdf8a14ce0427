package journal

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Timer is what is delivered when its time has come.
type Timer struct {
	Run events.Run
	// Kind distinguishes the timers of a run; it is a token.
	Kind string
	// Data is what it was set with.
	Data []byte
}

// TimerDelivery is a timer that fired, handed to one process. It is given to
// another one if it is not finished within the ack wait, and is kept until it is.
type TimerDelivery struct {
	Delivery
	Timer Timer
}

// Timers wakes somebody later. A timer outlives every process, the bus's
// included. All methods are safe for concurrent use.
type Timers interface {
	// SetTimer has the run's timer of that kind fire at the time, or at once if
	// that has passed. One that was set before and has not fired is replaced; one
	// that has fired is delivered all the same. It returns when the timer is
	// stored. Errors: ErrNotReady, ErrDenied, ErrTooLarge, the context's, and
	// ErrUnknownOutcome, after which it may be stored or not and can be set again.
	SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error

	// CancelTimer takes back a timer that has not fired. That there is none is no
	// error.
	CancelTimer(ctx context.Context, run events.Run, kind string) error

	// ConsumeTimers hands timers that fired to handle, each to one process at a
	// time, each in its own goroutine and at most slots at once. Their order
	// is about that of their times. When ctx ends it asks for no more, waits for
	// the handlers that run, and returns nil; other errors are final.
	ConsumeTimers(ctx context.Context, slots int, handle func(TimerDelivery)) error
}
