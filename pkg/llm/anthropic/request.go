package anthropic

import (
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// exchange is one reply: the request for it, and what it is read with.
type exchange struct {
	caller *caller
	req    llm.Request
	names  *llmhttp.ToolNames
	model  string
	caps   providers.Capabilities
	answer *llmhttp.AnswerTool // nil without an output schema
	params request
	// adjusted are the settings that were sent otherwise, and before is the digest of what
	// stands before the reply, empty where that does not matter. returned says that
	// thinking goes back.
	adjusted []events.Adjusted
	before   string
	returned bool
	// paused says that the provider wants to be asked to continue, and sofar is what came
	// before that, behind messages. sha256 is the digest of the first request's body.
	paused   bool
	sofar    reply
	messages []message
	sha256   string
}

// write writes the request in the API's words.
func (x *exchange) write() error {
	if x.model == "" {
		return llmhttp.NoModel()
	}
	x.params.Model = x.model
	if err := x.offer(); err != nil {
		return err
	}
	for _, m := range x.req.Messages {
		if m.Role == llm.RoleSystem {
			x.params.System = append(x.params.System, text(m.Content)...)
		}
	}
	x.standIn()
	x.fill(true)
	return nil
}

// fill writes what depends on the thinking of earlier replies, which goes back if returns
// says so.
func (x *exchange) fill(returns bool) {
	w := x.converse(returns)
	x.adjusted, x.params.Thinking, x.params.OutputConfig = nil, nil, nil
	// Thinking by a budget cannot begin in the middle of a turn: the API refuses it where
	// the calls that were answered last came without.
	x.sample(x.req.Sampling, !w.unthought)
	if returns && !x.returns() {
		w = x.converse(false)
	}
	x.choose()
	x.params.Messages, x.before, x.returned = w.messages, w.before.String(), w.returned
	x.markCache()
	x.messages = x.params.Messages
}

// Body writes the request for the wire.
func (x *exchange) Body(stream bool) ([]byte, error) {
	p := x.params
	p.Stream = stream
	return x.caller.http.Write(x.model, p)
}

// offer adds the request's tools, and the one that takes a structured answer.
func (x *exchange) offer() error {
	for _, raw := range x.req.ProviderTools {
		x.params.Tools = append(x.params.Tools, tool{raw: raw})
	}
	for _, t := range llmhttp.Described(x.req) {
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

// choose forces the answer where nothing else can be called, and the model lets itself be
// forced: none does that thinks.
func (x *exchange) choose() {
	if x.answer == nil || len(x.params.Tools) > 1 || x.thinks() || !x.caps.ForcedTools {
		return
	}
	x.params.ToolChoice = &toolChoice{Type: "tool", Name: x.answer.Name, DisableParallelToolUse: true}
}

// markCache marks what the next request begins with as well: the tools, the
// system prompt, and the conversation so far.
func (x *exchange) markCache() {
	p, mark := &x.params, &cacheControl{Type: "ephemeral", TTL: x.caps.CacheTTL}
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
