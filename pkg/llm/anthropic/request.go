package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// exchange is one request, and what its reply is read with.
type exchange struct {
	caller *Caller
	req    llm.Request
	names  *llmhttp.ToolNames
	model  string
	answer *llmhttp.AnswerTool // nil without an output schema
	params request
}

// write writes the request in the API's words.
func (x *exchange) write() error {
	if x.model == "" {
		return llmhttp.Invalid("no model: name one in the agent (models: default) or as the provider's default model")
	}
	x.params.Model, x.params.StopSequences = x.model, x.req.Sampling.Stop
	if err := x.offer(); err != nil {
		return err
	}
	thinks := x.thinks()
	x.sample(x.req.Sampling, thinks)
	x.choose(thinks)
	x.standIn()
	w := writer{names: x.names, model: x.model, thinking: thinks, used: map[string]bool{}}
	for _, m := range x.req.Messages {
		w.add(m)
	}
	x.params.System, x.params.Messages = w.system, w.messages
	x.markCache()
	return nil
}

// Body writes the request for the wire.
func (x *exchange) Body(stream bool) ([]byte, error) {
	p := x.params
	p.Stream = stream
	body, err := json.Marshal(p)
	if err != nil {
		return nil, llmhttp.Invalid(fmt.Sprintf("the request cannot be written as JSON: %v", err))
	}
	return body, nil
}

// sample sets sampling and bounds. A model that thinks takes neither temperature
// nor top_p, and its thinking counts as a part of the reply.
func (x *exchange) sample(s llm.Sampling, thinks bool) {
	p := &x.params
	p.MaxTokens = s.MaxTokens
	if s.MaxTokens <= 0 {
		p.MaxTokens = x.caller.opts.MaxTokens
	}
	if !thinks {
		p.Temperature, p.TopP = s.Temperature, s.TopP
		return
	}
	if s.MaxTokens <= 0 {
		p.MaxTokens += s.ThinkingTokens
	}
	p.Thinking = &thinking{"enabled", s.ThinkingTokens}
}

// offer adds the request's tools, and the one that takes a structured answer.
func (x *exchange) offer() error {
	for _, t := range x.req.Tools {
		schema, err := inputSchema(t.Schema)
		if err != nil {
			return llmhttp.Invalid(fmt.Sprintf("the schema of tool %q %v", t.Name, err))
		}
		x.tool(x.names.Wire(t.Name), t.Description, schema)
	}
	if len(x.req.OutputSchema) == 0 {
		return nil
	}
	answer, err := llmhttp.NewAnswerTool(x.names, x.req.OutputSchema)
	if err != nil {
		return err
	}
	x.answer = answer
	x.tool(answer.Name, llmhttp.AnswerWords, answer.Schema)
	return nil
}

// standIn names the tools of earlier calls where none is offered: the API refuses
// a conversation with calls and without tools. None of them may be called.
func (x *exchange) standIn() {
	if len(x.params.Tools) > 0 {
		return
	}
	named := map[string]bool{}
	for _, m := range x.req.Messages {
		for _, call := range m.Calls {
			if !named[call.Name] {
				named[call.Name] = true
				x.tool(x.names.Wire(call.Name), "", anyObject)
			}
		}
	}
	if len(named) > 0 {
		x.params.ToolChoice = &toolChoice{Type: "none"}
	}
}

// anyObject is the schema of a tool that says nothing of its arguments.
var anyObject = json.RawMessage(`{"type":"object","properties":{}}`)

func (x *exchange) tool(name, description string, schema json.RawMessage) {
	x.params.Tools = append(x.params.Tools, tool{Name: name, Description: description, InputSchema: schema})
}

// inputSchema returns the schema as the API takes it: that of an object, which
// says so.
func inputSchema(schema json.RawMessage) (json.RawMessage, error) {
	if len(schema) == 0 {
		return anyObject, nil
	}
	if !json.Valid(schema) {
		return nil, fmt.Errorf("is not valid JSON")
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(schema, &keys) != nil || keys == nil { // `true` is a schema, too
		return json.RawMessage(`{"type":"object"}`), nil
	}
	if _, typed := keys["type"]; typed {
		return schema, nil
	}
	keys["type"] = json.RawMessage(`"object"`)
	return json.Marshal(keys)
}

// markCache marks what the next request begins with as well: the tools, the
// system prompt, and the conversation so far.
func (x *exchange) markCache() {
	p, mark := &x.params, &cacheControl{"ephemeral"}
	if n := len(p.Tools); n > 0 {
		p.Tools[n-1].CacheControl = mark
	}
	if n := len(p.System); n > 0 {
		p.System[n-1].CacheControl = mark
	}
	if n := len(p.Messages); n > 0 {
		content := p.Messages[n-1].Content
		content[len(content)-1].CacheControl = mark
	}
}

const roleUser, roleAssistant = "user", "assistant"

// writer writes a conversation.
type writer struct {
	names    *llmhttp.ToolNames
	model    string
	thinking bool
	system   []block
	messages []message
	// used are the ids on the wire, and open those of the last reply's calls that
	// have no result yet, by their own id.
	used map[string]bool
	open map[string][]string
}

func (w *writer) add(m llm.Message) {
	switch m.Role {
	case llm.RoleSystem:
		w.system = append(w.system, text(m.Content)...)
	case llm.RoleUser:
		w.append(roleUser, text(m.Content)...)
	case llm.RoleTool:
		w.append(roleUser, w.result(m))
	case llm.RoleAssistant:
		w.append(roleAssistant, w.reply(m)...)
	}
}

// append adds blocks to the last message if it has the role, else as a message.
func (w *writer) append(role string, blocks ...block) {
	n := len(w.messages)
	switch {
	case len(blocks) == 0:
	case n > 0 && w.messages[n-1].Role == role:
		w.messages[n-1].Content = append(w.messages[n-1].Content, blocks...)
	case n == 0 && role == roleAssistant:
		w.messages = []message{{Role: roleUser, Content: text(leftOut)}, {Role: role, Content: blocks}}
	default:
		w.messages = append(w.messages, message{Role: role, Content: blocks})
	}
}

// leftOut stands first where the conversation would begin with a reply, which
// the API refuses.
const leftOut = "(Earlier messages are not shown.)"

func (w *writer) reply(m llm.Message) []block {
	var blocks []block
	if w.thinking && len(m.Calls) > 0 {
		for _, raw := range readReasoning(m.Reasoning, w.model) {
			blocks = append(blocks, block{raw: raw})
		}
	}
	blocks = append(blocks, text(m.Content)...)
	w.open = map[string][]string{}
	for _, call := range m.Calls {
		id := w.id(call.ID)
		w.open[call.ID] = append(w.open[call.ID], id)
		blocks = append(blocks, block{Type: "tool_use", ID: id, Input: input(call.Arguments), Name: w.names.Wire(call.Name)})
	}
	return blocks
}

func (w *writer) result(m llm.Message) block {
	id := m.CallID
	if open := w.open[id]; len(open) > 0 {
		id, w.open[id] = open[0], open[1:]
	}
	return block{Type: "tool_result", ToolUseID: id, IsError: m.Failed, Content: text(m.Content)}
}

// id returns a call's id as the API takes it: letters, digits, _ and -, and not
// twice in one conversation.
func (w *writer) id(id string) string {
	good := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, cmp.Or(id, "call"))
	unique := good
	for k := 2; w.used[unique]; k++ {
		unique = fmt.Sprintf("%s_%d", good, k)
	}
	w.used[unique] = true
	return unique
}

// input is a call's arguments: the model's own JSON if it is an object.
func input(arguments string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &object) == nil && object != nil {
		return json.RawMessage(arguments)
	}
	if blank(arguments) {
		return json.RawMessage(`{}`)
	}
	wrapped, err := json.Marshal(map[string]string{"arguments": arguments})
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return wrapped
}

func text(content string) []block {
	if blank(content) {
		return nil
	}
	return []block{{Type: "text", Text: content}}
}

// blank reports whether a text is one that the API refuses as empty.
func blank(text string) bool { return strings.TrimSpace(text) == "" }

// The request and the reply as they go over the wire. The keys of a request stand
// in a fixed order, so that equal conversations have equal bytes.

type request struct {
	MaxTokens     int         `json:"max_tokens"`
	Messages      []message   `json:"messages"`
	Model         string      `json:"model"`
	Temperature   *float64    `json:"temperature,omitempty"`
	TopP          *float64    `json:"top_p,omitempty"`
	StopSequences []string    `json:"stop_sequences,omitempty"`
	System        []block     `json:"system,omitempty"`
	Thinking      *thinking   `json:"thinking,omitempty"`
	ToolChoice    *toolChoice `json:"tool_choice,omitempty"`
	Tools         []tool      `json:"tools,omitempty"`
	Stream        bool        `json:"stream,omitempty"`
}

type message struct {
	Content []block `json:"content"`
	Role    string  `json:"role"`
}

// block is a block of a message that is sent.
type block struct {
	ID           string          `json:"id,omitempty"`
	Input        json.RawMessage `json:"input,omitempty"`
	Name         string          `json:"name,omitempty"`
	Text         string          `json:"text,omitempty"`
	ToolUseID    string          `json:"tool_use_id,omitempty"`
	IsError      bool            `json:"is_error,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
	Content      []block         `json:"content,omitempty"`
	Type         string          `json:"type"`
	// raw is sent in place of everything else: thinking goes back unchanged.
	raw json.RawMessage
}

// MarshalJSON writes the block.
func (b block) MarshalJSON() ([]byte, error) {
	if b.raw != nil {
		return b.raw, nil
	}
	type plain block
	return json.Marshal(plain(b))
}

type cacheControl struct {
	Type string `json:"type"`
}

type thinking struct {
	Type         string `json:"type"`
	BudgetTokens int    `json:"budget_tokens"`
}

type toolChoice struct {
	Name                   string `json:"name,omitempty"`
	DisableParallelToolUse bool   `json:"disable_parallel_tool_use,omitempty"`
	Type                   string `json:"type"`
}

type tool struct {
	InputSchema  json.RawMessage `json:"input_schema"`
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
}

// answer is a message of the model.
type answer struct {
	Model   string            `json:"model"`
	Content []json.RawMessage `json:"content"`
	ending
	Usage tokens `json:"usage"`
}

type ending struct {
	StopReason  string `json:"stop_reason"`
	StopDetails struct {
		Explanation string `json:"explanation"`
	} `json:"stop_details"`
}

// content is a block of the model's message, or a part of one.
type content struct {
	Type        string          `json:"type"`
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Input       json.RawMessage `json:"input"`
	Text        string          `json:"text"`
	Thinking    string          `json:"thinking"`
	Signature   string          `json:"signature"`
	PartialJSON string          `json:"partial_json"`
}

// event is one of a stream.
type event struct {
	Type    string          `json:"type"`
	Index   int             `json:"index"`
	Message answer          `json:"message"`
	Block   json.RawMessage `json:"content_block"`
	Delta   struct {
		content
		ending
	} `json:"delta"`
	Usage tokens `json:"usage"`
}

// tokens is the usage; nil where it is not stated. Input does not count what was
// written to the cache or read from it.
type tokens struct {
	Input   *int `json:"input_tokens"`
	Written *int `json:"cache_creation_input_tokens"`
	Read    *int `json:"cache_read_input_tokens"`
	Output  *int `json:"output_tokens"`
}
