package console

import "github.com/moorebus/moorebus/pkg/events"

// Summary returns an event's data on one line of at most 100 characters. It is empty if the
// type says everything.
func Summary(p events.Payload) string { return Cut(events.Summary(p), dataWidth) }
