package events

import (
	"time"
	"unicode/utf8"
)

// kind is what the codec knows of a built-in type.
type kind struct {
	typ Type
	// schema is the dataschema of version 1.
	schema string
	fresh  func() Payload
}

var kinds = func() map[string]*kind {
	all := make(map[string]*kind, len(builtin))
	for t, fresh := range builtin {
		all[string(t)] = &kind{typ: t, schema: schemaRoot + string(t) + "/1", fresh: fresh}
	}
	return all
}()

// canonical reads a body that stands as Encode writes it, with one pass over it:
// the attributes in their order and none that is unknown, the data of a built-in
// type at version 1. It returns nil for every other body, be it wrong or only
// different, and an event that is the same as [Codec.decode] makes of it.
func (c *Codec) canonical(body []byte) *Event {
	if !utf8.Valid(body) {
		return nil
	}
	s := scanner{text: body}
	e := new(Event)
	k := s.envelope(e)
	if s.bad || c.version(k.typ) != 1 || len(body) < s.at+len(`{}}`) || body[len(body)-1] != '}' {
		return nil
	}
	data := body[s.at : len(body)-1]
	payload, ok := k.read(data)
	if !ok {
		return nil
	}
	e.Data, e.raw, e.decoded = payload, data, payload
	return e
}

// read reads a type's data, which is valid UTF-8.
func (k *kind) read(data []byte) (Payload, bool) {
	s := scanner{text: data}
	s.words.Grow(wordsOf(k.typ, len(data)))
	if p := readPayload(&s, k.typ); p != nil && s.end() {
		return p, true
	}
	// Another type, or written by somebody else.
	if data[0] != '{' || data[len(data)-1] != '}' {
		return nil, false
	}
	p := k.fresh()
	return p, unmarshalPayload(data, p) == nil
}

// envelope reads everything before the data.
func (s *scanner) envelope(e *Event) *kind {
	s.want(`{"specversion":"` + specVersion + `","id":`)
	id := s.plain()
	s.want(`,"type":`)
	k := kinds[string(s.plain())]
	if k == nil {
		s.bad = true
		return nil
	}
	s.want(`,"source":`)
	source := s.plain()
	s.want(`,"subject":`)
	run := s.plain()
	s.want(`,"time":`)
	e.Time = s.time()
	s.want(`,"datacontenttype":"` + contentType + `","dataschema":"`)
	s.want(k.schema)
	s.want(`","n":`)
	e.N = uint64(s.count(1))
	s.want(`,"from":`)
	e.From = s.state()
	s.want(`,"to":`)
	e.To = s.state()
	s.want(`,"step":`)
	e.Step = int(s.count(0))
	var cause, prev, trace []byte
	if s.has(`,"cause":`) {
		cause = s.id()
	}
	if s.has(`,"prev":`) {
		prev = s.plain()
		s.hold(isHash(prev))
	}
	if s.has(`,"traceparent":`) {
		trace = s.plain()
	}
	s.want(`,"data":`)
	s.hold(len(source) > 0 && isID(id) && isID(run))
	e.share(id, source, run, cause, prev, trace)
	return k
}

// hold makes the scanner bad unless the text is as it has to be.
func (s *scanner) hold(ok bool) {
	if !ok {
		s.bad = true
	}
}

// share sets the event's strings, all in one piece of memory: they come and go
// together.
func (e *Event) share(id, source, run, cause, prev, trace []byte) {
	var room [288]byte
	b := append(room[:0], id...)
	b = append(b, source...)
	b = append(b, run...)
	b = append(b, cause...)
	b = append(b, prev...)
	b = append(b, trace...)
	all := string(b)
	e.ID, all = all[:len(id)], all[len(id):]
	e.Source, all = all[:len(source)], all[len(source):]
	e.Run, all = all[:len(run)], all[len(run):]
	e.Cause, all = all[:len(cause)], all[len(cause):]
	e.Prev, e.TraceParent = all[:len(prev)], all[len(prev):]
}

func (s *scanner) id() []byte {
	id := s.plain()
	s.hold(isID(id))
	return id
}

// count takes a number from least on, as the codec reads n and step.
func (s *scanner) count(least int64) int64 {
	s.hold(s.at < len(s.text) && s.text[s.at] != '-') // not -0 either
	n := s.integer()
	s.hold(n >= least && n <= maxCount)
	return n
}

// maxCount is far beyond what a run has of anything.
const maxCount = 1<<31 - 1

// state takes a state.
func (s *scanner) state() State {
	text := s.plain()
	if known := builtinState(text); known != "" {
		return known
	}
	s.hold(!s.bad && ValidToken(string(text)))
	return State(text)
}

// builtinState returns the built-in state of that name without allocating it; empty
// if there is none.
func builtinState(name []byte) State {
	switch State(name) {
	case Idle:
		return Idle
	case Planning:
		return Planning
	case Acting:
		return Acting
	case ParallelActing:
		return ParallelActing
	case WaitingForHuman:
		return WaitingForHuman
	case WaitingForUser:
		return WaitingForUser
	case Observing:
		return Observing
	case Reflecting:
		return Reflecting
	case Paging:
		return Paging
	case Done:
		return Done
	case Errored:
		return Errored
	case Cancelled:
		return Cancelled
	}
	return ""
}

// time takes a time in TimeFormat.
func (s *scanner) time() time.Time {
	text := s.plain()
	t, ok := parseTime(text)
	s.hold(ok)
	return t
}

// parseTime reads a time in [TimeFormat].
func parseTime(text []byte) (time.Time, bool) {
	if len(text) != len(TimeFormat) || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' ||
		text[16] != ':' || text[19] != '.' || text[29] != 'Z' {
		return time.Time{}, false
	}
	ok := true
	number := func(from, to int) int {
		n := 0
		for _, c := range text[from:to] {
			ok = ok && '0' <= c && c <= '9'
			n = n*10 + int(c-'0')
		}
		return n
	}
	year, month, day := number(0, 4), number(5, 7), number(8, 10)
	hour, minute, second, nanosecond := number(11, 13), number(14, 16), number(17, 19), number(20, 29)
	if !ok || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, nanosecond, time.UTC)
	// A day that the month does not have would be one of the next month.
	return t, day <= 28 || t.Day() == day
}
