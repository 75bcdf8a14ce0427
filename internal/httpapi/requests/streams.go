package requests

import (
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// PositionHeader is the header of GET /v1/events with the position at which the stream begins.
const PositionHeader = "Moorebus-Position"

// The media types of streams.
const (
	EventStream = "text/event-stream"
	Lines       = "application/x-ndjson"
)

// The values of the parameter view: the state before the events, and records of the log in their place.
const (
	ViewState   = "state"
	ViewRecords = "records"
)

// The inputs of streams. What is nil is not given.
type (
	// EventsOf selects events of a run.
	EventsOf struct {
		Run
		From        uint64  `query:"from" doc:"The number of the first event. Default: 1."`
		View        *string `query:"view" doc:"state: begin with the state before the first event. records: show each event as the log's record, {subject, seq, body}, as exports do."`
		LastEventID string  `header:"Last-Event-ID" doc:"The number of the last event that the client has. It goes before from."`
	}
	// StatesOf selects moments of a run.
	StatesOf struct {
		Run
		From        uint64 `query:"from" doc:"The number of the first event. Default: 1."`
		To          uint64 `query:"to" doc:"The number of the last event. Default: the last one, in a stream the run's end."`
		LastEventID string `header:"Last-Event-ID" doc:"The number of the last event that the client has. It goes before from, and no memory is sent."`
	}
	// AllEvents selects events of a namespace.
	AllEvents struct {
		Scope
		State       *events.State `query:"state" doc:"Only events that enter this state or wake its workers."`
		Type        *events.Type  `query:"type" doc:"Only events of this type."`
		FromSeq     *string       `query:"from_seq" doc:"The position after which the stream begins, SHARD:SEQ[,SHARD:SEQ…]. The answer's header Moorebus-Position has it."`
		View        *string       `query:"view" doc:"records: show each event as the log's record, {subject, seq, body}, as exports do."`
		LastEventID string        `header:"Last-Event-ID" doc:"As from_seq. It goes before it."`
	}
)

// The streams of events and of what they change.
var (
	RunEvents = route.DefineStream[EventsOf](route.Route{
		Pattern: "GET /v1/runs/{id}/events",
		Summary: "Returns the stored events of a run: one body per line up to the last event, or, with Accept: text/event-stream, a stream that ends after the run's last event.",
		Streams: []string{Lines, EventStream}, Codes: with(route.RunCodes, refusal.CodeTooManyStreams),
		Events: []route.Parameter{
			{Name: "TYPE", Description: "An event of the run, by its type. id is its number, data its body as it is stored."},
			{Name: "chunk", Description: "Text that a model is still writing, {message_id, offset, text, kind}, without an id. kind is text or reasoning."},
			{Name: "tool_call_delta", Description: "A part of a call that a model is still writing, with the kind tool_call, without an id."},
			{Name: "request", Description: "While the run waits for a model that is its client, what the model is asked, as GET /v1/runs/{id}/request shows it, without an id."},
			{Name: "state", Description: "With view=state, before all events: the run as GET /v1/runs/{id} shows it."},
		},
	})
	RunStates = route.DefineStream[StatesOf](route.Route{
		Pattern: "GET /v1/runs/{id}/states",
		Summary: "Returns the run's memory after an event as {n, at, memory}, and for each later event {n, at, delta}, a JSON Patch: one per line, or, with Accept: text/event-stream, a stream that ends after the run's last event.",
		Streams: []string{Lines, EventStream}, Codes: with(route.RunCodes, refusal.CodeTooManyStreams),
		Events: []route.Parameter{{Name: "memory", Description: "{n, at, memory}: the memory after event n. id is n."}, {Name: "delta", Description: "{n, at, delta}: the patch from the memory before event n to the one after it. id is n."}},
	})
	FollowEvents = route.DefineStream[AllEvents](route.Route{
		Pattern: "GET /v1/events", Summary: "Streams the events of all runs of the namespace, from a position or from now on.",
		Streams: []string{EventStream}, Codes: []string{refusal.CodeTooManyStreams},
		Events: []route.Parameter{{Name: "TYPE", Description: "An event, by its type. id is the position in every shard, data its body as it is stored."}},
	})
)
