package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sashabaranov/go-openai"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// request is the request as it goes over the wire. The library's own type drops
// empty contents, empty arguments and a temperature of 0, but a conversation has
// to arrive as it is. Replies are read with the library's types.
type request struct {
	Model               string                `json:"model"`
	Messages            []message             `json:"messages"`
	Tools               []tool                `json:"tools,omitempty"`
	Stream              bool                  `json:"stream,omitempty"`
	StreamOptions       *openai.StreamOptions `json:"stream_options,omitempty"`
	Temperature         *float64              `json:"temperature,omitempty"`
	TopP                *float64              `json:"top_p,omitempty"`
	Seed                *int                  `json:"seed,omitempty"`
	MaxTokens           int                   `json:"max_tokens,omitempty"`
	MaxCompletionTokens int                   `json:"max_completion_tokens,omitempty"`
	Stop                []string              `json:"stop,omitempty"`
	ReasoningEffort     string                `json:"reasoning_effort,omitempty"`
	ResponseFormat      *responseFormat       `json:"response_format,omitempty"`
}

type message struct {
	Role string `json:"role"`
	// Content is null only in an assistant message that consists of calls.
	Content    *string `json:"content"`
	ToolCalls  []call  `json:"tool_calls,omitempty"`
	ToolCallID string  `json:"tool_call_id,omitempty"`
	Name       string  `json:"name,omitempty"`
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
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

// Body writes the request for the wire.
func (x *exchange) Body(stream bool) ([]byte, error) {
	b, err := x.request()
	if err != nil {
		return nil, err
	}
	if stream {
		b.Stream = true
		b.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(b); err != nil {
		return nil, llmhttp.Invalid(fmt.Sprintf("the request cannot be written as JSON: %v", err))
	}
	return out.Bytes(), nil
}

func (x *exchange) request() (request, error) {
	b := request{Model: x.model, Messages: messages(x.req.Messages, x.names), Seed: x.req.Sampling.Seed}
	if b.Model == "" {
		return b, llmhttp.Invalid("no model: name one in the agent (models: default) or as the provider's default model")
	}
	for _, t := range x.req.Tools {
		schema := t.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		if !json.Valid(schema) {
			return b, llmhttp.Invalid(fmt.Sprintf("the schema of tool %q is not valid JSON", t.Name))
		}
		b.Tools = append(b.Tools, tool{typeFunction, definition{x.names.Wire(t.Name), t.Description, schema}})
	}
	b.sample(x.req.Sampling, x.caller.opts.ReasoningEffort)
	if x.wantsSchema() {
		if !json.Valid(x.req.OutputSchema) {
			return b, llmhttp.Invalid("the output schema is not valid JSON")
		}
		b.ResponseFormat = &responseFormat{
			Type:       "json_schema",
			JSONSchema: outputSchema{Name: "answer", Schema: x.req.OutputSchema, Strict: strictSchema(x.req.OutputSchema)},
		}
	}
	return b, nil
}

func (x *exchange) wantsSchema() bool {
	return len(x.req.OutputSchema) > 0 && !x.caller.opts.NoOutputSchema
}

// sample sets the sampling. Reasoning models answer 400 to max_tokens, stop and
// every temperature and top_p but 1, so those are translated or left out.
func (b *request) sample(s llm.Sampling, effort string) {
	if reasons(b.Model) {
		b.MaxCompletionTokens = s.MaxTokens
		b.ReasoningEffort = effort
		return
	}
	b.Temperature, b.TopP, b.MaxTokens, b.Stop = s.Temperature, s.TopP, s.MaxTokens, s.Stop
}

var reasoningModel = regexp.MustCompile(`^(o[1-9]|gpt-[5-9])([.:-]|$)`)

// reasons tells OpenAI's reasoning models by their name, also behind a router's
// prefix ("openai/o3") and as fine-tuned ("ft:o4-mini:…").
func reasons(model string) bool {
	model = model[strings.LastIndexByte(model, '/')+1:]
	model = strings.TrimPrefix(model, "ft:")
	return reasoningModel.MatchString(model) && !strings.HasPrefix(model, "gpt-5-chat")
}

func messages(in []llm.Message, names *llmhttp.ToolNames) []message {
	out := make([]message, 0, len(in))
	for _, m := range in {
		w := message{Role: string(m.Role), Content: &m.Content, ToolCallID: m.CallID}
		if m.Role == llm.RoleTool {
			w.Name = names.Wire(m.Name)
		}
		for _, c := range m.Calls {
			w.ToolCalls = append(w.ToolCalls, call{c.ID, typeFunction, function{names.Wire(c.Name), c.Arguments}})
		}
		if len(w.ToolCalls) > 0 && m.Content == "" {
			w.Content = nil
		}
		out = append(out, w)
	}
	return out
}

// strictKeywords are those that a schema for strict output may use. A schema
// with another one is sent as a hint only: the server would refuse it.
var strictKeywords = []string{
	"$schema", "type", "title", "description", "properties", "required", "additionalProperties", "items", "enum", "const",
}

// strictSchema reports whether the provider can be asked to hold its reply to
// the schema: an object all of whose parts are closed and required.
func strictSchema(schema json.RawMessage) bool {
	var root struct {
		Type any `json:"type"`
	}
	return json.Unmarshal(schema, &root) == nil && root.Type == "object" && strictPart(schema)
}

func strictPart(schema json.RawMessage) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(schema, &keys) != nil {
		return false
	}
	for k := range keys {
		if !slices.Contains(strictKeywords, k) {
			return false
		}
	}
	var part struct {
		Type                 any                        `json:"type"`
		Properties           map[string]json.RawMessage `json:"properties"`
		Required             []string                   `json:"required"`
		AdditionalProperties any                        `json:"additionalProperties"`
		Items                json.RawMessage            `json:"items"`
	}
	if json.Unmarshal(schema, &part) != nil || part.Type == nil {
		return false
	}
	if part.Type == "object" && (part.AdditionalProperties != false || len(part.Required) != len(part.Properties)) {
		return false
	}
	if part.Type == "array" && part.Items == nil {
		return false
	}
	for name, p := range part.Properties {
		if !slices.Contains(part.Required, name) || !strictPart(p) {
			return false
		}
	}
	return part.Items == nil || strictPart(part.Items)
}
