package docschema

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/pkg/events"
)

// envelope is an event's body without its data.
type envelope struct {
	SpecVersion string `json:"specversion" jsonschema:"The version of CloudEvents."`
	ID          string `json:"id" jsonschema:"The event's id, a UUIDv7."`
	Type        string `json:"type" jsonschema:"The event's type."`
	Source      string `json:"source" jsonschema:"Who made it: moorebus/ROLE/INSTANCE."`
	Subject     string `json:"subject" jsonschema:"The run's id."`
	Time        string `json:"time" jsonschema:"When it was made, in UTC."`
	ContentType string `json:"datacontenttype" jsonschema:"The media type of data."`
	Schema      string `json:"dataschema" jsonschema:"The type and the version of data: moorebus/TYPE/VERSION."`
	N           uint64 `json:"n" jsonschema:"The event's number in its run, from 1."`
	From        string `json:"from" jsonschema:"The run's state before the event."`
	To          string `json:"to" jsonschema:"The run's state after it."`
	Step        int    `json:"step" jsonschema:"The number of planning calls after it."`
	Cause       string `json:"cause,omitempty" jsonschema:"The id of the event that led to this one; absent in the first."`
	Prev        string `json:"prev,omitempty" jsonschema:"The SHA-256 of the previous body in hex; absent in the first."`
	TraceParent string `json:"traceparent,omitempty" jsonschema:"The W3C trace context, if there is any."`
	Data        any    `json:"data" jsonschema:"What happened."`
}

// Event returns the schema of the body of an event of a built-in type. Bodies may have further
// keys. The error is for a type that is not built in.
func Event(t events.Type) (*jsonschema.Schema, error) {
	payload := events.New(t)
	if payload == nil {
		return nil, fmt.Errorf("there is no event type %q; `moorebus table` lists them", string(t))
	}
	s, err := Of(envelope{}, nil)
	if err != nil {
		return nil, err
	}
	data, err := dataOf(payload)
	if err != nil {
		return nil, err
	}
	data.Description = s.Properties["data"].Description
	s.Properties["data"] = data
	Open(s, nil)
	s.Title, s.Description = string(t), events.Sentence(t)
	constant := func(key, value string) { s.Properties[key].Const = jsonschema.Ptr(any(value)) }
	constant("specversion", "1.0")
	constant("type", string(t))
	constant("datacontenttype", "application/json")
	s.Properties["dataschema"].Pattern = "^moorebus/" + string(t) + "/[1-9][0-9]*$"
	s.Properties["time"].Format = "date-time"
	s.Properties["n"].Minimum = jsonschema.Ptr(1.0)
	return s, nil
}

// Events returns the schema of the body of an event of any built-in type.
func Events() (*jsonschema.Schema, error) {
	all := &jsonschema.Schema{Title: "Event", Description: "An event of a run of Moorebus: a CloudEvent 1.0."}
	for _, t := range events.Types() {
		s, err := Event(t)
		if err != nil {
			return nil, err
		}
		all.OneOf = append(all.OneOf, s)
	}
	return all, nil
}

// dataOf is the schema of a payload.
func dataOf(payload events.Payload) (*jsonschema.Schema, error) {
	// Older builds wrote a model's reasoning as an object.
	// They knew fewer limits of an agent, too.
	older := map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[events.Reasoning](): {Types: []string{"array", "object", "null"}}}
	config, err := Of(events.Config{}, nil)
	if err != nil {
		return nil, err
	}
	config.Required, older[reflect.TypeFor[events.Config]()] = nil, config
	var v any = reflect.ValueOf(payload).Elem().Interface()
	batch := false
	switch payload.(type) {
	case *events.ToolSuccess, *events.ToolFailure:
		v, batch = events.ToolOutcome{}, true
	}
	// As for events.By, see ownForms.
	if t := reflect.TypeOf(v); t.NumField() == 1 && t.Field(0).Anonymous {
		v = reflect.ValueOf(v).Field(0).Interface()
	}
	s, err := Of(v, older)
	if err != nil {
		return nil, err
	}
	for f := range reflect.TypeOf(v).Fields() {
		if !f.Anonymous || f.Type.Kind() != reflect.Pointer {
			continue
		}
		part, err := Of(reflect.Zero(f.Type.Elem()).Interface(), older)
		if err != nil {
			return nil, err
		}
		s.Required = slices.DeleteFunc(s.Required, func(key string) bool { return slices.Contains(part.Required, key) })
	}
	if batch {
		s.Required = nil // the outcome is missing after a batch
	}
	s.Types, s.Type = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" }), "object"
	return s, nil
}
