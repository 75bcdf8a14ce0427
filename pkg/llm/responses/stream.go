package responses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// event is one of a stream.
type event struct {
	Type     llmhttp.Word    `json:"type"`
	Index    llmhttp.Number  `json:"output_index"`
	ItemID   llmhttp.Word    `json:"item_id"`
	Item     json.RawMessage `json:"item"`
	Delta    llmhttp.Word    `json:"delta"`
	Summary  llmhttp.Number  `json:"summary_index"`
	Content  llmhttp.Number  `json:"content_index"`
	Response answer          `json:"response"`
}

// assembly puts a reply together, from a stream or from its items.
type assembly struct {
	emit   func(llm.Chunk)
	x      *exchange
	model  string
	used   llm.Usage
	status string
	reason string
	// order are the items as they began. byID has them by the ids of items and calls, and
	// byIndex the last one of each output_index.
	order   []*piece
	byID    map[string]*piece
	byIndex map[int]*piece
	calls   int
}

// piece is an item of which not everything may have come yet. Text is a message's text,
// or a call's arguments.
type piece struct {
	kind, id          string
	callID, name      string
	phase             string
	answer, refused   bool
	text              strings.Builder
	summary, thoughts texts
	encrypted         json.RawMessage
	// raw is an entire item as it came, and content that of a message.
	raw     json.RawMessage
	content contents
	// index is the call's among the calls that were shown, and shown says that there is one.
	index int
	shown bool
}

// texts are the parts of a text of which more may come.
type texts []*strings.Builder

// add adds a fragment to the part with the index.
func (t *texts) add(index int, fragment string) {
	index = max(min(index, len(*t)), 0) // they come in order
	if index == len(*t) {
		*t = append(*t, &strings.Builder{})
	}
	(*t)[index].WriteString(fragment)
}

// Assemble begins a streamed reply.
func (x *exchange) Assemble(emit func(llm.Chunk)) llmhttp.Assembly { return x.assembly(emit) }

func (x *exchange) assembly(emit func(llm.Chunk)) *assembly {
	return &assembly{emit: emit, x: x, byID: map[string]*piece{}, byIndex: map[int]*piece{}}
}

// Add takes one event. The reply is complete with the event that holds the response's
// final status.
func (a *assembly) Add(in llmhttp.Event) (llmhttp.Progress, error) {
	if string(in.Data) == "[DONE]" {
		return llmhttp.Begun, errors.New("it ended without response.completed")
	}
	var e event
	if err := json.Unmarshal(in.Data, &e); err != nil {
		return llmhttp.Begun, fmt.Errorf("an event is not valid: %w", err)
	}
	at := int(e.Index)
	switch kind := cmp.Or(string(e.Type), in.Name); kind {
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done":
		e.Response.Status = cmp.Or(e.Response.Status, llmhttp.Word(strings.TrimPrefix(kind, "response.")))
		if stated := a.end(e.Response); stated != nil {
			return llmhttp.Begun, stated
		}
		return llmhttp.Ended, nil
	case "response.created", "response.in_progress":
		a.about(e.Response)
	case "response.output_item.added":
		a.begin(at, e.Item)
	case "response.output_item.done":
		a.whole(at, e.Item)
	case "response.output_text.delta", "response.refusal.delta":
		p := a.find(typeMessage, string(e.ItemID), at)
		p.refused = p.refused || kind == "response.refusal.delta"
		a.say(p, string(e.Delta))
	case "response.function_call_arguments.delta":
		a.say(a.find(typeCall, string(e.ItemID), at), string(e.Delta))
	case "response.reasoning_summary_text.delta":
		a.think(&a.find(typeReasoning, string(e.ItemID), at).summary, int(e.Summary), string(e.Delta))
	case "response.reasoning_text.delta", "response.reasoning.delta":
		a.think(&a.find(typeReasoning, string(e.ItemID), at).thoughts, int(e.Content), string(e.Delta))
	default:
		if kind == "error" || llmhttp.StatesError(in.Data) {
			return llmhttp.Begun, llmhttp.Stated(in.Data)
		}
	}
	return llmhttp.Begun, nil
}

// about reads the metadata of a response.
func (a *assembly) about(in answer) {
	a.model = cmp.Or(string(in.Model), a.model)
	if u := in.Usage; u != nil {
		a.used = llm.Usage{Input: u.Input.Count(), Output: u.Output.Count(), CostUSD: u.Cost.USD}
		a.used.Total = a.used.Input + a.used.Output
		if u.InputDetails != nil {
			a.used.Cached = u.InputDetails.Cached.Count()
		}
	}
}

// find returns the item with the id. Some servers change the ids from event to event, so
// an unknown one is the last item of the kind with the index, and else begins an item.
func (a *assembly) find(kind, id string, index int) *piece {
	p := a.byID[id]
	if p == nil || p.kind != kind {
		p = a.byIndex[index]
	}
	if p == nil || p.kind != kind {
		p = &piece{kind: kind}
		a.order = append(a.order, p)
	}
	a.known(p, id, index)
	return p
}

func (a *assembly) known(p *piece, id string, index int) {
	a.byIndex[index] = p
	if id != "" {
		p.id, a.byID[id] = cmp.Or(p.id, id), p
	}
}

// read reads an item. What cannot be read is none.
func read(raw json.RawMessage) (in output, ok bool) {
	return in, json.Unmarshal(raw, &in) == nil && in.Type != ""
}

// begin takes the beginning of an item, of which only the names count.
func (a *assembly) begin(index int, raw json.RawMessage) {
	in, ok := read(raw)
	if !ok {
		return
	}
	if in.ID != "" && a.byID[string(in.ID)] == nil {
		delete(a.byIndex, index) // servers that give every item index 0
	}
	p := a.find(string(in.Type), string(in.ID), index)
	p.phase = cmp.Or(string(in.Phase), p.phase)
	a.name(p, &in)
}

// name takes the names of a call, and shows that it is made.
func (a *assembly) name(p *piece, in *output) {
	if p.kind != typeCall {
		return
	}
	if in.CallID != "" {
		p.callID, a.byID[string(in.CallID)] = string(in.CallID), p
	}
	if p.name == "" && in.Name != "" {
		p.name = string(in.Name)
		p.answer = a.x.answer.Is(p.name)
		a.show(p, llm.Chunk{Kind: llm.ChunkToolCall, Name: a.x.names.Tool(p.name)})
	}
}

// show shows a part of a call. A structured answer is shown as the text that it becomes.
func (a *assembly) show(p *piece, c llm.Chunk) {
	if p.answer {
		if c.Text != "" {
			a.emit(llm.Chunk{Kind: llm.ChunkText, Text: c.Text})
		}
		return
	}
	if !p.shown {
		p.index, p.shown = a.calls, true
		a.calls++
	}
	c.Index = p.index
	a.emit(c)
}

// say adds a fragment to a message or to a call's arguments.
func (a *assembly) say(p *piece, fragment string) {
	switch {
	case fragment == "":
		return
	case p.kind == typeCall:
		a.show(p, llm.Chunk{Kind: llm.ChunkToolCall, Text: fragment})
	default:
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: fragment})
	}
	p.text.WriteString(fragment)
}

// think adds a fragment to a part of an item's reasoning.
func (a *assembly) think(t *texts, index int, fragment string) {
	if fragment != "" {
		t.add(index, fragment)
		a.emit(llm.Chunk{Kind: llm.ChunkReasoning, Text: fragment})
	}
}

// whole adds a complete item. It takes precedence over the fragments, but some servers
// omit what came in fragments.
func (a *assembly) whole(index int, raw json.RawMessage) {
	in, ok := read(raw)
	if !ok {
		return
	}
	id := string(in.ID)
	if known := a.byID[string(in.CallID)]; in.CallID != "" && known != nil {
		id = known.id
	}
	p := a.find(string(in.Type), id, index)
	p.raw, p.phase = raw, cmp.Or(string(in.Phase), p.phase)
	a.name(p, &in)
	switch p.kind {
	case typeMessage:
		p.content = in.Content
		a.complete(p, in.Content.text())
		for _, part := range in.Content {
			p.refused = p.refused || part.Refusal != ""
		}
	case typeCall:
		a.complete(p, cmp.Or(in.Arguments.Text, in.Arguments.Whole))
	case typeReasoning:
		a.replace(&p.summary, in.Summary)
		a.replace(&p.thoughts, in.Content)
		if bytes.HasPrefix(in.Encrypted, []byte(`"`)) && len(in.Encrypted) > len(`""`) {
			p.encrypted = in.Encrypted
		}
	}
}

// complete replaces the text of an item, and shows what is new in it.
func (a *assembly) complete(p *piece, text string) {
	if text == "" {
		return
	}
	if more, ok := strings.CutPrefix(text, p.text.String()); ok {
		a.say(p, more)
		return
	}
	p.text.Reset()
	p.text.WriteString(text)
}

// replace replaces the parts of an item's reasoning, and shows them if none came.
func (a *assembly) replace(t *texts, parts contents) {
	if len(parts) == 0 {
		return
	}
	shown := len(*t) > 0
	*t = nil
	for i, part := range parts {
		t.add(i, string(part.Text))
		if !shown && part.Text != "" {
			a.emit(llm.Chunk{Kind: llm.ChunkReasoning, Text: string(part.Text)})
		}
	}
}
