package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"

	"github.com/moorebus/moorebus/pkg/events"
)

// reasoning collects what a model reasons. Servers give it in one of several fields, or the
// same text in two of them.
type reasoning struct {
	parts   []*thought
	details []*detail
}

// thought is reasoning of one kind.
type thought struct {
	kind string
	text strings.Builder
}

// add takes what was reasoned.
func (r *reasoning) add(kind string, text string) {
	if n := len(r.parts); n == 0 || r.parts[n-1].kind != kind {
		r.parts = append(r.parts, &thought{kind: kind})
	}
	r.parts[len(r.parts)-1].text.WriteString(text)
}

// of returns the reasoning of a message outside its content, from the first field that has
// any.
func (r *reasoning) of(m *spoken) (string, string) {
	kind, said := events.ReasoningText, ""
	for _, raw := range m.ReasoningDetails {
		d := readDetail(raw)
		r.keep(d)
		said += d.text("text") + d.text("summary")
		if d.text("type") == "reasoning.summary" {
			kind = events.ReasoningSummary
		}
	}
	for _, field := range []pieces{m.ReasoningContent, m.Reasoning} {
		if text := field.text(); text != "" {
			return kind, text
		}
	}
	return kind, said
}

// all returns the parts in order: the readable ones, then those that only the provider
// reads.
func (r *reasoning) all() events.Reasoning {
	var parts events.Reasoning
	for _, t := range r.parts {
		parts = append(parts, events.ReasoningPart{Kind: t.kind, Text: t.text.String()})
	}
	for _, d := range r.details {
		parts = append(parts, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: d.whole()})
	}
	return parts
}

// detail is one of the reasoning_details: as it came, or put together from several
// fragments of a stream.
type detail struct {
	raw    json.RawMessage
	keys   map[string]json.RawMessage
	merged map[string]*strings.Builder
}

func readDetail(raw json.RawMessage) *detail {
	d := &detail{raw: raw}
	_ = json.Unmarshal(raw, &d.keys) // it is an object
	return d
}

func (d *detail) text(key string) string {
	var s string
	_ = json.Unmarshal(d.keys[key], &s) // else it is empty
	return s
}

// keep takes a detail. Fragments of one have the same type, index and id.
func (r *reasoning) keep(next *detail) {
	for _, d := range r.details {
		if d.continues(next) {
			d.merge(next)
			return
		}
	}
	r.details = append(r.details, next)
}

func (d *detail) continues(next *detail) bool {
	same := func(key string) bool { return bytes.Equal(d.keys[key], next.keys[key]) }
	kind := d.text("type")
	return (kind == "reasoning.text" || kind == "reasoning.summary") && same("type") && same("index") && next.keys["index"] != nil && same("id")
}

func (d *detail) merge(next *detail) {
	if d.merged == nil {
		d.merged = map[string]*strings.Builder{}
	}
	for key, value := range next.keys {
		switch key {
		case "text", "summary":
			b := d.merged[key]
			if b == nil {
				b = &strings.Builder{}
				b.WriteString(d.text(key))
				d.merged[key] = b
			}
			b.WriteString(next.text(key))
		default:
			if said := string(value); said != "null" && said != `""` { // a signature comes last
				d.keys[key] = value
			}
		}
	}
}

func (d *detail) whole() json.RawMessage {
	if d.merged == nil {
		return d.raw
	}
	for key, b := range d.merged {
		d.keys[key] = encoded(b.String())
	}
	return encoded(d.keys)
}

func encoded(v any) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings and valid JSON always encode
	return bytes.TrimSpace(out.Bytes())
}

// thinkTags separates reasoning in tags from the text that follows it. Only tags at the
// beginning count, since an answer may be about tags. Text comes in fragments, so that a tag
// may be split between two.
type thinkTags struct {
	// off says that tags are text.
	off   bool
	state tagState
	held  string
	end   string
}

type tagState int

const (
	tagsBefore tagState = iota // nothing has come but space
	tagsInside
	tagsAfter
)

// openTags are those in use, with what ends each. Bedrock writes <reasoning>.
var openTags = map[string]string{
	"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>", "<reasoning>": "</reasoning>",
}

// split returns what of the text so far is reasoning and what is text; the rest is held
// until more comes. last says that nothing more comes.
func (t *thinkTags) split(fragment string, last bool) (reasoned, text string) {
	if t.off {
		return "", fragment
	}
	t.held += fragment
	for {
		switch t.state {
		case tagsBefore:
			if !t.open(last) {
				return reasoned, text
			}
		case tagsInside:
			before, after, closed := strings.Cut(t.held, t.end)
			if !closed {
				keep := 0
				if !last {
					keep = overlap(t.held, t.end)
				}
				reasoned += t.held[:len(t.held)-keep]
				t.held = t.held[len(t.held)-keep:]
				return reasoned, text
			}
			reasoned += before
			t.held, t.state = after, tagsBefore
		case tagsAfter:
			text += t.held
			t.held = ""
			return reasoned, text
		}
	}
}

// open looks for a tag at the beginning of what is held, and reports whether it is known
// what follows.
func (t *thinkTags) open(last bool) bool {
	trimmed := strings.TrimLeftFunc(t.held, unicode.IsSpace)
	for tag, end := range openTags {
		switch {
		case strings.HasPrefix(trimmed, tag):
			t.held, t.end, t.state = trimmed[len(tag):], end, tagsInside
			return true
		case !last && strings.HasPrefix(tag, trimmed): // also if nothing has come yet
			return false
		}
	}
	if t.end != "" { // the space after the reasoning belongs to neither
		t.held = trimmed
	}
	t.state = tagsAfter
	return true
}

// overlap is how much of the end of s may be the beginning of tag.
func overlap(s, tag string) int {
	for n := min(len(s), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(s, tag[:n]) {
			return n
		}
	}
	return 0
}
