package openai

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/sashabaranov/go-openai"
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
	m := llm.Meta{Model: cmp.Or(r.model, x.model), Confidence: 1, Cut: r.finish == openai.FinishReasonLength}
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
