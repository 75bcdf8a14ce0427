package responses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// The reply as servers send it. The types are lenient: some servers give numbers as
// texts, texts for lists, and objects for texts.

// answer is a response of the API.
type answer struct {
	Model      llmhttp.Word      `json:"model"`
	Status     llmhttp.Word      `json:"status"`
	Error      json.RawMessage   `json:"error"`
	Incomplete *incomplete       `json:"incomplete_details"`
	Output     []json.RawMessage `json:"output"`
	Usage      *usage            `json:"usage"`
}

type incomplete struct {
	Reason llmhttp.Word `json:"reason"`
}

// usage counts tokens; Input includes what was cached, and Output the reasoning.
type usage struct {
	Input        llmhttp.Number `json:"input_tokens"`
	Output       llmhttp.Number `json:"output_tokens"`
	InputDetails *struct {
		Cached llmhttp.Number `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Cost llmhttp.Cost `json:"cost"`
}

// UnmarshalJSON reads an object; what it cannot read of it is 0.
func (u *usage) UnmarshalJSON(raw []byte) error {
	type plain usage
	_ = json.Unmarshal(raw, (*plain)(u)) // it reads on after a value of another form
	return nil
}

// output is an item of a reply.
type output struct {
	Type      llmhttp.Word      `json:"type"`
	ID        llmhttp.Word      `json:"id"`
	CallID    llmhttp.Word      `json:"call_id"`
	Phase     llmhttp.Word      `json:"phase"`
	Name      llmhttp.Word      `json:"name"`
	Arguments llmhttp.Arguments `json:"arguments"`
	Content   contents          `json:"content"`
	Summary   contents          `json:"summary"`
	Encrypted json.RawMessage   `json:"encrypted_content"`
}

// contents are the parts of an item.
type contents []content

type content struct {
	Type    llmhttp.Word `json:"type"`
	Text    llmhttp.Word `json:"text"`
	Refusal llmhttp.Word `json:"refusal"`
	// Annotations are the sources of the text.
	Annotations json.RawMessage `json:"annotations"`
}

// UnmarshalJSON reads a list of parts, or a text; anything else is no part.
func (c *contents) UnmarshalJSON(raw []byte) error {
	var list []json.RawMessage
	var text string
	switch {
	case json.Unmarshal(raw, &list) == nil:
		for _, one := range list {
			var part content
			if json.Unmarshal(one, &part) == nil {
				*c = append(*c, part)
			}
		}
	case json.Unmarshal(raw, &text) == nil:
		*c = contents{{Text: llmhttp.Word(text)}}
	}
	return nil
}

// text is all of the parts' text.
func (c contents) text() string {
	var b strings.Builder
	for _, part := range c {
		b.WriteString(string(part.Text + part.Refusal))
	}
	return b.String()
}

// Read reads a response in one piece.
func (x *exchange) Read(r *llmhttp.Reply) (llm.Response, error) {
	var in answer
	err := r.Decode(&in) // which reads a response that states an error, too
	if err != nil && in.Status == "" {
		return nil, err
	}
	if in.Status == "" && len(in.Output) == 0 {
		return nil, r.Unfit(errors.New("it has neither output nor a status"))
	}
	a := x.assembly(func(llm.Chunk) {})
	if stated := a.end(in); stated != nil {
		return nil, llmhttp.Unused(r.Stated(stated), a.Meta())
	}
	// Ollama ends a loop of equal tokens so. Other servers may count nothing.
	if in.Usage != nil && a.used == (llm.Usage{}) && len(in.Output) > 0 && a.x.caps.DropsContext {
		e := r.Says("the reply broke: it used no tokens")
		e.Kind = llm.KindBroken
		return nil, llmhttp.Unused(e, a.Meta())
	}
	return a.Reply()
}

// end takes the complete response. It returns the error that it states instead of a
// reply, or nil.
func (a *assembly) end(in answer) llmhttp.Stated {
	a.about(in)
	for i, raw := range in.Output {
		a.whole(i, raw)
	}
	a.status, a.reason = string(in.Status), ""
	if in.Incomplete != nil {
		a.reason = string(in.Incomplete.Reason)
	}
	stated := bytes.TrimSpace(in.Error)
	switch {
	case len(stated) > 0 && stated[0] == '{':
	case in.Status == "failed":
		stated = []byte(`{"code":"server_error","message":"the provider failed to make the reply and does not say why"}`)
	default:
		return nil
	}
	return append(append([]byte(`{"error":`), stated...), '}')
}

// Reply returns the complete reply, with the tools' own names.
func (a *assembly) Reply() (llm.Response, error) {
	var all []llm.Call
	refused := false
	for _, p := range a.order {
		switch p.kind {
		case typeMessage:
			refused = refused || p.refused
		case typeCall:
			all = append(all, llm.Call{ID: cmp.Or(p.callID, p.id), Name: p.name, Arguments: p.text.String()})
		}
	}
	calls, answer := a.x.names.Calls(a.x.req, all, a.x.answer)
	meta, text := a.Meta(), a.said()
	if kind := a.unanswered(); kind != "" {
		return nil, llmhttp.Unused(&llm.Error{
			Kind: llm.KindInvalid, Message: fmt.Sprintf("the model's reply has an item of the type %s, which only a client can answer, and Moorebus does not: "+
				"change or remove the tool under provider_tools (an MCP server needs require_approval: never)", kind),
		}, meta)
	}
	meta.Finish, meta.FinishRaw = a.finish(len(calls) > 0), cmp.Or(a.reason, a.status)
	switch {
	case refused:
		meta.Finish = llm.FinishRefusal
		return llm.Text{Meta: meta, Content: cmp.Or(text, llm.RefusedText)}, nil
	case len(calls) > 0:
		return llm.ToolCalls{Meta: meta, Content: text, Calls: calls}, nil
	case answer != nil:
		return llm.Structured{Meta: meta, Content: a.x.answer.Answer(answer.Arguments)}, nil
	case a.x.params.Text != nil:
		return llm.Structured{Meta: meta, Content: text}, nil
	}
	return llm.Text{Meta: meta, Content: text}, nil
}

// finish says how the reply ended.
func (a *assembly) finish(calls bool) llm.Finish {
	// Ollama, which also drops what is too long, says completed of a reply that was cut.
	bound := a.x.params.MaxOutputTokens
	full := bound > 0 && a.used.Output == bound && a.x.caps.DropsContext
	switch {
	case a.status == "incomplete" && a.reason == "content_filter":
		return llm.FinishContentFilter
	case a.status == "incomplete" && strings.HasPrefix(a.reason, "max_"), full:
		return llm.FinishLength
	case a.status == "incomplete" || a.status == "cancelled":
		return llm.FinishError
	case calls:
		return llm.FinishToolCalls
	case a.status == "completed" || a.status == "":
		return llm.FinishStop
	}
	return llm.FinishUnknown
}

// Meta returns what is known of the reply so far.
func (a *assembly) Meta() llm.Meta {
	m := llm.Meta{Model: cmp.Or(a.model, a.x.params.Model), Confidence: 1, Usage: a.used, Adjusted: a.x.adjusted}
	said, calls, text, kept := 0, 0, a.said(), a.keepsMessages()
	for _, p := range a.order {
		id := thoughtID(cmp.Or(p.id, "item"), said+calls)
		switch {
		case p.kind == typeMessage:
			if kept {
				m.Reasoning = append(m.Reasoning, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: p.messageItem(text), ID: id})
			}
			if p.text.Len() > 0 {
				said = 1
			}
		case p.kind == typeCall:
			if !p.answer {
				calls++
			}
		case p.kind == typeReasoning:
			m.Reasoning = append(m.Reasoning, p.reasoning(thoughtID(p.id, said+calls))...)
			m.ReasoningBack = m.ReasoningBack || p.encrypted == nil && len(p.thoughts) > 0
		case p.raw != nil:
			m.Reasoning = append(m.Reasoning, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: p.raw, ID: id})
		}
	}
	m.Citations = a.citations(text)
	return m
}

// said is the reply's text.
func (a *assembly) said() string {
	var all []passage
	calls := false
	for _, p := range a.order {
		switch p.kind {
		case typeMessage:
			all = append(all, passage{p.phase, p.text.String()})
		case typeCall:
			calls = calls || !p.answer
		}
	}
	return wording(all, calls)
}

// citations are those of the messages that the text holds.
func (a *assembly) citations(text string) (all []events.Citation) {
	from := 0 // bytes of the text
	for _, p := range a.order {
		if p.kind != typeMessage || p.text.Len() == 0 {
			continue
		}
		at := strings.Index(text[from:], p.text.String())
		if at < 0 {
			continue
		}
		from += at
		for _, c := range p.content {
			all = llmhttp.Cite(all, c.Annotations, utf8.RuneCountInString(text[:from]), utf8.RuneCountInString(string(c.Text)))
			from = min(from+len(c.Text), len(text))
		}
	}
	return all
}

// cites reports whether a message names sources.
func (p *piece) cites() bool {
	return slices.ContainsFunc(p.content, func(c content) bool { return len(llmhttp.Cite(nil, c.Annotations, 0, 0)) > 0 })
}

// reasoning returns the parts of a reasoning item.
func (p *piece) reasoning(id string) (parts events.Reasoning) {
	add := func(kind string, all texts) {
		for _, text := range all {
			if text.Len() > 0 {
				parts = append(parts, events.ReasoningPart{Kind: kind, Text: text.String(), ID: id})
			}
		}
	}
	add(events.ReasoningSummary, p.summary)
	add(events.ReasoningText, p.thoughts)
	if p.encrypted != nil {
		parts = append(parts, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: p.encrypted, ID: id})
	}
	return parts
}
