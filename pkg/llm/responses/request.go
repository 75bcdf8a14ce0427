package responses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// The request as it goes over the wire. The keys stand in a fixed order, so that equal
// conversations have equal bytes.

type request struct {
	Model string `json:"model"`
	Input []item `json:"input"`
	// Tools are those of the provider as the agent has them, and functions.
	Tools           []json.RawMessage `json:"tools,omitempty"`
	ToolChoice      any               `json:"tool_choice,omitempty"`
	Store           bool              `json:"store"`
	Include         []string          `json:"include,omitempty"`
	Reasoning       *reasoning        `json:"reasoning,omitempty"`
	Text            *text             `json:"text,omitempty"`
	MaxOutputTokens int               `json:"max_output_tokens,omitempty"`
	Temperature     *float64          `json:"temperature,omitempty"`
	TopP            *float64          `json:"top_p,omitempty"`
	Stream          bool              `json:"stream,omitempty"`
}

// item is one of the conversation: a message, a call, a result, or reasoning. The keys
// of type any are omitted only where they are nil.
type item struct {
	Type      string          `json:"type"`
	ID        string          `json:"id,omitempty"`
	Role      string          `json:"role,omitempty"`
	CallID    string          `json:"call_id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments any             `json:"arguments,omitempty"`
	Output    any             `json:"output,omitempty"`
	Summary   any             `json:"summary,omitempty"`
	Content   any             `json:"content,omitempty"`
	Encrypted json.RawMessage `json:"encrypted_content,omitempty"`
	Phase     string          `json:"phase,omitempty"`
	// raw is sent in place of everything else: the provider's own items go back unchanged.
	raw json.RawMessage
}

// MarshalJSON writes the item.
func (i item) MarshalJSON() ([]byte, error) {
	if i.raw != nil {
		return i.raw, nil
	}
	type plain item
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(plain(i))
	return out.Bytes(), err
}

// part is a part of an item.
type part struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	Detail   string `json:"detail,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
	Filename string `json:"filename,omitempty"`
	FileData string `json:"file_data,omitempty"`
	FileURL  string `json:"file_url,omitempty"`
}

type tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	// Strict is always sent: its default is true, which changes the schema.
	Strict bool `json:"strict"`
}

// function describes a tool of the agent, or the one that takes an answer.
func function(name, description string, schema json.RawMessage) json.RawMessage {
	return llmhttp.JSON(tool{Type: "function", Name: name, Description: description, Parameters: schema})
}

type reasoning struct {
	Effort  string `json:"effort,omitempty"`
	Summary string `json:"summary,omitempty"`
}

type text struct {
	Format format `json:"format"`
}

type format struct {
	Type   string          `json:"type"`
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
	Strict bool            `json:"strict"`
}

const (
	typeMessage   = "message"
	typeCall      = "function_call"
	typeResult    = "function_call_output"
	typeReasoning = "reasoning"
	inputText     = "input_text"
	summaryText   = "summary_text"
	reasoningText = "reasoning_text"
)

// exchange is one request, and what its reply is read with.
type exchange struct {
	caller   *caller
	req      llm.Request
	names    *llmhttp.ToolNames
	caps     providers.Capabilities
	answer   *llmhttp.AnswerTool // nil where no tool takes the answer
	params   request
	adjusted []events.Adjusted
}

// write writes the request in the API's words.
func (x *exchange) write() error {
	p := &x.params
	if p.Model = cmp.Or(x.req.Model, x.caller.opts.Model); p.Model == "" {
		return llmhttp.NoModel()
	}
	x.caps = x.caller.http.Capabilities(p.Model)
	p.Tools = slices.Clone(x.req.ProviderTools)
	for _, t := range llmhttp.Described(x.req) {
		schema, err := llmhttp.Parameters(t)
		if err != nil {
			return err
		}
		p.Tools = append(p.Tools, function(x.names.Wire(t.Name), t.Description, schema))
	}
	if err := x.structure(); err != nil {
		return err
	}
	x.sample(x.req.Sampling)
	x.converse()
	return nil
}

// converse writes the conversation.
func (x *exchange) converse() {
	x.params.Input = nil
	for i := range x.req.Messages {
		x.add(&x.req.Messages[i])
	}
}

// Body writes the request for the wire.
func (x *exchange) Body(stream bool) ([]byte, error) {
	p := x.params
	p.Stream = stream
	return x.caller.http.Write(p.Model, p)
}

// structure asks for an answer by the output schema: by the API's setting, or together with
// tools by one more tool if the server could call none otherwise.
func (x *exchange) structure() error {
	schema := x.req.OutputSchema
	way := x.caps.OutputSchema
	if len(x.params.Tools) > 0 {
		way = x.caps.OutputWithTools
	}
	switch {
	case len(schema) == 0 || way == providers.None:
		return nil
	case !json.Valid(schema):
		return llmhttp.Invalid("the output schema is not valid JSON")
	case way == providers.Native:
		x.params.Text = &text{format{
			Type: "json_schema", Name: "answer", Schema: schema, Strict: x.caps.StrictSchemas && llmhttp.StrictSchema(schema),
		}}
		return nil
	}
	answer, err := llmhttp.NewAnswerTool(x.names, schema)
	if err != nil {
		return err
	}
	x.answer = answer
	x.params.Tools = append(x.params.Tools, function(answer.Name, llmhttp.AnswerWords, answer.Schema))
	return nil
}

// sample sets the sampling. What the API or the model does not have is omitted.
func (x *exchange) sample(s llm.Sampling) {
	p := &x.params
	sends := func(key string, set, has bool) bool {
		if set && !has {
			x.adjusted = append(x.adjusted, llmhttp.Adjust(key, nil))
		}
		return set && has
	}
	if sends("temperature", s.Temperature != nil, x.caps.Sends("temperature")) {
		p.Temperature = s.Temperature
	}
	if sends("top_p", s.TopP != nil, x.caps.Sends("top_p")) {
		p.TopP = s.TopP
	}
	if sends("max_tokens", s.MaxTokens > 0, x.caps.Sends("max_tokens")) {
		p.MaxOutputTokens = s.MaxTokens
	}
	sends("seed", s.Seed != nil, false)
	sends("stop", len(s.Stop) > 0, false)
	sends("reasoning.budget_tokens", s.ThinkingTokens > 0, false)
	if sends("reasoning.effort", s.Effort != "", x.reasons()) {
		level := x.caps.Effort(s.Effort)
		p.Reasoning = &reasoning{Effort: level}
		if level != s.Effort {
			x.adjusted = append(x.adjusted, llmhttp.Adjust("reasoning.effort", level))
		}
	}
	x.reason()
}

// reasons reports whether a request can say how much to reason.
func (x *exchange) reasons() bool {
	return x.caps.EffortField != providers.None && len(x.caps.Efforts) > 0
}

// reason asks a model that reasons for what it takes to send its reasoning back, and for
// a summary.
func (x *exchange) reason() {
	p := &x.params
	if !x.reasons() {
		return
	}
	p.Include = []string{"reasoning.encrypted_content"}
	switch {
	case x.caller.noSummary.Load() || p.Reasoning != nil && p.Reasoning.Effort == "none":
	case p.Reasoning == nil:
		p.Reasoning = &reasoning{Summary: "auto"}
	default:
		p.Reasoning.Summary = "auto"
	}
}

// Without leaves out what some servers and models refuse. OpenAI summarizes reasoning only
// for organizations that are verified.
func (x *exchange) Without(param string) bool {
	p := &x.params
	switch r := p.Reasoning; {
	case param == "reasoning.summary" && r != nil && r.Summary != "":
		x.caller.noSummary.Store(true)
		r.Summary = ""
		if r.Effort == "" {
			p.Reasoning = nil
		}
		return true
	case param == llmhttp.ReturnedReasoning && llmhttp.Forget(&x.req):
		x.converse()
		return true
	case strings.HasPrefix(param, "include") && p.Include != nil:
		p.Include = nil
		return true
	}
	return false
}

// add adds the items of a message.
func (x *exchange) add(m *llm.Message) {
	items := &x.params.Input
	switch m.Role {
	case llm.RoleTool:
		*items = append(*items, item{Type: typeResult, CallID: m.CallID, Output: x.content(m)})
	case llm.RoleAssistant:
		*items = append(*items, x.reply(m)...)
	default:
		*items = append(*items, item{Type: typeMessage, Role: string(m.Role), Content: x.content(m)})
	}
}

// content is a message's text, or its parts if it is more than that and the model takes
// it.
func (x *exchange) content(m *llm.Message) any {
	if len(m.Parts) == 0 {
		return m.Content
	}
	var words []string
	parts := make([]part, len(m.Parts))
	for i, p := range m.Parts {
		parts[i] = x.part(m.Role, p)
		if parts[i].Type == inputText {
			words = append(words, parts[i].Text)
		}
	}
	if len(words) == len(parts) {
		return strings.Join(words, "\n")
	}
	return parts
}

func (x *exchange) part(role llm.Role, p events.Part) part {
	switch {
	case p.Type == events.PartText:
		return part{Type: inputText, Text: p.Text}
	case !llmhttp.Takes(x.caps, role, p):
		return part{Type: inputText, Text: llmhttp.LeftOut(p)}
	case p.Type == events.PartImage:
		return part{Type: "input_image", Detail: "auto", ImageURL: llmhttp.DataURL(p)}
	case len(p.Data) == 0:
		return part{Type: "input_file", FileURL: p.URL}
	}
	return part{Type: "input_file", Filename: cmp.Or(p.Name, "file"), FileData: llmhttp.DataURL(p)}
}
