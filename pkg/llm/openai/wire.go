package openai

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
)

// The types of this file are chat completions and their chunks as servers send them, which
// is in many forms. The client library's own types refuse an entire chunk for one field of an
// unexpected type. A field here takes every form that is known for it, and what it cannot
// read counts as absent.

// completion is a completion, or a chunk of one.
type completion struct {
	Model   llmhttp.Word `json:"model"`
	Choices []choice     `json:"choices"`
	Usage   *tokens      `json:"usage"`
	XGroq   struct {
		Usage *tokens `json:"usage"`
	} `json:"x_groq"`
}

// choice is a choice of a completion. Some servers give a message in the chunks of a stream.
type choice struct {
	Index        llmhttp.Number  `json:"index"`
	Delta        *spoken         `json:"delta"`
	Message      *spoken         `json:"message"`
	Text         pieces          `json:"text"` // servers that also have the older completions
	FinishReason llmhttp.Word    `json:"finish_reason"`
	Usage        *tokens         `json:"usage"` // Moonshot
	Error        json.RawMessage `json:"error"` // OpenRouter
}

// spoken is a message of the model, or a part of one.
type spoken struct {
	Content          pieces            `json:"content"`
	Refusal          llmhttp.Word      `json:"refusal"`
	ReasoningContent pieces            `json:"reasoning_content"`
	Reasoning        pieces            `json:"reasoning"`
	ReasoningDetails details           `json:"reasoning_details"`
	ExtraContent     json.RawMessage   `json:"extra_content"`
	ToolCalls        fragments         `json:"tool_calls"`
	FunctionCall     *fragmentFunction `json:"function_call"`
	Annotations      json.RawMessage   `json:"annotations"` // the sources of the text
}

// fragment is a tool call, or a part of one.
type fragment struct {
	Index        *llmhttp.Number  `json:"index"`
	ID           llmhttp.Word     `json:"id"`
	Function     fragmentFunction `json:"function"`
	ExtraContent json.RawMessage  `json:"extra_content"`
}

type fragmentFunction struct {
	Name      llmhttp.Word      `json:"name"`
	Arguments llmhttp.Arguments `json:"arguments"`
}

// fragments are a list of calls or of parts of them.
type fragments []fragment

// UnmarshalJSON reads a list, or one call alone. Nothing is an empty value of any form. The
// error of anything else keeps a call from being lost.
func (f *fragments) UnmarshalJSON(raw []byte) error {
	var list []fragment
	var one fragment
	switch string(raw) {
	case "null", `""`, "{}", "[]":
		return nil
	}
	if raw[0] == '{' {
		err := json.Unmarshal(raw, &one)
		*f = fragments{one}
		return err
	}
	err := json.Unmarshal(raw, &list)
	*f = list
	return err
}

// UnmarshalJSON reads an object; anything else is empty.
func (f *fragmentFunction) UnmarshalJSON(raw []byte) error {
	type plain fragmentFunction
	if raw[0] == '{' {
		return json.Unmarshal(raw, (*plain)(f))
	}
	return nil
}

// tokens is what a reply used, in tokens.
type tokens struct {
	PromptTokens     llmhttp.Number `json:"prompt_tokens"`
	CompletionTokens llmhttp.Number `json:"completion_tokens"`
	PromptDetails    struct {
		CachedTokens llmhttp.Number `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CacheHitTokens llmhttp.Number `json:"prompt_cache_hit_tokens"` // DeepSeek
	CachedTokens   llmhttp.Number `json:"cached_tokens"`           // Moonshot
	Cost           llmhttp.Cost   `json:"cost"`
	CostTicks      llmhttp.Number `json:"cost_in_usd_ticks"` // xAI
}

// UnmarshalJSON reads an object; what it cannot read of it is 0.
func (u *tokens) UnmarshalJSON(raw []byte) error {
	type plain tokens
	_ = json.Unmarshal(raw, (*plain)(u)) // it reads on after a value of another form
	return nil
}

// costUSD is what the provider says that the reply cost, or nil.
func (u *tokens) costUSD() *float64 {
	if u.Cost.USD == nil && u.CostTicks > 0 {
		const ticks = 1e10 // of one dollar; https://docs.x.ai/developers/cost-tracking
		usd := float64(u.CostTicks) / ticks
		return &usd
	}
	return u.Cost.USD
}

// piece is a part of a message's content.
type piece struct {
	kind pieceKind
	text string
}

type pieceKind int

const (
	pieceText pieceKind = iota
	pieceRefusal
	pieceReasoning
	pieceSummary
)

// pieces are content: text, or parts of several kinds in order.
type pieces []piece

// UnmarshalJSON reads a string, a part, or a list of both. Parts without text are omitted.
func (p *pieces) UnmarshalJSON(raw []byte) error {
	p.read(raw, pieceText)
	return nil
}

func (p *pieces) read(raw json.RawMessage, kind pieceKind) {
	var text string
	var list []json.RawMessage
	var part struct {
		Type     llmhttp.Word    `json:"type"`
		Text     json.RawMessage `json:"text"`
		Content  json.RawMessage `json:"content"`
		Thinking json.RawMessage `json:"thinking"` // Mistral, Anthropic's form
		Summary  json.RawMessage `json:"summary"`  // Databricks
		Refusal  json.RawMessage `json:"refusal"`
	}
	switch {
	case len(raw) == 0:
	case json.Unmarshal(raw, &text) == nil:
		if text != "" {
			*p = append(*p, piece{kind, text})
		}
	case json.Unmarshal(raw, &list) == nil:
		for _, one := range list {
			p.read(one, kind)
		}
	case json.Unmarshal(raw, &part) == nil:
		if strings.HasPrefix(string(part.Type), "reasoning") || part.Type == "thinking" {
			kind = pieceReasoning
		}
		p.read(part.Thinking, pieceReasoning)
		p.read(part.Summary, pieceSummary)
		p.read(part.Refusal, pieceRefusal)
		p.read(part.Text, kind)
		p.read(part.Content, kind)
	}
}

// text returns all texts in one.
func (p pieces) text() string {
	var b strings.Builder
	for _, one := range p {
		b.WriteString(one.text)
	}
	return b.String()
}

// details are OpenRouter's reasoning_details, each as it came.
type details []json.RawMessage

// UnmarshalJSON reads a list of objects; anything else is empty.
func (d *details) UnmarshalJSON(raw []byte) error {
	var list []json.RawMessage
	_ = json.Unmarshal(raw, &list) // else it stays empty
	for _, one := range list {
		if one = bytes.TrimSpace(one); len(one) > 0 && one[0] == '{' {
			*d = append(*d, one)
		}
	}
	return nil
}
