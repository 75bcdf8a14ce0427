package events

import (
	"time"
)

// TimeFormat is how times stand on the wire: RFC 3339, UTC, nanoseconds.
const TimeFormat = "2006-01-02T15:04:05.000000000Z"

// Event is one step of a run.
type Event struct {
	// ID is the event's own id, a UUIDv7.
	ID string
	// Source names who made it: moorebus/<role>/<instance>.
	Source string
	// Run is the run's id.
	Run string
	// Time is when it was made.
	Time time.Time
	// N counts the run's events from 1.
	N uint64
	// From and To are the states before and after.
	From, To State
	// Step is the number of planning calls after the event.
	Step int
	// Cause is the id of the event that led to this one; empty in the first.
	Cause string
	// Prev is the [Hash] of the run's previous body; empty in the first.
	Prev string
	// TraceParent is the W3C trace context, if any.
	TraceParent string
	// Data is the payload; its type is the event's type.
	Data Payload

	// extra holds attributes that this version does not know, as they stood.
	extra []member
	// raw is the data as it was decoded; it is written again as long as Data
	// is still the payload that was read from it.
	raw     []byte
	decoded Payload
}

// Type returns the type of the event's payload.
func (e *Event) Type() Type { return e.Data.eventType() }

type member struct{ key, value []byte }
