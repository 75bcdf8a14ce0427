package anthropic

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// The kinds of blocks that are not kept as they come.
const (
	kindText     = "text"
	kindCall     = "tool_use"
	kindThinking = "thinking"
	kindCompact  = "compaction"
)

// pauses are the stop reasons of a reply that continues when it is sent back: after a while, and
// after the provider has summarized the conversation.
var pauses = map[string]bool{"pause_turn": true, "compaction": true}

// reply is what a model answered, however it came.
type reply struct {
	model string
	parts []*part
	ending
	usage tokens
}

// part is one block of a reply. Text is its text, its thinking, or a call's arguments as
// the model wrote them; name is a call's on the wire.
type part struct {
	kind, id, name string
	text           string
	signature      string
	citations      []json.RawMessage
	// raw is the block as it came, without what a stream added.
	raw json.RawMessage
}

func newPart(raw json.RawMessage) (*part, error) {
	var c content
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("a block is not valid: %w", err)
	}
	p := &part{kind: c.Type, id: c.ID, name: c.Name, signature: c.Signature, raw: raw}
	_ = json.Unmarshal(c.Citations, &p.citations) // null or absent where there are none
	switch c.Type {
	case kindText:
		p.text = c.Text
	case kindThinking:
		p.text = c.Thinking
	case kindCall:
		p.text = arguments(c.Input)
	}
	return p, nil
}

// arguments returns a call's input as text. Some servers write it as a string.
func arguments(input json.RawMessage) string {
	var written string
	if json.Unmarshal(input, &written) == nil { // also null, as nothing
		return written
	}
	return string(input)
}

// block returns the block as it is sent back: as it came, with what a stream added.
func (p *part) block() json.RawMessage {
	keys := map[string]json.RawMessage{}
	switch {
	case p.kind == kindThinking:
		return thought(p.text, p.signature)
	case p.kind == kindText:
		keys["text"], keys["type"] = encode(p.text), encode(kindText)
		if len(p.citations) > 0 {
			keys["citations"] = encode(p.citations)
		}
	case !json.Valid([]byte(p.text)) || json.Unmarshal(p.raw, &keys) != nil:
		return p.raw
	case p.kind == kindCompact: // a summary that was streamed
		keys["content"] = json.RawMessage(p.text)
	default: // an input that was streamed
		keys["input"] = json.RawMessage(p.text)
	}
	return encode(keys)
}

// Read reads a message in one piece.
func (x *exchange) Read(r *llmhttp.Reply) (llm.Response, error) {
	var m answer
	if err := r.Decode(&m); err != nil {
		return nil, err
	}
	if m.StopReason == "" && len(m.Content) == 0 {
		return nil, r.Unfit(errors.New("it has neither content nor a stop reason"))
	}
	whole := reply{model: m.Model, ending: m.ending, usage: m.used()}
	for _, raw := range m.Content {
		p, err := newPart(raw)
		if err != nil {
			return nil, r.Unfit(err)
		}
		whole.parts = append(whole.parts, p)
	}
	whole = x.joined(whole)
	if m.StopReason == "" && m.Usage != nil && m.Usage.none() { // Ollama ends a loop of equal tokens so
		e := r.Says("the reply broke: it has no stop reason and used no tokens")
		e.Kind = llm.KindBroken
		return nil, llmhttp.Unused(e, x.meta(whole, false))
	}
	return x.response(whole)
}

// joined returns a reply behind what came of it before a pause.
func (x *exchange) joined(r reply) reply {
	r.model = cmp.Or(r.model, x.sofar.model)
	r.parts = slices.Concat(x.sofar.parts, r.parts)
	r.usage = r.usage.billed()
	r.usage.plus(x.sofar.usage)
	return r
}

// text returns the reply's text.
func (r reply) text() (words string) {
	for _, p := range r.parts {
		if p.kind == kindText {
			words += p.text
		}
	}
	return words
}

// citations are the sources of the reply's text.
func (r reply) citations() (all []events.Citation) {
	at := 0 // in characters
	for _, p := range r.parts {
		if p.kind != kindText {
			continue
		}
		length := utf8.RuneCountInString(p.text)
		if len(p.citations) > 0 {
			all = llmhttp.Cite(all, encode(p.citations), at, length)
		}
		at += length
	}
	return all
}

// finishes are the endings by their stop reasons, those of other APIs included, which
// servers between a provider and its clients do not always translate.
var finishes = map[string]llm.Finish{
	"end_turn": llm.FinishStop, "stop_sequence": llm.FinishStop, "stop": llm.FinishStop,
	"tool_use": llm.FinishToolCalls, "tool_calls": llm.FinishToolCalls,
	"max_tokens": llm.FinishLength, "model_context_window_exceeded": llm.FinishLength, "length": llm.FinishLength,
	"refusal": llm.FinishRefusal, "content_filter": llm.FinishContentFilter,
}

func (r reply) finish() llm.Finish { return cmp.Or(finishes[r.StopReason], llm.FinishUnknown) }

// response makes the reply one of the port's, with the tools' own names.
func (x *exchange) response(r reply) (llm.Response, error) {
	called := slices.ContainsFunc(r.parts, func(p *part) bool { return p.kind == kindCall })
	if x.paused = pauses[r.StopReason] && !called; x.paused {
		x.sofar = r
		return llm.Text{}, nil
	}
	meta, finish := x.meta(r, false), r.finish()
	meta.Finish = finish
	if finish == llm.FinishToolCalls {
		meta.Finish = llm.FinishStop
	}
	if finish == llm.FinishRefusal {
		return llm.Text{Meta: meta, Content: cmp.Or(r.text(), r.StopDetails.Explanation, llm.RefusedText)}, nil
	}
	calls, answer := x.calls(r)
	switch {
	case len(calls) > 0:
		if !meta.Cut() {
			meta.Finish = llm.FinishToolCalls
		}
		return llm.ToolCalls{Meta: meta, Content: r.text(), Calls: calls}, nil
	case answer != nil:
		meta.Reasoning = x.reasoning(r, true)
		return llm.Structured{Meta: meta, Content: x.answer.Answer(answer.Arguments)}, nil
	}
	return llm.Text{Meta: meta, Content: r.text()}, nil
}

// calls returns the calls of the agent's tools, and the first one of the tool that takes
// the answer, or nil.
func (x *exchange) calls(r reply) (calls []llm.Call, answer *llm.Call) {
	var all []llm.Call
	for _, p := range r.parts {
		if p.kind == kindCall {
			all = append(all, llm.Call{ID: p.id, Name: p.name, Arguments: p.text})
		}
	}
	return x.names.Calls(x.req, all, x.answer)
}

// answers reports whether a call is the structured answer.
func (x *exchange) answers(call *part) bool { return x.answer.Is(call.name) }

// meta is what is known of a reply. Apart: see [exchange.reasoning].
func (x *exchange) meta(r reply, apart bool) llm.Meta {
	u := r.usage
	m := llm.Meta{
		Model: cmp.Or(r.model, x.model), Confidence: 1, FinishRaw: r.StopReason, Reasoning: x.reasoning(r, apart),
		Citations: r.citations(), Adjusted: x.adjusted, Dialect: providers.Anthropic, RequestSHA256: x.sha256,
		Usage: llm.Usage{Input: (u.Input + u.Written + u.Read).Count(), Cached: u.Read.Count(), Output: u.Output.Count()},
	}
	m.Usage.Total = m.Usage.Input + m.Usage.Output
	m.ReasoningBack = len(m.Reasoning) > 0 // a signature is good for its text only
	if u.Cost != nil {
		cost := float64(*u.Cost)
		m.Usage.CostUSD = &cost
	}
	return m
}
