package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// assembly puts a streamed reply together.
type assembly struct {
	emit   func(llm.Chunk)
	x      *exchange
	reply  reply
	blocks map[int]*streamed
	order  []*streamed
	calls  int
	said   bool
}

// streamed is a block that is being streamed. Its text grows in added.
type streamed struct {
	part
	added []byte
	// summary is what a stream added to a compaction.
	summary string
	call    int
}

// Assemble begins a streamed reply.
func (x *exchange) Assemble(emit func(llm.Chunk)) llmhttp.Assembly {
	return &assembly{emit: emit, x: x, blocks: map[int]*streamed{}, said: x.sofar.text() != ""}
}

// Add takes one event. Its kind stands in its data, and with most servers also before it.
func (a *assembly) Add(in llmhttp.Event) (llmhttp.Progress, error) {
	var e event
	err := json.Unmarshal(in.Data, &e)
	kind := cmp.Or(e.Type, in.Name)
	switch {
	case kind == "error", kind == "" && llmhttp.StatesError(in.Data):
		return llmhttp.Begun, llmhttp.Stated(in.Data)
	case !slices.Contains(kinds, kind): // pings, and whatever comes to the API
		return llmhttp.Begun, nil
	case err != nil:
		return llmhttp.Begun, fmt.Errorf("an event is not valid: %w", err)
	}
	return a.take(kind, &e)
}

var kinds = []string{"message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"}

func (a *assembly) take(kind string, e *event) (llmhttp.Progress, error) {
	switch kind {
	case "message_start":
		a.reply.model, a.reply.usage = e.Message.Model, e.Message.used()
		for i, raw := range e.Message.Content { // from servers that do not stream
			if err := a.begin(i, raw); err != nil {
				return llmhttp.Begun, err
			}
		}
	case "content_block_start":
		return llmhttp.Begun, a.begin(int(e.Index), e.Block)
	case "content_block_delta":
		a.delta(int(e.Index), &e.Delta.content)
	case "message_delta":
		a.reply.usage.latest(e.Usage)
		if e.Delta.StopReason != "" {
			a.reply.ending = e.Delta.ending
			return llmhttp.Complete, nil
		}
	case "message_stop":
		if a.reply.StopReason != "" || len(a.order) > 0 {
			return llmhttp.Ended, nil
		}
	}
	return llmhttp.Begun, nil
}

func (a *assembly) begin(index int, raw json.RawMessage) error {
	p, err := newPart(raw)
	if err != nil {
		return err
	}
	b := &streamed{part: *p}
	a.blocks[index] = b
	a.order = append(a.order, b)
	switch b.kind {
	case kindText:
		a.say(llm.ChunkText, b.text)
	case kindThinking:
		a.say(llm.ChunkReasoning, b.text)
	case kindCall:
		if !a.x.answers(p) {
			b.call = a.calls
			a.calls++
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: b.call, Name: a.x.names.Tool(b.name)})
		}
	}
	return nil
}

// delta adds to a block. Servers that leave out a text's beginning get one.
func (a *assembly) delta(index int, d *content) {
	b := a.blocks[index]
	switch {
	case b != nil:
	case d.Text != "":
		_ = a.begin(index, json.RawMessage(`{"type":"text"}`)) // which is valid
	case d.Thinking != "":
		_ = a.begin(index, json.RawMessage(`{"type":"thinking"}`))
	}
	if b = a.blocks[index]; b == nil {
		return
	}
	switch b.kind {
	case kindText:
		b.added = append(b.added, d.Text...)
		a.say(llm.ChunkText, d.Text)
		if len(d.Citation) > 0 {
			b.citations = append(b.citations, d.Citation)
		}
	case kindThinking:
		b.added = append(b.added, d.Thinking...)
		b.signature += d.Signature
		a.say(llm.ChunkReasoning, d.Thinking)
	case kindCall:
		a.argue(b, d.PartialJSON)
	case kindCompact:
		var summary string
		_ = json.Unmarshal(d.Summary, &summary) // null has none
		b.summary += summary
	default:
		b.added = append(b.added, d.PartialJSON...)
	}
}

// argue adds to a call's arguments. A structured answer is shown as the text that it
// becomes.
func (a *assembly) argue(b *streamed, text string) {
	b.added = append(b.added, text...)
	switch {
	case text == "":
	case !a.x.answers(&b.part):
		a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: b.call, Text: text})
	case !a.said:
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
}

func (a *assembly) say(kind llm.ChunkKind, text string) {
	if text == "" {
		return
	}
	a.said = a.said || kind == llm.ChunkText
	a.emit(llm.Chunk{Kind: kind, Text: text})
}

// Reply returns the complete reply, and streams the part of it that was not streamed.
func (a *assembly) Reply() (llm.Response, error) {
	for _, b := range a.order {
		if b.kind == kindCall && len(b.added) == 0 && b.text != "{}" {
			a.argue(b, b.text)
		}
	}
	res, err := a.x.response(a.whole())
	if refusal, ok := res.(llm.Text); ok && !a.said {
		a.say(llm.ChunkText, refusal.Content)
	}
	return res, err
}

// Meta returns what is known of the reply so far.
func (a *assembly) Meta() llm.Meta {
	m := a.x.meta(a.whole(), false)
	m.Finish = llm.FinishUnknown
	return m
}

// whole returns the reply so far.
func (a *assembly) whole() reply {
	r := a.reply
	for _, b := range a.order {
		p := b.part
		switch p.kind {
		case kindText, kindThinking:
			p.text += string(b.added)
		case kindCompact:
			if b.summary != "" {
				p.text = string(encode(b.summary))
			}
		default: // the arguments that a call begins with are complete, and those that follow, too
			p.text = cmp.Or(string(b.added), p.text)
		}
		r.parts = append(r.parts, &p)
	}
	return a.x.joined(r)
}
