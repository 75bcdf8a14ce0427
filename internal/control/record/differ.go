package record

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Differ makes the patches between a run's memories as its events follow each other. It encodes
// only what may have changed, so the time of a patch hardly depends on how long the run is. It is
// not safe for concurrent use.
type Differ struct {
	root  object
	mem   *reducer.Memory
	ops   []Op
	quiet bool // the parts are filled, and nothing is added to ops
	err   error
}

// NewDiffer returns a Differ of a memory as it is now. Its members with the names in hidden are
// in no patch.
func NewDiffer(mem *reducer.Memory, hidden ...string) (*Differ, error) {
	d := &Differ{quiet: true}
	d.root = d.object(reflect.TypeFor[reducer.Memory](), "", hidden)
	_, err := d.Next(mem)
	d.quiet = false
	return d, err
}

// Next returns the operations that turn the JSON of the memory of the last call into that of mem,
// which is the same memory after further events. The error is that of a value without JSON.
func (d *Differ) Next(mem *reducer.Memory) ([]Op, error) {
	d.mem = mem
	d.root.move(d, "", reflect.ValueOf(mem))
	ops, err := d.ops, d.err
	d.mem, d.ops, d.err = nil, nil, nil
	return ops, err
}

func (d *Differ) add(o Op) {
	if !d.quiet {
		d.ops = append(d.ops, o)
	}
}

func (d *Differ) encode(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil && d.err == nil {
		d.err = err
	}
	return data
}

// replaced adds the operation for a value that is another one altogether.
func (d *Differ) replaced(op, path string, now reflect.Value) {
	if !d.quiet {
		d.add(Op{Op: op, Path: path, Value: d.encode(now.Interface())})
	}
}

// silently calls fn, whose operations are not added.
func (d *Differ) silently(fn func()) {
	before := d.quiet
	d.quiet = true
	fn()
	d.quiet = before
}

// part is a value in the memory. move takes the value as it is now, and adds the operations that
// lead there from the one before.
type part interface {
	move(d *Differ, path string, now reflect.Value)
}

// partOf returns the part for a value of a type, at a path. What grows with the run is compared,
// not encoded.
func (d *Differ) partOf(t reflect.Type, path string) part {
	switch reflect.Zero(t).Interface().(type) {
	case reducer.Control, *reducer.ReactContext:
		o := d.object(t, path, nil)
		return &o
	case reducer.Trace:
		return &growing[reducer.Trace, reducer.TraceEntry]{same: equal[reducer.TraceEntry], grows: true}
	case []reducer.HistoryEntry:
		return &growing[[]reducer.HistoryEntry, reducer.HistoryEntry]{same: equal[reducer.HistoryEntry], grows: true}
	case []reducer.Thought:
		return &growing[[]reducer.Thought, reducer.Thought]{same: equal[reducer.Thought], grows: true}
	case []string:
		return &growing[[]string, string]{same: equal[string], grows: true}
	case []reducer.Message:
		return &growing[[]reducer.Message, reducer.Message]{same: sameMessage, grows: true}
	case []reducer.MemoryEntry:
		return &growing[[]reducer.MemoryEntry, reducer.MemoryEntry]{same: sameEntry}
	case []reducer.InternalCall:
		return &growing[[]reducer.InternalCall, reducer.InternalCall]{same: equal[reducer.InternalCall]}
	case []reducer.Turn:
		return &growing[[]reducer.Turn, reducer.Turn]{same: sameTurn}
	case map[string]*reducer.ToolCallRecord:
		return &calls{}
	case map[string]reducer.ToolInfo, events.Agent, events.Config:
		return &rare{}
	}
	return &leaf{}
}

// object is a struct, or a pointer to one.
type object struct {
	fields []field
	there  bool
}

type field struct {
	path string
	at   int
	// omit says that an empty value is omitted, there that the value is not.
	omit, there bool
	part        part
}

func (d *Differ) object(t reflect.Type, path string, hidden []string) object {
	var o object
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for i := range t.NumField() {
		name, options, tagged := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && !slices.Contains(hidden, name) {
			to := path + "/" + name
			o.fields = append(o.fields, field{path: to, at: i, omit: tagged && options == "omitempty", part: d.partOf(t.Field(i).Type, to)})
		}
	}
	return o
}

func (o *object) move(d *Differ, path string, now reflect.Value) {
	before := o.there
	if now.Kind() == reflect.Pointer {
		if o.there = !now.IsNil(); before != o.there && path != "" {
			d.replaced("replace", path, now)
		}
		if !o.there {
			return
		}
		if !before {
			d.silently(func() { o.members(d, now.Elem()) })
			return
		}
		now = now.Elem()
	}
	o.members(d, now)
}

func (o *object) members(d *Differ, now reflect.Value) {
	for i := range o.fields {
		f := &o.fields[i]
		before, to, value := f.there, f.path, now.Field(f.at)
		f.there = !f.omit || !empty(value)
		switch {
		case before && f.there:
			f.part.move(d, to, value)
		case before:
			d.add(Op{Op: "remove", Path: to})
		case f.there:
			d.replaced("add", to, value)
			d.silently(func() { f.part.move(d, to, value) })
		}
	}
}

// empty reports whether package json leaves the value out for omitempty.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// leaf is a value that is small, and compared by its JSON.
type leaf struct {
	last any
	text json.RawMessage
}

func (l *leaf) move(d *Differ, path string, now reflect.Value) {
	value := now.Interface()
	switch now.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		if l.text != nil && value == l.last {
			return
		}
		l.last = value
	}
	text := d.encode(value)
	if l.text != nil && !d.quiet {
		d.shortest(path, l.text, text)
	}
	l.text = text
}

// shortest adds the operations for a small value. Many of them are longer than the entire value.
func (d *Differ) shortest(path string, before, after json.RawMessage) {
	var ops []Op
	size := 0
	values(func(o Op) {
		ops = append(ops, o)
		size += len(o.Path) + len(o.Value)
	}, path, before, after)
	const around = len(`{"op":"replace","path":"","value":},`)
	if len(ops) > 1 && size+around*len(ops) > len(path)+len(after)+around {
		ops = []Op{{Op: "replace", Path: path, Value: after}}
	}
	d.ops = append(d.ops, ops...)
}

// rare is a value that changes seldom, and never in place.
type rare struct{ last any }

func (r *rare) move(d *Differ, path string, now reflect.Value) {
	value := now.Interface()
	if reflect.DeepEqual(r.last, value) {
		return
	}
	if !d.quiet {
		values(d.add, path, d.encode(r.last), d.encode(value))
	}
	r.last = value
}

// growing is a list that may become long. With grows its elements do not change where they are.
type growing[S ~[]T, T any] struct {
	same  func(a, b *T) bool
	grows bool
	null  bool
	last  S
}

func (l *growing[S, T]) move(d *Differ, path string, v reflect.Value) {
	now := v.Interface().(S)
	first := 0
	switch {
	case d.quiet:
	case (now == nil) != l.null:
		d.replaced("replace", path, v)
	default:
		known := 0
		if l.grows && len(l.last) > 0 && len(now) >= len(l.last) && &now[0] == &l.last[0] {
			known = len(l.last)
		}
		first = lists(d.add, path, l.last, now, known, l.same, func(e *T) json.RawMessage { return d.encode(*e) })
	}
	if l.null = now == nil; l.grows {
		l.last = now
	} else {
		l.last = append(l.last[:first], now[first:]...)
	}
}

// calls are the run's calls. They are only added, in the order of [reducer.Control.CallOrder], and
// a call that has its result does not change.
type calls struct {
	seen int
	open []openCall
}

type openCall struct {
	id   string
	text json.RawMessage
}

func (c *calls) move(d *Differ, path string, v reflect.Value) {
	now, order := v.Interface().(map[string]*reducer.ToolCallRecord), d.mem.Control.CallOrder
	open := c.open[:0]
	for _, call := range c.open {
		text := d.encode(now[call.id])
		values(d.add, path+"/"+escape(call.id), call.text, text)
		if now[call.id].Result == nil {
			open = append(open, openCall{call.id, text})
		}
	}
	for _, id := range order[c.seen:] {
		record := now[id]
		if record == nil {
			continue // Moorebus' own tools
		}
		text := d.encode(record)
		d.add(Op{Op: "add", Path: path + "/" + escape(id), Value: text})
		if record.Result == nil {
			open = append(open, openCall{id, text})
		}
	}
	c.seen, c.open = len(order), open
}

func equal[T comparable](a, b *T) bool { return *a == *b }

// The lists in elements are not changed in place, so that their places and lengths are compared.

func sameMessage(a, b *reducer.Message) bool {
	return a.ID == b.ID && a.Content == b.Content && a.Role == b.Role && a.Timestamp.Equal(b.Timestamp) && a.Interrupted == b.Interrupted && sameList(a.Parts, b.Parts)
}

func sameEntry(a, b *reducer.MemoryEntry) bool {
	return a.N == b.N && a.Value == b.Value && a.Step == b.Step && a.Loaded == b.Loaded && sameList(a.Tags, b.Tags)
}

func sameTurn(a, b *reducer.Turn) bool {
	return a.Kind == b.Kind && a.Content == b.Content && sameList(a.Parts, b.Parts) && sameList(a.Calls, b.Calls) && sameList(a.Reasoning, b.Reasoning) &&
		a.ReasoningRef == b.ReasoningRef && a.Asked == b.Asked && a.Raw == b.Raw && a.Aside == b.Aside && a.Interrupted == b.Interrupted && a.Part == b.Part
}

func sameList[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
