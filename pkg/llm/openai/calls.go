package openai

import (
	"encoding/json"
	"sort"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
)

// callList puts the calls of a reply together.
type callList struct {
	all     []*partial
	byIndex map[int]*partial
	byID    map[string]*partial
	next    int
	// names are those of the request's tools.
	names *llmhttp.ToolNames
}

// partial is a call of which not everything may have come yet.
type partial struct {
	index    int
	id, name string
	args     strings.Builder
	// whole are the arguments if they came as an object.
	whole string
	extra json.RawMessage
	// told says that the name was emitted.
	told bool
}

// take adds a fragment and returns its call. It returns nil for a fragment that holds
// nothing: Snowflake sends an empty function_call with every reply.
func (l *callList) take(f *fragment) *partial {
	if f.ID == "" && f.Function == (fragmentFunction{}) && f.ExtraContent == nil {
		return nil
	}
	p := l.find(f)
	if p.id == "" && f.ID != "" {
		p.id = string(f.ID)
		l.byID[p.id] = p
	}
	if p.name == "" || l.continues(p, f) {
		p.name += string(f.Function.Name)
	}
	p.args.WriteString(f.Function.Arguments.Text)
	if f.Function.Arguments.Whole != "" {
		p.whole = f.Function.Arguments.Whole
	}
	if isObject(f.ExtraContent) {
		p.extra = f.ExtraContent
	}
	return p
}

// find gives the call that a fragment belongs to: the one with its index, and
// where the server gives no index the one with its id, else the last one.
func (l *callList) find(f *fragment) *partial {
	var p *partial
	switch {
	case f.Index != nil:
		p = l.byIndex[f.Index.Count()]
	case f.ID != "":
		p = l.byID[string(f.ID)]
	case len(l.all) > 0:
		p = l.all[len(l.all)-1]
	}
	if p == nil || !l.continues(p, f) && p.before(f) {
		p = l.begin(f.Index)
	}
	return p
}

// continues reports whether a fragment has a further part of p's name: some servers split names
// over chunks, while others repeat them.
func (l *callList) continues(p *partial, f *fragment) bool {
	more := string(f.Function.Name)
	return more != "" && p.name != "" && p.arguments() == "" && (f.ID == "" || string(f.ID) == p.id) && l.names.Continues(p.name, more)
}

// before reports whether a fragment in p's place begins another call, since some servers
// give every call index 0, or none: it names a function under a new id, and without ids
// another function, or the same one once the arguments are complete.
func (p *partial) before(f *fragment) bool {
	name := string(f.Function.Name)
	switch {
	case name == "" || p.name == "":
		return false
	case p.id != "":
		return f.ID != "" && string(f.ID) != p.id
	case name != p.name:
		return true
	}
	return f.Function.Arguments != (llmhttp.Arguments{}) && json.Valid([]byte(p.arguments()))
}

func (l *callList) begin(index *llmhttp.Number) *partial {
	if l.byIndex == nil {
		l.byIndex, l.byID = map[int]*partial{}, map[string]*partial{}
	}
	p := &partial{index: l.next}
	if index != nil {
		if l.byIndex[index.Count()] == nil {
			p.index = index.Count()
		}
		l.byIndex[index.Count()] = p
	}
	l.next = max(l.next, p.index+1)
	l.all = append(l.all, p)
	return p
}

// arguments are the model's own text as far as the server shows it. An object goes before
// an empty text, and gives way to any other: some servers begin with an empty object.
func (p *partial) arguments() string {
	if strings.TrimSpace(p.args.String()) == "" {
		return p.whole
	}
	return p.args.String()
}

// inOrder returns the calls by their index.
func (l *callList) inOrder() []*partial {
	sort.SliceStable(l.all, func(i, j int) bool { return l.all[i].index < l.all[j].index })
	return l.all
}

func isObject(raw json.RawMessage) bool { return len(raw) > 1 && raw[0] == '{' }
