package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// schema returns the dataschema of a payload of a type with that row, nil for an
// application's own.
func (c *Codec) schema(t Type, r *row, p Payload) string {
	version := c.version(t, r)
	if r != nil && r.next != nil && r.next(p) {
		version++
	}
	if r != nil && version == 1 {
		return r.first
	}
	return schemaRoot + string(t) + "/" + strconv.Itoa(version)
}

// lifts returns the upcasters of a type: those that the codec was given, else the
// type's own.
func (c *Codec) lifts(t Type, r *row) []Upcaster {
	if own, ok := c.upcasters[t]; ok || r == nil {
		return own
	}
	return r.upcasters
}

func (c *Codec) version(t Type, r *row) int { return len(c.lifts(t, r)) + 1 }

// Encode returns the event's body. Equal events give equal bytes. A decoded event gives the
// bytes it was decoded from, if this package wrote them.
func (c *Codec) Encode(e *Event) ([]byte, error) {
	if e.Data == nil {
		return nil, errors.New("event has no data")
	}
	t := e.Type()
	r := rowOf[t]
	if r == nil && !c.custom[t] {
		return nil, unknownType(t)
	}
	body := appendAttributes(make([]byte, 0, usualBody), e, c.schema(t, r, e.Data))
	for _, m := range e.extra {
		body = codec.AppendString(append(body, ','), string(m.key))
		body = append(append(body, ':'), m.value...)
	}
	body = append(body, `,"data":`...)
	if e.raw != nil && e.Data == e.decoded {
		body = append(body, e.raw...)
		return append(body, '}'), nil
	}
	body, err := appendPayload(body, e.Data)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", t, err)
	}
	return append(body, '}'), nil
}

// appendAttributes appends the opening brace and the attributes before the data.
func appendAttributes(b []byte, e *Event, schema string) []byte {
	b = append(b, `{"specversion":"`+specVersion+`"`...)
	b = appendText(b, attrID, e.ID)
	b = appendText(b, attrType, string(e.Type()))
	b = appendText(b, attrSource, e.Source)
	b = appendText(b, attrSubject, e.Run)
	b = e.Time.UTC().AppendFormat(append(b, `,"time":"`...), TimeFormat)
	b = append(b, `","datacontenttype":"`+contentType+`"`...)
	b = appendText(b, attrSchema, schema)
	b = strconv.AppendUint(append(b, `,"n":`...), e.N, 10)
	b = appendText(b, attrFrom, string(e.From))
	b = appendText(b, attrTo, string(e.To))
	b = strconv.AppendInt(append(b, `,"step":`...), int64(e.Step), 10)
	b = appendOptional(b, attrCause, e.Cause)
	b = appendOptional(b, attrPrev, e.Prev)
	return appendOptional(b, attrTrace, e.TraceParent)
}

func appendText(b []byte, attr int, text string) []byte {
	b = append(append(append(b, `,"`...), attributes[attr]...), `":`...)
	return codec.AppendString(b, text)
}

func appendOptional(b []byte, attr int, text string) []byte {
	if text == "" {
		return b
	}
	return appendText(b, attr, text)
}

// usualBody is the size that most bodies do not exceed, in bytes.
const usualBody = 768

// Decode reads a body. Every attribute that CONTRACT names must be there and well formed.
// Package reducer checks whether the event is legal in its run. The event may keep parts of
// body, which must not be changed afterwards.
func (c *Codec) Decode(body []byte) (*Event, error) {
	d := new(decoder)
	if err := d.attributes(body); err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	data, err := c.lift(d)
	if newer := (*NewerVersionError)(nil); errors.As(err, &newer) {
		newer.Event = &d.event
		newer.Event.Data = &Custom{Name: d.typ, Data: d.data}
	}
	if err != nil {
		return nil, err
	}
	payload, err := c.payload(d, data)
	if err != nil {
		return nil, err
	}
	e := &d.event
	// Data that was lifted is kept too: what this version does not know of it
	// survives, now in the current version.
	e.Data, e.raw, e.decoded = payload, data, payload
	return e, nil
}

func (c *Codec) payload(d *decoder, data json.RawMessage) (Payload, error) {
	var p Payload = &Custom{Name: d.typ}
	if d.row != nil {
		p = d.row.fresh()
	}
	if err := unmarshalPayload(data, p); err != nil {
		return nil, fmt.Errorf("event %s: data: %w", d.typ, err)
	}
	return p, nil
}

// lift returns the data in the current version of its type.
func (c *Codec) lift(d *decoder) (json.RawMessage, error) {
	t, data, schema, current := d.typ, d.data, d.schema, c.version(d.typ, d.row)
	switch {
	case d.row == nil && !c.custom[t]:
		return nil, unknownType(t)
	case d.row != nil && schema == d.row.first && current == 1:
		return data, nil
	case d.row == nil && schema == "" && current == 1: // logs may hold it, since earlier builds read it
		return data, nil
	}
	text, ok := strings.CutPrefix(schema, schemaRoot+string(t)+"/")
	v, err := strconv.Atoi(text)
	if !ok || err != nil || v < 1 || strconv.Itoa(v) != text {
		return nil, fmt.Errorf("event %s: dataschema %q is not %s%s/<version>", t, schema, schemaRoot, t)
	}
	known := current
	if d.row != nil && d.row.next != nil {
		known++
	}
	if v > known {
		return nil, &NewerVersionError{Type: t, Version: v, Known: known}
	}
	if v < current && !json.Valid(data) {
		return nil, fmt.Errorf("event %s: data: %w", t, codec.Invalid(data))
	}
	for ; v < current; v++ {
		if data, err = c.lifts(t, d.row)[v-1](data); err != nil {
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
	event Event
	typ   Type
	// row is that of a built-in type, nil for any other.
	row    *row
	schema string
	data   json.RawMessage
	seen   uint32
	// next is the attribute that is expected.
	next int
	// words holds the texts of the event: they come and go together.
	words strings.Builder
}

// usualWords is how many bytes the texts of most events have at most.
const usualWords = 208

// The attributes by their bit in decoder.seen, in the order in which they are written.
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
	attrCause
	attrPrev
	attrTrace
	attrData
)

// optional has the bits of the attributes that an event may lack.
const optional = 1<<attrCause | 1<<attrPrev | 1<<attrTrace

// attributes names the attributes at their bits.
var attributes = [...]string{
	attrSpec: "specversion", attrID: "id", attrType: "type", attrSource: "source", attrSubject: "subject",
	attrTime: "time", attrContent: "datacontenttype", attrSchema: "dataschema", attrN: "n", attrFrom: "from",
	attrTo: "to", attrStep: "step", attrData: "data", attrCause: "cause", attrPrev: "prev", attrTrace: "traceparent",
}

func (d *decoder) member(key, value []byte) error {
	attr := d.next // which it is in what Encode writes
	if attributes[attr] != string(key) {
		attr = slices.Index(attributes[:], string(key))
	}
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
	d.next = (attr + 1) % len(attributes)
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
	return d.setText(attr, text)
}

func (d *decoder) setText(attr int, text []byte) error {
	e := &d.event
	switch attr {
	case attrSpec:
		return want(text, specVersion)
	case attrContent:
		return want(text, contentType)
	case attrID:
		e.ID = d.keep(text)
		return CheckID(e.ID)
	case attrSubject:
		e.Run = d.keep(text)
		return CheckID(e.Run)
	case attrCause:
		e.Cause = d.keep(text)
		return CheckID(e.Cause)
	case attrTime:
		t, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil {
			return fmt.Errorf("%q is not an RFC 3339 time", text)
		}
		e.Time = t.UTC()
		if y := e.Time.Year(); y < 0 || y > 9999 {
			return fmt.Errorf("%q is out of range in UTC", text)
		}
	case attrType:
		if d.row = rowOf[Type(text)]; d.row != nil {
			d.typ = d.row.typ
		} else {
			d.typ = Type(text)
		}
	case attrSource:
		e.Source = d.keep(text)
		if len(text) == 0 {
			return errors.New("is empty")
		}
	case attrSchema:
		if d.row != nil && d.row.first == string(text) {
			d.schema = d.row.first
		} else {
			d.schema = string(text)
		}
	case attrFrom:
		e.From = stateNamed(text)
		return checkState(e.From)
	case attrTo:
		e.To = stateNamed(text)
		return checkState(e.To)
	case attrPrev:
		e.Prev = d.keep(text)
		return checkHash(e.Prev)
	case attrTrace:
		e.TraceParent = d.keep(text)
	}
	return nil
}

// keep returns a text of the event.
func (d *decoder) keep(text []byte) string {
	if d.words.Cap() == 0 {
		d.words.Grow(usualWords)
	}
	start := d.words.Len()
	d.words.Write(text)
	return d.words.String()[start:]
}

func want(got []byte, want string) error {
	if string(got) != want {
		return fmt.Errorf("%q is not %q", got, want)
	}
	return nil
}

// stateNamed returns the state of that name.
func stateNamed(name []byte) State {
	if i := slices.Index(builtinStates[:], State(name)); i >= 0 {
		return builtinStates[i]
	}
	return State(name)
}

func checkState(s State) error {
	if !ValidToken(string(s)) {
		return fmt.Errorf("%.80q is not a state in lower snake case", string(s))
	}
	return nil
}

func checkHash(s string) error {
	if !isHash(s) {
		return errors.New("not a lower-case hex sha256")
	}
	return nil
}

// attributes reads the attributes of a body, and says what is wrong with it.
func (d *decoder) attributes(body []byte) error {
	if err := codec.Members(body, d.member); err != nil {
		return err
	}
	for attr, name := range attributes {
		if (d.seen|optional)&(1<<attr) == 0 {
			return fmt.Errorf("%s: is missing", name)
		}
	}
	return nil
}
