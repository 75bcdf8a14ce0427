package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// reply is what a model answered, however it came.
type reply struct {
	model    string
	text     string
	calls    []llm.Call // named as on the wire
	thinking []json.RawMessage
	stop     string
	// explanation is why the provider refuses, where it says so.
	explanation string
	usage       tokens
}

func fromMessage(m answer) (reply, error) {
	r := reply{model: m.Model, stop: m.StopReason, explanation: m.StopDetails.Explanation, usage: m.Usage}
	for _, raw := range m.Content {
		var b content
		if err := json.Unmarshal(raw, &b); err != nil {
			return r, err
		}
		switch b.Type {
		case "text":
			r.text += b.Text
		case "tool_use":
			r.calls = append(r.calls, llm.Call{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case "thinking", "redacted_thinking":
			r.thinking = append(r.thinking, raw)
		}
	}
	return r, nil
}

// response makes the reply one of the port's, with the tools' own names.
func (x *exchange) response(r reply) (llm.Response, error) {
	meta := r.meta(x)
	switch r.stop {
	case "refusal":
		return llm.Text{Meta: meta, Content: cmp.Or(r.text, r.explanation, llm.RefusedText)}, nil
	case "pause_turn":
		return nil, &llm.Error{Kind: llm.KindOther, Message: "the provider paused in the middle of the reply (stop_reason pause_turn)"}
	case "max_tokens", "model_context_window_exceeded":
		meta.Finish = llm.FinishLength
	}
	calls := make([]llm.Call, 0, len(r.calls))
	var answer *llm.Call
	for i, call := range r.calls {
		if strings.TrimSpace(call.Arguments) == "" {
			call.Arguments = "{}"
		}
		if x.answer != nil && call.Name == x.answer.Name {
			answer = cmp.Or(answer, &call)
			continue
		}
		call.ID = cmp.Or(call.ID, fmt.Sprintf("call_%d_%d", x.req.Replies+1, i+1))
		call.Name = x.names.Tool(call.Name)
		calls = append(calls, call)
	}
	switch {
	case len(calls) > 0:
		meta.Reasoning = writeReasoning(x.model, r.thinking)
		return llm.ToolCalls{Meta: meta, Content: r.text, Calls: calls}, nil
	case answer != nil:
		return llm.Structured{Meta: meta, Content: x.answer.Answer(answer.Arguments)}, nil
	}
	return llm.Text{Meta: meta, Content: r.text}, nil
}

func (r reply) meta(x *exchange) llm.Meta {
	count := func(n *int) int {
		if n == nil {
			return 0
		}
		return max(*n, 0)
	}
	u, m := r.usage, llm.Meta{Model: cmp.Or(r.model, x.model), Confidence: 1}
	m.Usage = llm.Usage{Input: count(u.Input) + count(u.Written) + count(u.Read), Cached: count(u.Read), Output: count(u.Output)}
	m.Usage.Total = m.Usage.Input + m.Usage.Output
	return m
}

// thought is a thinking block as it is sent back.
func thought(text, signature string) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct { // strings always encode
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}{"thinking", text, signature})
	return bytes.TrimSpace(out.Bytes())
}

// choose forces the answer where nothing else can be called. The API does not
// let a model be forced that thinks.
func (x *exchange) choose(thinking bool) {
	if x.answer == nil || len(x.req.Tools) > 0 || thinking {
		return
	}
	x.params.ToolChoice = &toolChoice{Type: "tool", Name: x.answer.Name, DisableParallelToolUse: true}
}

// Assemble begins a streamed reply.
func (x *exchange) Assemble(emit func(llm.Chunk)) llmhttp.Assembly {
	return &assembly{emit: emit, x: x, blocks: map[int]*part{}}
}

// assembly puts a streamed reply together.
type assembly struct {
	emit   func(llm.Chunk)
	x      *exchange
	model  string
	order  []*part
	blocks map[int]*part
	calls  int
	said   bool
	end    ending
	usage  tokens
}

// part is one block of the reply. Text is its text, thinking or arguments; whole
// what its beginning held of it.
type part struct {
	kind, id, name string
	call           int
	answer         bool
	text           strings.Builder
	whole          string
	signature      string
	raw            json.RawMessage
}

// Add takes one event.
func (a *assembly) Add(in llmhttp.Event) (llmhttp.Progress, error) {
	switch in.Name {
	case "error":
		return llmhttp.Begun, llmhttp.Stated(in.Data)
	case "message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop":
	default: // pings, and whatever comes to the API
		return llmhttp.Begun, nil
	}
	var e event
	if err := json.Unmarshal(in.Data, &e); err != nil {
		return llmhttp.Begun, fmt.Errorf("an event is not valid: %w", err)
	}
	switch in.Name {
	case "message_start":
		a.model, a.usage = e.Message.Model, e.Message.Usage
	case "content_block_start":
		return llmhttp.Begun, a.begin(e)
	case "content_block_delta":
		if b := a.blocks[e.Index]; b != nil {
			a.delta(b, &e.Delta.content)
		}
	case "message_delta":
		a.end = e.Delta.ending
		a.usage.add(e.Usage)
	case "message_stop":
		return llmhttp.Ended, nil
	}
	return llmhttp.Begun, nil
}

// add takes the usage so far. What it leaves out is as the stream's beginning said.
func (t *tokens) add(now tokens) {
	t.Input, t.Written, t.Read = cmp.Or(now.Input, t.Input), cmp.Or(now.Written, t.Written), cmp.Or(now.Read, t.Read)
	if t.Output == nil || now.Output != nil && *now.Output > *t.Output {
		t.Output = now.Output
	}
}

func (a *assembly) begin(e event) error {
	var start content
	if err := json.Unmarshal(e.Block, &start); err != nil {
		return fmt.Errorf("a block is not valid: %w", err)
	}
	b := &part{kind: start.Type, id: start.ID, name: start.Name, signature: start.Signature}
	a.blocks[e.Index] = b
	a.order = append(a.order, b)
	switch b.kind {
	case "text":
		a.say(b, start.Text)
	case "thinking":
		b.text.WriteString(start.Thinking)
	case "redacted_thinking":
		b.raw = e.Block
	case "tool_use":
		b.whole = string(start.Input)
		b.answer = a.x.answer != nil && b.name == a.x.answer.Name
		if !b.answer {
			b.call = a.calls
			a.calls++
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: b.call, Name: a.x.names.Tool(b.name)})
		}
	}
	return nil
}

func (a *assembly) delta(b *part, d *content) {
	switch d.Type {
	case "text_delta":
		a.say(b, d.Text)
	case "thinking_delta":
		b.text.WriteString(d.Thinking)
	case "signature_delta":
		b.signature += d.Signature
	case "input_json_delta":
		b.text.WriteString(d.PartialJSON)
		switch {
		case d.PartialJSON == "":
		case !b.answer:
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: b.call, Text: d.PartialJSON})
		case !a.said: // a structured answer is shown as the text that it becomes
			a.emit(llm.Chunk{Kind: llm.ChunkText, Text: d.PartialJSON})
		}
	}
}

func (a *assembly) say(b *part, text string) {
	b.text.WriteString(text)
	if text != "" {
		a.said = true
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
}

// Reply returns the complete reply.
func (a *assembly) Reply() (llm.Response, error) { return a.x.response(a.reply()) }

// Meta returns what is known of the reply so far.
func (a *assembly) Meta() llm.Meta { return a.reply().meta(a.x) }

func (a *assembly) reply() reply {
	r := reply{model: a.model, stop: a.end.StopReason, explanation: a.end.StopDetails.Explanation, usage: a.usage}
	var words strings.Builder
	for _, b := range a.order {
		switch b.kind {
		case "text":
			words.WriteString(b.text.String())
		case "thinking":
			r.thinking = append(r.thinking, thought(b.text.String(), b.signature))
		case "redacted_thinking":
			r.thinking = append(r.thinking, b.raw)
		case "tool_use":
			arguments := b.text.String()
			if arguments == "" {
				arguments = b.whole
			}
			r.calls = append(r.calls, llm.Call{ID: b.id, Name: b.name, Arguments: arguments})
		}
	}
	r.text = words.String()
	return r
}
