package ports

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// The kinds of a run's timers. What is to be done when one fires follows from the
// run alone: one that fires twice, too early, or without data does no harm, and the
// gateway sets the right one then.
const (
	// TimerRun is set from before the run's first event to its end: for its deadline
	// and against a stall.
	TimerRun = "run"
	// TimerApproval is set while the run waits for a human, for as long as the
	// approval is valid.
	TimerApproval = "approval"
	// TimerClient is set while calls wait for the run's client: for their deadlines.
	TimerClient = "client"
	// TimerModel is set by a planner while the run waits for a reply of its client, if the
	// agent bounds that. One without data bounds the wait anew.
	TimerModel = "model"
)

// TimerKinds returns the kinds of a run's timers.
func TimerKinds() []string {
	return []string{TimerRun, TimerApproval, TimerClient, TimerModel}
}

// ArmedTimer names a run's timer.
type ArmedTimer struct{ Namespace, Run, Kind string }

// AlarmKey names an alarm. Both parts are tokens.
type AlarmKey struct{ Namespace, Name string }

// String returns NAMESPACE.NAME, which is also a key of a bucket.
func (k AlarmKey) String() string { return k.Namespace + "." + k.Name }

// Alarm is an alarm that rang, handed to one process. It is given to another one if it is not
// finished within the ack wait, and is kept until it is.
type Alarm struct {
	journal.Delivery
	Of AlarmKey
	// At is the time that it was set to.
	At time.Time
}

// Alarms are timers of what is no run. All methods are safe for concurrent use.
type Alarms interface {
	// SetAlarm has the one alarm of that name ring at the time, or at once if that has passed. It
	// replaces one that has not rung. A zero time removes it. It returns when the bus has it.
	SetAlarm(ctx context.Context, of AlarmKey, at time.Time) error
	// ConsumeAlarms hands alarms that rang to handle, each to one process at a time, each in its own
	// goroutine and at most slots at once. When ctx ends it asks for no more, waits
	// for the handlers that run, and returns nil; other errors are final.
	ConsumeAlarms(ctx context.Context, slots int, handle func(Alarm)) error
}
