package ports

import (
	"context"
	"time"
)

// ScheduleKey names a schedule. Both parts are tokens.
type ScheduleKey struct{ Namespace, Name string }

// ScheduleAlarm is the alarm of a schedule that rang, handed to one process. It is given to
// another one if it is not finished within the ack wait, and is kept until it is.
type ScheduleAlarm interface {
	Key() ScheduleKey
	// At is the time that the alarm was set to.
	At() time.Time
	// Ack finishes it: nobody gets it again.
	Ack() error
	// Retry gives it back, to come again after the delay.
	Retry(delay time.Duration) error
}

// Schedules keep schedules, of whatever form, and an alarm for each. All methods are safe for
// concurrent use. Their errors are the bus's besides those that they name.
type Schedules interface {
	// Schedule returns what was put last, with its revision, or [journal.ErrNotFound] with the
	// revision from which it can be put.
	Schedule(ctx context.Context, key ScheduleKey) (value []byte, revision uint64, err error)
	// PutSchedule replaces what has the revision; an empty value removes it. It returns the new
	// revision, or [journal.ErrConflict] if there is another one meanwhile.
	PutSchedule(ctx context.Context, key ScheduleKey, value []byte, revision uint64) (uint64, error)
	// ScheduleKeys returns the schedules of a namespace, or with "" those of all, sorted. Some
	// may have been removed.
	ScheduleKeys(ctx context.Context, namespace string) ([]ScheduleKey, error)

	// SetAlarm has the schedule's one alarm ring at the time, or at once if that has passed. It
	// replaces one that has not rung. A zero time removes it. It returns when the bus has it.
	SetAlarm(ctx context.Context, key ScheduleKey, at time.Time) error
	// ConsumeAlarms hands alarms that rang to handle, each to one process at a time, each in a
	// goroutine of its own and at most slots at once. When ctx ends it asks for no more, waits
	// for the handlers that run, and returns nil; other errors are final.
	ConsumeAlarms(ctx context.Context, slots int, handle func(ScheduleAlarm)) error
}
