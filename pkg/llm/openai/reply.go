package openai

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/sashabaranov/go-openai"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// reply is what a model answered, however it came.
type reply struct {
	model   string
	text    string
	refused bool
	calls   []llm.Call
	finish  openai.FinishReason
	usage   openai.Usage
}

func fromCompletion(res openai.ChatCompletionResponse) (reply, error) {
	if len(res.Choices) == 0 {
		return reply{}, &llm.Error{
			Kind:    llm.KindOther,
			Message: "the server's reply holds no choices; is the base URL that of a chat completions server?",
		}
	}
	choice := res.Choices[0]
	m := choice.Message
	r := reply{
		model: res.Model, text: text(m) + m.Refusal, refused: m.Refusal != "", finish: choice.FinishReason, usage: res.Usage,
	}
	for _, c := range m.ToolCalls {
		r.calls = append(r.calls, llm.Call{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return r, nil
}

// text is the message's content; some servers give it in parts.
func text(m openai.ChatCompletionMessage) string {
	var b strings.Builder
	b.WriteString(m.Content)
	for _, part := range m.MultiContent {
		b.WriteString(part.Text)
	}
	return b.String()
}

// response makes the reply one of the port's, with the tools' own names.
func (x *exchange) response(r reply) (llm.Response, error) {
	meta := x.meta(r)
	switch {
	case r.finish == openai.FinishReasonContentFilter:
		return nil, filtered(meta.Usage)
	case r.refused:
		return llm.Text{Meta: meta, Content: r.text}, nil
	case len(r.calls) == 0 && x.wantsSchema():
		return llm.Structured{Meta: meta, Content: r.text}, nil
	case len(r.calls) == 0:
		return llm.Text{Meta: meta, Content: r.text}, nil
	}
	for i := range r.calls {
		call := &r.calls[i]
		call.Name = x.names.Tool(call.Name)
		call.ID = cmp.Or(call.ID, fmt.Sprintf("call_%d_%d", x.req.Replies+1, i+1))
		if strings.TrimSpace(call.Arguments) == "" {
			call.Arguments = "{}"
		}
	}
	return llm.ToolCalls{Meta: meta, Content: r.text, Calls: r.calls}, nil
}

func (x *exchange) meta(r reply) llm.Meta {
	m := llm.Meta{Model: cmp.Or(r.model, x.model), Confidence: 1, FinishRaw: string(r.finish)}
	if r.finish == openai.FinishReasonLength {
		m.Finish = llm.FinishLength
	}
	m.Usage = llm.Usage{
		Input:  max(r.usage.PromptTokens, 0),
		Output: max(r.usage.CompletionTokens, 0),
	}
	m.Usage.Total = m.Usage.Input + m.Usage.Output
	if d := r.usage.PromptTokensDetails; d != nil {
		m.Usage.Cached = max(d.CachedTokens, 0)
	}
	return m
}

// filtered is a reply that the provider's content filter stopped: it is billed
// all the same.
func filtered(used llm.Usage) *llm.Error {
	stopped := llmhttp.Invalid("the provider's content filter stopped the reply (finish_reason content_filter)")
	if used.Total > 0 {
		stopped.Usage = &used
	}
	return stopped
}

// Assemble begins a streamed reply.
func (x *exchange) Assemble(emit func(llm.Chunk)) llmhttp.Assembly {
	return &assembly{emit: emit, x: x, byIndex: map[int]*partial{}, byID: map[string]*partial{}}
}

// assembly puts a streamed reply together.
type assembly struct {
	emit    func(llm.Chunk)
	x       *exchange
	model   string
	text    strings.Builder
	refused bool
	finish  openai.FinishReason
	usage   openai.Usage
	calls   []*partial
	byIndex map[int]*partial
	byID    map[string]*partial
	next    int
}

// partial is a call of which not everything may have come yet.
type partial struct {
	index    int
	id, name string
	args     strings.Builder
}

// Add takes one event. The reply is complete at its finish_reason; the usage may
// come after it.
func (a *assembly) Add(e llmhttp.Event) (llmhttp.Progress, error) {
	if string(e.Data) == "[DONE]" {
		if a.finish == "" {
			return llmhttp.Begun, errors.New("it ended without a finish_reason")
		}
		return llmhttp.Ended, nil
	}
	if llmhttp.StatesError(e.Data) {
		return llmhttp.Begun, llmhttp.Stated(e.Data)
	}
	var c openai.ChatCompletionStreamResponse
	if err := json.Unmarshal(e.Data, &c); err != nil {
		return llmhttp.Begun, fmt.Errorf("a chunk is not valid: %w", err)
	}
	if c.Model != "" {
		a.model = c.Model
	}
	if c.Usage != nil {
		a.usage = *c.Usage
	}
	for _, choice := range c.Choices {
		if choice.Index == 0 {
			a.delta(choice.Delta)
			a.finished(choice.FinishReason)
		}
	}
	if a.finish != "" {
		return llmhttp.Complete, nil
	}
	return llmhttp.Begun, nil
}

func (a *assembly) finished(reason openai.FinishReason) {
	if reason != "" && reason != openai.FinishReasonNull {
		a.finish = reason
	}
}

func (a *assembly) delta(d openai.ChatCompletionStreamChoiceDelta) {
	if d.Refusal != "" {
		a.refused = true
	}
	if text := d.Content + d.Refusal; text != "" {
		a.text.WriteString(text)
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
	for _, tc := range d.ToolCalls {
		p := a.find(tc)
		name := ""
		if p.name == "" && tc.Function.Name != "" {
			p.name, name = tc.Function.Name, a.x.names.Tool(tc.Function.Name)
		}
		p.args.WriteString(tc.Function.Arguments)
		if name != "" || tc.Function.Arguments != "" {
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: p.index, Name: name, Text: tc.Function.Arguments})
		}
	}
}

// find gives the call that a fragment belongs to: the one with its index, and
// where the server gives no index the one with its id, else the last one. A
// fragment that names a function under a new id begins a call even if its index
// is taken: some servers give every call index 0.
func (a *assembly) find(tc openai.ToolCall) *partial {
	var p *partial
	switch {
	case tc.Index != nil:
		p = a.byIndex[*tc.Index]
	case tc.ID != "":
		p = a.byID[tc.ID]
	case tc.Function.Name == "" && len(a.calls) > 0:
		p = a.calls[len(a.calls)-1]
	}
	another := p != nil && tc.ID != "" && p.id != "" && tc.ID != p.id && tc.Function.Name != ""
	if p == nil || another {
		p = a.begin(tc.Index)
	}
	if p.id == "" && tc.ID != "" {
		p.id = tc.ID
		a.byID[tc.ID] = p
	}
	return p
}

func (a *assembly) begin(index *int) *partial {
	p := &partial{index: a.next}
	if index != nil {
		if a.byIndex[*index] == nil {
			p.index = *index
		}
		a.byIndex[*index] = p
	}
	a.next = max(a.next, p.index+1)
	a.calls = append(a.calls, p)
	return p
}

// Reply returns the complete reply.
func (a *assembly) Reply() (llm.Response, error) { return a.x.response(a.reply()) }

// Meta returns what is known of the reply so far.
func (a *assembly) Meta() llm.Meta { return a.x.meta(a.reply()) }

func (a *assembly) reply() reply {
	sort.SliceStable(a.calls, func(i, j int) bool { return a.calls[i].index < a.calls[j].index })
	r := reply{model: a.model, text: a.text.String(), refused: a.refused, finish: a.finish, usage: a.usage}
	for _, p := range a.calls {
		r.calls = append(r.calls, llm.Call{ID: p.id, Name: p.name, Arguments: p.args.String()})
	}
	return r
}
