package console

import "github.com/moorebus/moorebus/pkg/events"

// Summary says what an event's data is about, on one line of about 100
// characters, and nothing where the type says it all.
func Summary(p events.Payload) string { return Cut(events.Summary(p), dataWidth) }
