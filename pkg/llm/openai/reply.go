package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/sashabaranov/go-openai"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Read reads a completion in one piece, or its chunks in one list.
func (x *exchange) Read(r *llmhttp.Reply) (llm.Response, error) {
	a := x.assembly(func(llm.Chunk) {})
	a.begun = true // whatever the index of the choice is
	in := json.NewDecoder(bytes.NewReader(r.Body))
	for {
		var raw json.RawMessage
		err := in.Decode(&raw)
		if err != nil && a.values > 0 { // what follows a completion cannot break it
			break
		}
		var list []json.RawMessage
		if err == nil && json.Unmarshal(raw, &list) != nil {
			list = []json.RawMessage{raw}
		}
		for _, one := range list {
			if err == nil {
				_, err = a.Add(llmhttp.Event{Data: one})
			}
		}
		var stated llmhttp.Stated
		switch {
		case errors.As(err, &stated):
			return nil, llmhttp.Unused(r.Stated(stated), a.Meta())
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
			fallthrough
		case err != nil:
			return nil, llmhttp.Unused(r.Unfit(err), a.Meta())
		}
	}
	if !a.chosen {
		return nil, llmhttp.Unused(r.Says("the server's reply holds no choices; is the base URL that of a chat completions server?"), a.Meta())
	}
	if a.finish == "" && !a.done && !a.counted && (a.parted || a.zero && a.usage.Total == 0) {
		e := r.Says("the reply broke: it has no finish_reason and used no tokens")
		e.Kind = llm.KindBroken
		return nil, llmhttp.Unused(e, a.Meta())
	}
	return a.Reply()
}

// Assemble begins a streamed reply.
func (x *exchange) Assemble(emit func(llm.Chunk)) llmhttp.Assembly { return x.assembly(emit) }

func (x *exchange) assembly(emit func(llm.Chunk)) *assembly {
	return &assembly{x: x, emit: emit, tags: thinkTags{off: !x.caps.ThinkTags}, calls: callList{names: x.names}}
}

// assembly puts a reply together, streamed or not.
type assembly struct {
	x    *exchange
	emit func(llm.Chunk)
	// values counts what was read. chosen says that there was a choice, begun that it was
	// the first one of the stream, and parted that it came as a delta.
	values                int
	chosen, begun, parted bool
	// done says that the reply ended, whether or not finish says how. counted says that a
	// usage alone came last.
	done, counted bool
	finish        string

	model     string
	text      strings.Builder
	refused   bool
	reasoning reasoning
	tags      thinkTags
	calls     callList
	signed    []json.RawMessage
	usage     llm.Usage
	citations []json.RawMessage
	// zero says that a usage without any tokens came.
	zero bool
}

// Add takes one event. The reply is complete at its finish_reason. Some servers send none
// and end with a usage alone; others send such a usage in the middle of a reply.
func (a *assembly) Add(e llmhttp.Event) (llmhttp.Progress, error) {
	if string(e.Data) == "[DONE]" {
		if !a.chosen {
			return llmhttp.Begun, errors.New("it ended before the reply began")
		}
		a.done = true
		return llmhttp.Ended, nil
	}
	var c completion
	err := json.Unmarshal(e.Data, &c)
	a.about(&c) // it is read on after a value of a wrong form
	if err == nil {
		err = a.take(&c)
	}
	switch {
	case llmhttp.StatesError(e.Data):
		return llmhttp.Begun, llmhttp.Stated(e.Data)
	case err != nil:
		return llmhttp.Begun, err
	case a.done || a.finish != "":
		return llmhttp.Complete, nil
	case a.counted:
		return llmhttp.MayEnd, nil
	}
	return llmhttp.Begun, nil
}

func (a *assembly) about(c *completion) {
	a.model = cmp.Or(string(c.Model), a.model)
	for _, u := range []*tokens{c.XGroq.Usage, c.Usage} {
		a.used(u)
	}
}

func (a *assembly) take(c *completion) error {
	a.values++
	a.counted = len(c.Choices) == 0 && c.Usage != nil && c.Usage.CompletionTokens > 0 && a.chosen
	for i := range c.Choices {
		// One choice is asked for. Its index counts up from chunk to chunk at z.ai.
		if choice := &c.Choices[i]; a.begun || choice.Index == 0 {
			a.begun, a.chosen = true, true
			return a.choose(choice)
		}
	}
	return nil
}

func (a *assembly) choose(c *choice) error {
	a.used(c.Usage)
	switch {
	case c.Delta != nil:
		a.parted = true
		a.say(c.Delta)
	case c.Message != nil && !a.repeats(c.Message):
		a.say(c.Message)
	case c.Message == nil:
		a.say(&spoken{Content: c.Text})
	}
	if c.FinishReason != "" && c.FinishReason != llmhttp.Word(openai.FinishReasonNull) {
		a.finish = string(c.FinishReason)
	}
	if failed := fmt.Sprintf(`{"error":%s}`, c.Error); len(c.Error) > 0 && llmhttp.StatesError([]byte(failed)) {
		return llmhttp.Stated(failed)
	}
	return nil
}

// repeats reports whether a message holds what came in parts before: MiniMax ends its
// streams with one.
func (a *assembly) repeats(m *spoken) bool {
	whole, text := m.Content.text(), a.text.String()
	same := whole == text || text != "" && !a.tags.off && strings.HasSuffix(whole, text)
	return a.parted && same && len(m.ToolCalls) <= len(a.calls.all)
}

func (a *assembly) say(m *spoken) {
	a.reason(a.reasoning.of(m))
	for _, p := range m.Content {
		switch p.kind {
		case pieceReasoning:
			a.reason(events.ReasoningText, p.text)
		case pieceSummary:
			a.reason(events.ReasoningSummary, p.text)
		case pieceRefusal:
			m.Refusal += llmhttp.Word(p.text)
		default:
			a.write(a.tags.split(p.text, false))
		}
	}
	if m.Refusal != "" {
		a.refused = true
		a.write("", string(m.Refusal))
	}
	if len(m.Annotations) > 0 {
		a.citations = append(a.citations, m.Annotations)
	}
	if isObject(m.ExtraContent) {
		a.signed = append(a.signed, m.ExtraContent)
	}
	for i := range m.ToolCalls {
		a.call(&m.ToolCalls[i])
	}
	if m.FunctionCall != nil {
		a.call(&fragment{Function: *m.FunctionCall})
	}
}

func (a *assembly) reason(kind string, text string) {
	if text != "" {
		a.reasoning.add(kind, text)
		a.emit(llm.Chunk{Kind: llm.ChunkReasoning, Text: text})
	}
}

// write takes what stood in a content: reasoning in tags, and text.
func (a *assembly) write(reasoned, text string) {
	a.reason(events.ReasoningText, reasoned)
	if text != "" {
		a.text.WriteString(text)
		a.emit(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
}

func (a *assembly) call(f *fragment) {
	p := a.calls.take(f)
	if p == nil {
		return
	}
	chunk := llm.Chunk{Kind: llm.ChunkToolCall, Index: p.index, Text: f.Function.Arguments.Text}
	// A name that may continue in the next chunk waits for it, or for the arguments.
	if p.name != "" && !p.told && (p.arguments() != "" || !a.x.names.Begins(p.name)) {
		chunk.Name, p.told = a.x.names.Tool(p.name), true
	}
	if whole := f.Function.Arguments.Whole; whole != "{}" && p.args.Len() == 0 {
		chunk.Text = whole
	}
	switch {
	case a.x.answer.Is(p.name):
		if a.text.Len() == 0 && chunk.Text != "" { // a structured answer is shown as the text that it becomes
			a.emit(llm.Chunk{Kind: llm.ChunkText, Text: chunk.Text})
		}
	case chunk.Name != "" || chunk.Text != "":
		a.emit(chunk)
	}
}

// used takes a usage that says something. The last one counts.
func (a *assembly) used(u *tokens) {
	if u == nil {
		return
	}
	now := llm.Usage{
		Input: u.PromptTokens.Count(), Output: u.CompletionTokens.Count(),
		Cached: cmp.Or(u.PromptDetails.CachedTokens.Count(), u.CacheHitTokens.Count(), u.CachedTokens.Count()), CostUSD: u.costUSD(),
	}
	now.Total = now.Input + now.Output
	if now != (llm.Usage{}) {
		a.usage = now
	}
	a.zero = a.zero || now.Total == 0
}

// Meta returns what is known of the reply so far.
func (a *assembly) Meta() llm.Meta {
	m := llm.Meta{Model: cmp.Or(a.model, a.x.model), Confidence: 1, Usage: a.usage, FinishRaw: a.finish}
	m.Reasoning = a.reasoning.all()
	for i, p := range a.calls.inOrder() {
		if p.extra != nil {
			m.Reasoning = append(m.Reasoning, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: p.extra, ID: cmp.Or(p.id, llmhttp.CallID(a.x.req, i))})
		}
	}
	for _, extra := range a.signed {
		m.Reasoning = append(m.Reasoning, events.ReasoningPart{Kind: events.ReasoningOpaque, Data: extra})
	}
	for _, list := range a.citations {
		m.Citations = llmhttp.Cite(m.Citations, list, 0, utf8.RuneCountInString(a.text.String()))
	}
	m.Finish, m.Adjusted = finish(a.finish), a.x.adjusted
	m.ReasoningBack = a.x.wantsText(m.Reasoning, len(a.calls.all) > 0)
	switch {
	case a.refused:
		m.Finish = llm.FinishRefusal
	case len(a.calls.all) > 0 && !m.Cut() && m.Finish != llm.FinishRefusal && (a.done || a.finish != ""):
		m.Finish = llm.FinishToolCalls
	}
	return m
}

// Reply returns the complete reply, with the tools' own names.
func (a *assembly) Reply() (llm.Response, error) {
	a.done = true
	a.write(a.tags.split("", true))
	meta, text := a.Meta(), a.text.String()
	if meta.Finish == llm.FinishRefusal {
		return llm.Text{Meta: meta, Content: cmp.Or(text, llm.RefusedText)}, nil
	}
	var all []llm.Call
	for _, p := range a.calls.inOrder() {
		if p.name != "" && !p.told && !a.x.answer.Is(p.name) {
			a.emit(llm.Chunk{Kind: llm.ChunkToolCall, Index: p.index, Name: a.x.names.Tool(p.name)})
		}
		all = append(all, llm.Call{ID: p.id, Name: p.name, Arguments: p.arguments()})
	}
	calls, answer := a.x.names.Calls(a.x.req, all, a.x.answer)
	switch {
	case len(calls) > 0:
		return llm.ToolCalls{Meta: meta, Content: text, Calls: calls}, nil
	case answer != nil:
		if !meta.Cut() {
			meta.Finish = llm.FinishStop
		}
		return llm.Structured{Meta: meta, Content: a.x.answer.Answer(answer.Arguments)}, nil
	case a.x.native:
		return llm.Structured{Meta: meta, Content: text}, nil
	}
	return llm.Text{Meta: meta, Content: text}, nil
}

// finishes are the words for the end of a reply without calls, in lower case.
var finishes = map[string]llm.Finish{
	"stop": llm.FinishStop, "stop_sequence": llm.FinishStop, "end_turn": llm.FinishStop, "eos": llm.FinishStop, "eos_token": llm.FinishStop,
	"end": llm.FinishStop, "complete": llm.FinishStop, "completed": llm.FinishStop,
	"tool_calls": llm.FinishStop, "tool_use": llm.FinishStop, "function_call": llm.FinishStop,

	"length": llm.FinishLength, "max_tokens": llm.FinishLength, "max_output_tokens": llm.FinishLength, "model_length": llm.FinishLength,
	"max_length": llm.FinishLength, "model_context_window_exceeded": llm.FinishLength, "context_length_exceeded": llm.FinishLength,

	"content_filter": llm.FinishContentFilter, "content_filtered": llm.FinishContentFilter, "safety": llm.FinishContentFilter,
	"sensitive": llm.FinishContentFilter, "recitation": llm.FinishContentFilter, "blocklist": llm.FinishContentFilter,
	"prohibited_content": llm.FinishContentFilter, "guardrail_intervened": llm.FinishContentFilter,

	"refusal": llm.FinishRefusal,

	"error": llm.FinishError, "network_error": llm.FinishError, "insufficient_system_resource": llm.FinishError,
	"engine_overloaded": llm.FinishError, "server_error": llm.FinishError, "failed": llm.FinishError, "timeout": llm.FinishError,
	"abort": llm.FinishError, "aborted": llm.FinishError, "cancelled": llm.FinishError, "malformed_function_call": llm.FinishError,
}

// finish is what the provider's word for the end of a reply without calls means. Gemini
// writes some of them as "function_call_filter: MALFORMED_FUNCTION_CALL".
func finish(word string) llm.Finish {
	_, last, found := strings.Cut(word, ": ")
	if !found {
		last = word
	}
	return cmp.Or(finishes[strings.ToLower(last)], llm.FinishUnknown)
}
