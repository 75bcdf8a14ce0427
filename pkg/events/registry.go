package events

import (
	"encoding/json"
	"slices"
)

// Type is the type of an event as it stands on the wire.
type Type string

// row is all that this package knows of an event type. A new type needs a row in the file
// of its theme, and one in the file of the same name in package reducer.
type row struct {
	typ Type
	// first is the dataschema of version 1.
	first string
	fresh func() Payload
	// sentence says in plain words what happened, for the documentation; summary says
	// what the data is about, for the console, and is empty where the type says it all.
	sentence string
	summary  func(Payload) string
	// upcasters lift older versions, see [TypeSpec]. The version is one more than
	// their number. since is the revision that brought the type.
	upcasters []Upcaster
	since     int
	// next reports whether a payload has a form that some builds of the present version
	// cannot read: it stands in the log as the next version, which needs no lifting. Older
	// builds leave a run alone that begins by it. Nil: none has.
	next func(Payload) bool
}

func define[T any, P interface {
	*T
	Payload
}](sentence string, summary func(P) string) row {
	typ := P(new(T)).eventType()
	return row{
		typ: typ, first: schemaRoot + string(typ) + "/1", fresh: func() Payload { return P(new(T)) }, sentence: sentence,
		summary: func(p Payload) string { return summary(p.(P)) }, since: 1,
	}
}

func (r row) broughtBy(revision int) row {
	r.since = revision
	return r
}

func (r row) nextWhere(next func(Payload) bool) row {
	r.next = next
	return r
}

// rows are all built-in types: the closed set.
var rows = slices.Concat(startRows, planningRows, toolsRows, observingRows, humansRows, contextRows, controlRows)

var rowOf = func() map[Type]*row {
	all := make(map[Type]*row, len(rows))
	for i := range rows {
		all[rows[i].typ] = &rows[i]
	}
	return all
}()

// Types lists every built-in event type, by theme.
func Types() []Type {
	types := make([]Type, len(rows))
	for i := range rows {
		types[i] = rows[i].typ
	}
	return types
}

// New returns an empty payload of a built-in type, nil for any other type.
func New(t Type) Payload {
	if r := rowOf[t]; r != nil {
		return r.fresh()
	}
	return nil
}

// TypeOf returns the event type that a payload belongs to.
func TypeOf(p Payload) Type { return p.eventType() }

// Since returns the revision of Moorebus that brought a built-in type, 0 for any other
// type. Package reducer counts the revisions.
func Since(t Type) int {
	if r := rowOf[t]; r != nil {
		return r.since
	}
	return 0
}

// Version returns the present version of a built-in type's payload, 0 for any other
// type.
func Version(t Type) int {
	if r := rowOf[t]; r != nil {
		return len(r.upcasters) + 1
	}
	return 0
}

// Sentence says in plain words what an event of a built-in type means; empty for any
// other type.
func Sentence(t Type) string {
	if r := rowOf[t]; r != nil {
		return r.sentence
	}
	return ""
}

// Summary says what a payload is about, as text of any length; empty where the type
// says it all. It begins with how a reply ended, where that is unusual.
func Summary(p Payload) string {
	if r := rowOf[p.eventType()]; r != nil {
		return UnusualEnding(p) + r.summary(p)
	}
	if own, ok := p.(*Custom); ok {
		return string(own.Data)
	}
	return ""
}

// Payload is an event's data. The set is closed: the types that have a row, and
// [Custom]. Payloads are always used as pointers and are not changed once they
// stand in an [Event]. Their text must be valid UTF-8: the log replaces what is
// not, so the writer's memory would differ from every reader's.
type Payload interface {
	eventType() Type
}

// Custom is an event of an application's own, by its registered name.
type Custom struct {
	Name Type
	Data json.RawMessage
}

func (c *Custom) eventType() Type { return c.Name }
