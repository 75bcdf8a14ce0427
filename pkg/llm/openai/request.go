package openai

import (
	"encoding/json"
	"slices"

	"github.com/sashabaranov/go-openai"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// request is the request as it goes over the wire. The library's own type drops
// empty contents, empty arguments and a temperature of 0, but a conversation has
// to arrive as it is. wire.go says why replies are not read with the library's types either.
type request struct {
	Model               string                `json:"model"`
	Messages            []message             `json:"messages"`
	Tools               []json.RawMessage     `json:"tools,omitempty"`
	ToolChoice          any                   `json:"tool_choice,omitempty"`
	Stream              bool                  `json:"stream,omitempty"`
	StreamOptions       *openai.StreamOptions `json:"stream_options,omitempty"`
	Temperature         *float64              `json:"temperature,omitempty"`
	TopP                *float64              `json:"top_p,omitempty"`
	Seed                *int                  `json:"seed,omitempty"`
	MaxTokens           int                   `json:"max_tokens,omitempty"`
	MaxCompletionTokens int                   `json:"max_completion_tokens,omitempty"`
	Stop                []string              `json:"stop,omitempty"`
	ReasoningEffort     string                `json:"reasoning_effort,omitempty"`
	Reasoning           *reasoningParam       `json:"reasoning,omitempty"`
	Thinking            *thinking             `json:"thinking,omitempty"`
	EnableThinking      *bool                 `json:"enable_thinking,omitempty"`
	ThinkingBudget      int                   `json:"thinking_budget,omitempty"`
	ChatTemplate        *chatTemplate         `json:"chat_template_kwargs,omitempty"`
	ExtraBody           any                   `json:"extra_body,omitempty"`
	ResponseFormat      *responseFormat       `json:"response_format,omitempty"`
}

type message struct {
	Role string `json:"role"`
	// Content is a text or a list of parts. It is null only in an assistant message that
	// consists of calls.
	Content          any               `json:"content"`
	ReasoningContent *string           `json:"reasoning_content,omitempty"`
	Reasoning        *string           `json:"reasoning,omitempty"`
	ReasoningDetails []json.RawMessage `json:"reasoning_details,omitempty"`
	ExtraContent     json.RawMessage   `json:"extra_content,omitempty"`
	ToolCalls        []call            `json:"tool_calls,omitempty"`
	ToolCallID       string            `json:"tool_call_id,omitempty"`
	Name             string            `json:"name,omitempty"`
}

// part is one of a content that is a list.
type part struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	Thinking []part    `json:"thinking,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
	File     *file     `json:"file,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
}

type file struct {
	Filename string `json:"filename,omitempty"`
	FileData string `json:"file_data"`
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
	// ExtraContent holds a signature.
	ExtraContent json.RawMessage `json:"extra_content,omitempty"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type tool struct {
	Type     string     `json:"type"`
	Function definition `json:"function"`
}

type definition struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

type responseFormat struct {
	Type       string       `json:"type"`
	JSONSchema outputSchema `json:"json_schema"`
}

type outputSchema struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
	Strict bool            `json:"strict"`
}

const typeFunction = "function"

// The forms in which requests say how much to reason.
type (
	reasoningParam struct {
		Effort    string `json:"effort,omitempty"`
		MaxTokens int    `json:"max_tokens,omitempty"`
	}
	thinking struct {
		Type string `json:"type"`
	}
	chatTemplate struct {
		EnableThinking bool `json:"enable_thinking"`
	}
)

// asking is how a request is written for its server and model.
type asking struct {
	caps providers.Capabilities
	// answer is the tool that takes a structured answer, or nil.
	answer *llmhttp.AnswerTool
	// native says that the server itself is asked for a structured answer.
	native bool
	body   request
	// adjusted is what was sent otherwise than asked for.
	adjusted []events.Adjusted
}

// Body writes the request for the wire.
func (x *exchange) Body(stream bool) ([]byte, error) {
	b := x.body
	if stream {
		b.Stream = true
		b.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	}
	return x.caller.http.Write(x.model, b)
}

// Without leaves out the reasoning that a request sends back.
func (x *exchange) Without(param string) bool {
	if param != llmhttp.ReturnedReasoning || !llmhttp.Forget(&x.req) {
		return false
	}
	x.body.Messages = x.messages()
	return true
}

// prepare writes all of the request that does not depend on how the reply comes.
func (x *exchange) prepare() error {
	if x.model == "" {
		return llmhttp.NoModel()
	}
	x.caps = x.caller.http.Capabilities(x.model)
	b := &x.body
	b.Model = x.model
	b.Tools = slices.Clone(x.req.ProviderTools)
	for _, t := range llmhttp.Described(x.req) {
		schema, err := llmhttp.Parameters(t)
		if err != nil {
			return err
		}
		b.Tools = append(b.Tools, llmhttp.JSON(tool{typeFunction, definition{x.names.Wire(t.Name), t.Description, schema}}))
	}
	if err := x.structure(); err != nil {
		return err
	}
	x.sample(x.req.Sampling)
	x.reason(x.req.Sampling)
	b.Messages = x.messages()
	return nil
}

// outputSchema returns how a structured answer is asked for, or none.
func (x *exchange) outputSchema() string {
	switch {
	case len(x.req.OutputSchema) == 0 || x.caller.opts.NoOutputSchema:
		return providers.None
	case len(x.req.Tools)+len(x.req.ProviderTools) > 0:
		return x.caps.OutputWithTools
	}
	return x.caps.OutputSchema
}

// structure asks for a structured answer.
func (x *exchange) structure() error {
	how := x.outputSchema()
	if how == providers.None {
		return nil
	}
	if !json.Valid(x.req.OutputSchema) {
		return llmhttp.Invalid("the output schema is not valid JSON")
	}
	if how != providers.FinalTool {
		x.native = true
		x.body.ResponseFormat = &responseFormat{Type: "json_schema", JSONSchema: outputSchema{
			Name: "answer", Schema: x.req.OutputSchema, Strict: x.caps.StrictSchemas && llmhttp.StrictSchema(x.req.OutputSchema),
		}}
		return nil
	}
	answer, err := llmhttp.NewAnswerTool(x.names, x.req.OutputSchema)
	if err != nil {
		return err
	}
	x.answer = answer
	if len(x.body.Tools) == 0 && x.caps.ForcedTools {
		x.body.ToolChoice = map[string]any{"type": typeFunction, "function": map[string]any{"name": answer.Name}}
	}
	x.body.Tools = append(x.body.Tools, llmhttp.JSON(tool{typeFunction, definition{answer.Name, llmhttp.AnswerWords, answer.Schema}}))
	return nil
}

// adjust records that a setting was sent as the value, or omitted if it is nil.
func (x *exchange) adjust(key string, sent any) {
	x.adjusted = append(x.adjusted, llmhttp.Adjust(key, sent))
}

// sample sets the sampling, and leaves out what the model refuses.
func (x *exchange) sample(s llm.Sampling) {
	b := &x.body
	b.Temperature, b.TopP, b.Seed, b.Stop = s.Temperature, s.TopP, s.Seed, s.Stop
	for _, setting := range []struct {
		key   string
		asked bool
		drop  func()
	}{
		{"temperature", s.Temperature != nil, func() { b.Temperature = nil }},
		{"top_p", s.TopP != nil, func() { b.TopP = nil }},
		{"seed", s.Seed != nil, func() { b.Seed = nil }},
		{"stop", len(s.Stop) > 0, func() { b.Stop = nil }},
	} {
		if setting.asked && !x.caps.Sends(setting.key) {
			setting.drop()
			x.adjust(setting.key, nil)
		}
	}
	switch {
	case s.MaxTokens <= 0:
	case !x.caps.Sends("max_tokens"):
		x.adjust("max_tokens", nil)
	case x.caps.MaxTokensField == "max_completion_tokens":
		b.MaxCompletionTokens = s.MaxTokens
	default:
		b.MaxTokens = s.MaxTokens
	}
}

// reason asks for the effort and the bound of reasoning, in the model's terms.
func (x *exchange) reason(s llm.Sampling) {
	if s.ThinkingTokens > 0 && !x.bound(s.ThinkingTokens, s.Effort == "") {
		x.adjust("reasoning.budget_tokens", nil)
	}
	asked, level := s.Effort, ""
	if asked == "" && x.caps.Row != "" && x.caps.EffortField != providers.None {
		asked = x.caller.opts.ReasoningEffort
	}
	if asked != "" && x.caps.EffortField != providers.None {
		level = x.caps.Effort(asked)
	}
	if len(x.body.Tools) > 0 { // some models take only one of tools and effort
		switch x.caps.ChatTools {
		case providers.ToolsWithoutEffort:
			level = ""
		case providers.ToolsEffortNone:
			level = "none"
		}
	}
	if level != "" {
		x.setEffort(level)
	}
	switch {
	case asked == level || s.Effort == "" && level == "":
	case level == "":
		x.adjust("reasoning.effort", nil)
	default:
		x.adjust("reasoning.effort", level)
	}
}

// setEffort sends the level where the server looks for it.
func (x *exchange) setEffort(level string) {
	b, on := &x.body, level != "none"
	kind := "enabled"
	if !on {
		kind = "disabled"
	}
	switch x.caps.EffortField {
	case "reasoning_effort":
		b.ReasoningEffort = level
	case "reasoning":
		if b.Reasoning == nil { // a bound of tokens excludes an effort
			b.Reasoning = &reasoningParam{Effort: level}
		}
	case "thinking":
		b.Thinking = &thinking{kind}
	case "thinking+reasoning_effort":
		b.Thinking = &thinking{kind}
		if on {
			b.ReasoningEffort = level
		}
	case "enable_thinking":
		b.EnableThinking = &on
	case "chat_template_kwargs":
		b.ChatTemplate = &chatTemplate{on}
	}
}

// bound sends the bound of reasoning tokens and reports whether the server has such a
// setting. Alone means that no effort is asked for.
func (x *exchange) bound(tokens int, alone bool) bool {
	b, on := &x.body, true
	switch x.caps.BudgetField {
	case "reasoning.max_tokens":
		if alone {
			b.Reasoning = &reasoningParam{MaxTokens: tokens}
		}
		return alone
	case "thinking_budget":
		b.ThinkingBudget, b.EnableThinking = tokens, &on
		return true
	case "extra_body.google":
		if alone { // it excludes an effort
			b.ExtraBody = map[string]any{"google": map[string]any{"thinking_config": map[string]any{"thinking_budget": tokens}}}
		}
		return alone
	}
	return false
}
