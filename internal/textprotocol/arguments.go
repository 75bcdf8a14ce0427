package textprotocol

import (
	"bytes"
	"encoding/json"
	"strings"
)

// arguments returns the JSON of a call's arguments: the text of `<arguments>` verbatim,
// or one member for each element, by the tool's schema.
func (a *action) arguments(schema json.RawMessage) (string, *syntaxError) {
	fields := a.fields
	if i := indexOf(fields, argumentsElement); i >= 0 {
		if len(fields) > 1 {
			return "", wrong(fields[i].at, "the action has <arguments> and other arguments: expected one of both")
		}
		text := strings.TrimSpace(fields[i].raw)
		if _, markup := leadingTag(text); !markup {
			if text = decode(text); text == "" {
				text = "{}"
			}
			return text, nil
		}
		// The arguments were written as elements anyway.
		from := fields[i].from + strings.Index(fields[i].raw, text)
		s := &scanner{text: text}
		inner, err := s.fields(argumentsElement, actionElement)
		if err != nil {
			return "", wrong(from+err.at, "in <arguments>: %s", err.reason)
		}
		for k := range inner {
			inner[k].at += from
			inner[k].from += from
		}
		fields = inner
	}
	return object(fields, parameters(schema))
}

// leadingTag reports whether a text begins with an element; a CDATA section is
// text.
func leadingTag(text string) (tag, bool) {
	if text == "" || text[0] != '<' {
		return tag{}, false
	}
	return tagAt(text, 0)
}

func indexOf(fields []field, name string) int {
	for i, f := range fields {
		if strings.EqualFold(f.name, name) {
			return i
		}
	}
	return -1
}

// object writes the fields as one JSON object, in their order.
func object(fields []field, known []parameter) (string, *syntaxError) {
	type member struct {
		field
		parameter
		values []string
	}
	var members []*member
	index := map[string]*member{}
	for _, f := range fields {
		p := lookup(known, f.name)
		m := index[p.name]
		switch {
		case m == nil:
			m = &member{field: f, parameter: p}
			index[p.name] = m
			members = append(members, m)
		case p.kind != kindArray:
			return "", wrong(f.at, "the argument %s stands there twice: expected one", p.name)
		}
		m.values = append(m.values, f.value())
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(quote(m.parameter.name))
		b.WriteByte(':')
		b.Write(m.convert(m.values))
	}
	b.WriteByte('}')
	return b.String(), nil
}

// The kinds of JSON Schema that a text is converted for; any other stays a
// string.
const (
	kindNumber  = "number"
	kindInteger = "integer"
	kindBoolean = "boolean"
	kindNull    = "null"
	kindArray   = "array"
	kindObject  = "object"
)

// parameter is one argument that a tool takes.
type parameter struct {
	name, kind, description string
	required                bool
	// items is the kind of a list's items.
	items string
}

// lookup finds the parameter of an element by its name, else by its name in another
// case. An unknown argument is a string.
func lookup(known []parameter, name string) parameter {
	found := parameter{name: name}
	for _, p := range known {
		if p.name == name {
			return p
		}
		if strings.EqualFold(p.name, name) {
			found = p
		}
	}
	return found
}

// convert writes an argument's texts in the form of its kind. A text that does not fit
// becomes a string, which the check of the arguments reports.
func (p parameter) convert(values []string) json.RawMessage {
	if p.kind != kindArray {
		return single(p.kind, values[0])
	}
	if len(values) == 1 {
		return p.listOf(strings.TrimSpace(values[0]))
	}
	return p.list(values)
}

// listOf writes a list that was given in one element: as JSON, as JSON objects or lists
// without the outer brackets, or as items separated by commas.
func (p parameter) listOf(text string) json.RawMessage {
	if !strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "{") {
		return p.list(split(text))
	}
	if text[0] == '[' && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	var items []json.RawMessage
	switch err := json.Unmarshal([]byte("["+text+"]"), &items); {
	case err == nil && p.items == "":
		return json.RawMessage("[" + text + "]")
	case err == nil:
		values := make([]string, len(items))
		for i, item := range items {
			values[i] = string(item)
		}
		return p.list(values)
	case p.items == kindObject:
		return p.list([]string{text}) // its commas are those of an object that is not JSON
	}
	return p.list(split(text))
}

func (p parameter) list(values []string) json.RawMessage {
	items := make([][]byte, len(values))
	for i, v := range values {
		items[i] = single(p.items, v)
	}
	return append(append([]byte{'['}, bytes.Join(items, []byte{','})...), ']')
}

// split cuts a list at its commas.
func split(joined string) []string {
	if joined == "" {
		return nil
	}
	items := strings.Split(joined, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

func single(kind, value string) json.RawMessage {
	trimmed := strings.TrimSpace(value)
	is := func(first string) bool {
		return trimmed != "" && strings.Contains(first, trimmed[:1]) && json.Valid([]byte(trimmed))
	}
	switch {
	case (kind == kindNumber || kind == kindInteger) && is("-0123456789"),
		kind == kindObject && is("{"), kind == kindArray && is("["), kind == kindNull && is("n"):
		return json.RawMessage(trimmed)
	case kind == kindBoolean && (strings.EqualFold(trimmed, "true") || strings.EqualFold(trimmed, "false")):
		return json.RawMessage(strings.ToLower(trimmed))
	}
	return quote(value)
}

// quote writes a JSON string and escapes only what JSON requires.
func quote(s string) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string cannot fail to encode
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}
