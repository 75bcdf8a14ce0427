package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/codec"
)

const (
	specVersion = "1.0"
	contentType = "application/json"
	schemaRoot  = "moorebus/"
)

func unknownType(t Type) error {
	return fmt.Errorf("unknown event type %q: register it with events.NewCodec, or use the Moorebus version that wrote it", string(t))
}

// NewerVersionError is the error for an event whose payload is of a version that this
// build does not know, since a newer one wrote it.
type NewerVersionError struct {
	Type           Type
	Version, Known int
	// Event is the event as far as it could be read. Its Data is a [Custom] with the
	// payload as it stands.
	Event *Event
}

// Error names the type and both versions.
func (e *NewerVersionError) Error() string {
	return fmt.Sprintf("event %s: version %d is newer than %d, the newest this Moorebus knows: use a newer one", e.Type, e.Version, e.Known)
}

// Upcaster lifts a payload from one version to the next. It must not depend on
// anything but its argument.
type Upcaster func(old json.RawMessage) (json.RawMessage, error)

// TypeSpec registers a type with a codec: an application's own, or the older
// versions of a built-in one.
type TypeSpec struct {
	Type Type
	// Upcasters[i] lifts version i+1 to version i+2, so the current version is
	// len(Upcasters)+1.
	Upcasters []Upcaster
}

// Codec turns events into bodies and back. It does not change after it is
// made and may be shared. The zero Codec knows the built-in types.
type Codec struct {
	custom    map[Type]bool
	upcasters map[Type][]Upcaster
}

// NewCodec returns a codec for the built-in types and those given. A custom
// type must not take a built-in name without bringing upcasters.
func NewCodec(specs ...TypeSpec) (*Codec, error) {
	c := &Codec{custom: map[Type]bool{}, upcasters: map[Type][]Upcaster{}}
	for _, spec := range specs {
		known := rowOf[spec.Type] != nil
		_, twice := c.custom[spec.Type]
		switch {
		case spec.Type == "" || strings.ContainsAny(string(spec.Type), "/\" \\"):
			return nil, fmt.Errorf("event type %q: not a name", string(spec.Type))
		case known && len(spec.Upcasters) == 0, twice:
			return nil, fmt.Errorf("event type %q: is already registered", string(spec.Type))
		}
		c.custom[spec.Type] = !known
		c.upcasters[spec.Type] = spec.Upcasters
	}
	return c, nil
}

func (c *Codec) schema(p Payload) string {
	t, version := TypeOf(p), c.version(TypeOf(p))
	if r := rowOf[t]; r != nil && r.next != nil && r.next(p) {
		version++
	}
	if s := firstSchema[t]; s != "" && version == 1 {
		return s
	}
	return schemaRoot + string(t) + "/" + strconv.Itoa(version)
}

// firstSchema has the dataschema of version 1 of every built-in type.
var firstSchema = func() map[Type]string {
	all := make(map[Type]string, len(rowOf))
	for t := range rowOf {
		all[t] = schemaRoot + string(t) + "/1"
	}
	return all
}()

// lifts returns the upcasters of a type: those that the codec was given, else the
// type's own.
func (c *Codec) lifts(t Type) []Upcaster {
	if own, ok := c.upcasters[t]; ok || rowOf[t] == nil {
		return own
	}
	return rowOf[t].upcasters
}

func (c *Codec) version(t Type) int { return len(c.lifts(t)) + 1 }

// Encode returns the event's body. Equal events give equal bytes. A decoded event gives the
// bytes it was decoded from, if this package wrote them.
func (c *Codec) Encode(e *Event) ([]byte, error) {
	if e.Data == nil {
		return nil, errors.New("event has no data")
	}
	t := e.Type()
	if rowOf[t] == nil && !c.custom[t] {
		return nil, unknownType(t)
	}
	head, err := codec.Append(make([]byte, 0, usualBody), &envelope{
		SpecVersion: specVersion, ID: e.ID, Type: string(t), Source: e.Source, Subject: e.Run,
		Time: e.Time.UTC().Format(TimeFormat), ContentType: contentType, Schema: c.schema(e.Data),
		N: e.N, From: string(e.From), To: string(e.To), Step: e.Step, Cause: e.Cause, Prev: e.Prev, TraceParent: e.TraceParent,
	})
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", t, err)
	}
	body := head[:len(head)-1] // the brace comes last
	for _, m := range e.extra {
		body, _ = codec.Append(append(body, ','), string(m.key)) // every text has a JSON string
		body = append(append(body, ':'), m.value...)
	}
	body = append(body, `,"data":`...)
	if e.raw != nil && e.Data == e.decoded {
		body = append(body, e.raw...)
	} else if body, err = appendPayload(body, e.Data); err != nil {
		return nil, fmt.Errorf("event %s: %w", t, err)
	}
	return append(body, '}'), nil
}

// usualBody is the size that most bodies do not exceed, in bytes.
const usualBody = 768

// envelope is a body as it stands on the wire. Attributes that this version does not
// know stand between the others and the data.
type envelope struct {
	SpecVersion string    `json:"specversion"`
	ID          string    `json:"id"`
	Type        string    `json:"type"`
	Source      string    `json:"source"`
	Subject     string    `json:"subject"`
	Time        string    `json:"time"`
	ContentType string    `json:"datacontenttype"`
	Schema      string    `json:"dataschema"`
	N           uint64    `json:"n"`
	From        string    `json:"from"`
	To          string    `json:"to"`
	Step        int       `json:"step"`
	Cause       string    `json:"cause,omitempty"`
	Prev        string    `json:"prev,omitempty"`
	TraceParent string    `json:"traceparent,omitempty"`
	Data        codec.Raw `json:"data,omitempty"`
}

// Decode reads a body. Every attribute that CONTRACT names must be there and well formed.
// Package reducer checks whether the event is legal in its run. The event may keep parts of
// body, which must not be changed afterwards.
func (c *Codec) Decode(body []byte) (*Event, error) {
	d := canonical(body)
	if d == nil {
		var err error
		if d, err = decodeEnvelope(body); err != nil {
			return nil, fmt.Errorf("event: %w", err)
		}
	}
	data, err := c.lift(d.typ, d.schema, d.data)
	if newer := (*NewerVersionError)(nil); errors.As(err, &newer) {
		newer.Event = &d.event
		newer.Event.Data = &Custom{Name: d.typ, Data: d.data}
	}
	if err != nil {
		return nil, err
	}
	payload, err := c.payload(d.typ, data)
	if err != nil {
		return nil, err
	}
	e := &d.event
	// Data that was lifted is kept too: what this version does not know of it
	// survives, now in the current version.
	e.Data, e.raw, e.decoded = payload, data, payload
	return e, nil
}

// canonical reads the attributes of a body in the form that [Codec.Encode] writes, with the
// same result as [decodeEnvelope]. It returns nil for every other body.
func canonical(body []byte) *decoder {
	var in envelope
	if !codec.Canonical(body, &in) || in.N == 0 || in.Step < 0 || in.Step > math.MaxInt32 || len(in.Data) == 0 || in.Data[0] != '{' {
		return nil
	}
	d := &decoder{data: json.RawMessage(in.Data)}
	d.event.N, d.event.Step = in.N, in.Step
	for attr, text := range [...]string{
		attrSpec: in.SpecVersion, attrID: in.ID, attrType: in.Type, attrSource: in.Source, attrSubject: in.Subject,
		attrTime: in.Time, attrContent: in.ContentType, attrSchema: in.Schema, attrFrom: in.From, attrTo: in.To,
		attrCause: in.Cause, attrPrev: in.Prev, attrTrace: in.TraceParent,
	} {
		if text == "" && (attr == attrN || attr >= attrStep) {
			continue // a number, or omitted
		}
		if d.setText(attr, text) != nil {
			return nil
		}
	}
	return d
}

// decodeEnvelope reads the attributes of a body in any form, and says what is wrong with it.
func decodeEnvelope(body []byte) (*decoder, error) {
	d := new(decoder)
	if err := codec.Members(body, d.member); err != nil {
		return nil, err
	}
	return d, d.complete()
}

func (c *Codec) payload(t Type, data json.RawMessage) (Payload, error) {
	var p Payload
	if r := rowOf[t]; r != nil {
		p = r.fresh()
	} else if c.custom[t] {
		p = &Custom{Name: t}
	} else {
		return nil, unknownType(t)
	}
	if err := unmarshalPayload(data, p); err != nil {
		return nil, fmt.Errorf("event %s: data: %w", t, err)
	}
	return p, nil
}

func (c *Codec) lift(t Type, schema string, data json.RawMessage) (json.RawMessage, error) {
	if schema == firstSchema[t] && c.version(t) == 1 {
		return data, nil
	}
	if rowOf[t] == nil && !c.custom[t] {
		return nil, unknownType(t)
	}
	text, ok := strings.CutPrefix(schema, schemaRoot+string(t)+"/")
	v, err := strconv.Atoi(text)
	if !ok || err != nil || v < 1 || strconv.Itoa(v) != text {
		return nil, fmt.Errorf("event %s: dataschema %q is not %s%s/<version>", t, schema, schemaRoot, t)
	}
	current := c.version(t)
	known := current
	if r := rowOf[t]; r != nil && r.next != nil {
		known++
	}
	if v > known {
		return nil, &NewerVersionError{Type: t, Version: v, Known: known}
	}
	if v < current && !json.Valid(data) {
		return nil, fmt.Errorf("event %s: data: %w", t, codec.Invalid(data))
	}
	for ; v < current; v++ {
		if data, err = c.lifts(t)[v-1](data); err != nil {
			return nil, fmt.Errorf("event %s: lifting version %d: %w", t, v, err)
		}
		if data, err = compactObject(data); err != nil {
			return nil, fmt.Errorf("event %s: lifting version %d gave data that is %w", t, v, err)
		}
	}
	return data, nil
}

func compactObject(text []byte) ([]byte, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return nil, codec.Invalid(text)
	}
	if b.Bytes()[0] != '{' {
		return nil, codec.ErrNotObject
	}
	return b.Bytes(), nil
}

// decoder gathers the members of an envelope.
type decoder struct {
	event  Event
	typ    Type
	schema string
	data   json.RawMessage
	seen   uint32
}

// The attributes by their bit in decoder.seen; those before attrCause are
// required.
const (
	attrSpec = iota
	attrID
	attrType
	attrSource
	attrSubject
	attrTime
	attrContent
	attrSchema
	attrN
	attrFrom
	attrTo
	attrStep
	attrData
	attrCause
	attrPrev
	attrTrace
)

// attributes names the attributes at their bits.
var attributes = [...]string{
	attrSpec: "specversion", attrID: "id", attrType: "type", attrSource: "source", attrSubject: "subject",
	attrTime: "time", attrContent: "datacontenttype", attrSchema: "dataschema", attrN: "n", attrFrom: "from",
	attrTo: "to", attrStep: "step", attrData: "data", attrCause: "cause", attrPrev: "prev", attrTrace: "traceparent",
}

func (d *decoder) member(key, value []byte) error {
	attr := slices.Index(attributes[:], string(key))
	if attr < 0 {
		if slices.ContainsFunc(d.event.extra, func(m member) bool { return bytes.Equal(m.key, key) }) {
			return fmt.Errorf("%s: stands there twice", key)
		}
		if !json.Valid(value) {
			return fmt.Errorf("%s: %w", key, codec.Invalid(value))
		}
		d.event.extra = append(d.event.extra, member{key, value})
		return nil
	}
	if d.seen&(1<<attr) != 0 {
		return fmt.Errorf("%s: stands there twice", key)
	}
	d.seen |= 1 << attr
	if err := d.set(attr, value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (d *decoder) set(attr int, value []byte) error {
	e := &d.event
	switch attr {
	case attrData:
		if value[0] != '{' {
			return codec.ErrNotObject
		}
		d.data = value
		return nil
	case attrN:
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil || value[0] == '0' {
			return fmt.Errorf("%s is not a number from 1", value)
		}
		e.N = n
		return nil
	case attrStep:
		step, err := strconv.ParseUint(string(value), 10, 31)
		if err != nil || (value[0] == '0' && len(value) > 1) {
			return fmt.Errorf("%s is not a number from 0", value)
		}
		e.Step = int(step)
		return nil
	}
	if value[0] != '"' {
		return fmt.Errorf("%.40s is not a string", value)
	}
	text, err := codec.Unquote(value)
	if err != nil {
		return err
	}
	return d.setText(attr, string(text))
}

func (d *decoder) setText(attr int, s string) error {
	e := &d.event
	switch attr {
	case attrSpec:
		return want(s, specVersion)
	case attrContent:
		return want(s, contentType)
	case attrID:
		e.ID = s
		return CheckID(s)
	case attrSubject:
		e.Run = s
		return CheckID(s)
	case attrCause:
		e.Cause = s
		return CheckID(s)
	case attrTime:
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return fmt.Errorf("%q is not an RFC 3339 time", s)
		}
		e.Time = t.UTC()
		if y := e.Time.Year(); y < 0 || y > 9999 {
			return fmt.Errorf("%q is out of range in UTC", s)
		}
	case attrType:
		d.typ = Type(s)
	case attrSource:
		e.Source = s
		if s == "" {
			return errors.New("is empty")
		}
	case attrSchema:
		d.schema = s
	case attrFrom:
		e.From = stateOf(s)
		return checkState(s)
	case attrTo:
		e.To = stateOf(s)
		return checkState(s)
	case attrPrev:
		e.Prev = s
		return checkHash(s)
	case attrTrace:
		e.TraceParent = s
	}
	return nil
}

func want(got, want string) error {
	if got != want {
		return fmt.Errorf("%q is not %q", got, want)
	}
	return nil
}

// stateOf returns the state of that name. A built-in one shares no memory with it.
func stateOf(name string) State {
	if i := slices.Index(builtinStates[:], State(name)); i >= 0 {
		return builtinStates[i]
	}
	return State(name)
}

func checkState(s string) error {
	if !ValidToken(s) {
		return fmt.Errorf("%.80q is not a state in lower snake case", s)
	}
	return nil
}

func checkHash(s string) error {
	if !isHash(s) {
		return errors.New("not a lower-case hex sha256")
	}
	return nil
}

func (d *decoder) complete() error {
	for attr, name := range attributes[:attrCause] {
		if d.seen&(1<<attr) == 0 {
			return fmt.Errorf("%s: is missing", name)
		}
	}
	return nil
}
