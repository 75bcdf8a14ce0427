package planner

import (
	"encoding/json"
	"fmt"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The tools by which a model edits its own context. They are offered where the
// context window is limited and nowhere else, and are subject to no policy: they
// reach nothing but what the run has said already.
const (
	loadMessages    = events.ReservedPrefix + "load_messages"
	searchToolCalls = events.ReservedPrefix + "search_tool_calls"
	loadToolResult  = events.ReservedPrefix + "load_tool_result"
)

// internalTools are those tools as the model is told of them, by name; textTools are
// the same for a model that speaks the text protocol.
var (
	internalTools = toolsOf("They stay until you have answered.")
	textTools     = toolsOf(fmt.Sprintf("They stay for your next %d replies.", reducer.EditReplies))
)

func toolsOf(stay string) []llm.Tool {
	return []llm.Tool{
		{
			Name: loadMessages,
			Description: "Shows older messages of this conversation that you do not see now. " + stay +
				" Without count it shows as many as usual.",
			Schema: json.RawMessage(`{"type":"object","properties":{"count":{"type":"integer","minimum":1,` +
				`"description":"how many older messages to show"}},"additionalProperties":false}`),
		},
		{
			Name:        loadToolResult,
			Description: "Shows earlier tool calls with their results again. " + stay,
			Schema: json.RawMessage(`{"type":"object","properties":{"call_ids":{"type":"array","items":{"type":"string"},"minItems":1,"maxItems":100,` +
				`"description":"the ids of the calls, as ` + searchToolCalls + ` lists them"}},"required":["call_ids"],"additionalProperties":false}`),
		},
		{
			Name: searchToolCalls,
			Description: "Lists earlier tool calls of this conversation, newest first, without their results; show those with " +
				loadToolResult + ".",
			Schema: json.RawMessage(`{"type":"object","properties":{` +
				`"query":{"type":"string","description":"a text in the arguments or the result, whatever its case"},` +
				`"name":{"type":"string","description":"the name of the tool"},` +
				`"limit":{"type":"integer","minimum":1,"maximum":100,"description":"how many to list, default 20"}},"additionalProperties":false}`),
		},
	}
}

// internalOf are the tools as the run's model is told of them.
func internalOf(mem *reducer.Memory) []llm.Tool {
	if mem.SpeaksText() {
		return textTools
	}
	return internalTools
}

// offersInternal reports whether a run's model may edit its own context.
func offersInternal(mem *reducer.Memory) bool {
	return mem.ReactContext != nil && mem.ReactContext.ContextWindowSize > 0
}

// internalTool returns one of the tools by name, nil if it is none.
func internalTool(name string) *llm.Tool {
	for i := range internalTools {
		if internalTools[i].Name == name {
			return &internalTools[i]
		}
	}
	return nil
}

// edits answers the calls of one reply, in order. It holds what they need of the
// memory that the reply was asked for, and changes nothing.
type edits struct {
	validator tool.Validator
	// total is how many messages there are, window how many are shown after the
	// calls so far, expand how many more are shown where the model does not say.
	total, window, expand int
	// answered are those of the calls that the model wants to see which have a
	// result, by the ids that it gave.
	answered map[string]pastResult
	history  history
	loads
}

// pastResult is a call that has a result, and how many bytes it takes to show both.
type pastResult struct {
	id    string
	bytes int
}

// newEdits takes what the calls need, under the run's lock. It is quick however
// long the run is.
func newEdits(mem *reducer.Memory, validator tool.Validator, calls []events.Call) *edits {
	e := &edits{
		validator: validator, total: mem.Windowed(), expand: mem.Config.ExpandContextWindowSize, answered: map[string]pastResult{},
		history: history{left: searchBytes, room: listedBytes}, loads: newLoads(mem),
	}
	if mem.ReactContext != nil {
		e.window = mem.ReactContext.ContextWindowSize
	}
	known := listed{mem: mem}
	for _, call := range calls {
		switch call.Name {
		case loadToolResult:
			for _, wanted := range wantedCalls(call.Arguments) {
				id := known.as(wanted)
				if record := mem.ToolCalls[id]; record != nil && record.Result != nil {
					e.answered[wanted] = pastResult{id, mem.CallBytes(id)}
				}
			}
		case searchToolCalls:
			e.history.take(mem)
		}
	}
	return e
}

// wantedCalls are the ids in a call's arguments; none where those are wrong.
func wantedCalls(text string) []string {
	var in struct {
		CallIDs []string `json:"call_ids"`
	}
	arguments(text, &in)
	return in.CallIDs[:min(len(in.CallIDs), maxWanted)]
}

// maxWanted is how many calls are shown again at once: what the schema says.
const maxWanted = 100

// event is the event that a call is, with the answer in its reply.
func (e *edits) event(call events.Call) events.Payload {
	reply := &events.ContextReply{Calls: []events.Call{call}, Part: true}
	answer := func(text, code string) {
		reply.Results = []events.Answer{{ID: call.ID, Observation: text, Code: code}}
	}
	if err := e.validator.Validate(internalTool(call.Name).Schema, call.Arguments); err != nil {
		answer(fmt.Sprintf("%sinvalid arguments for %s: %s", reducer.ErrorPrefix, call.Name, clean(err.Error())), tool.CodeInvalidArguments)
		if call.Name == loadMessages {
			return &events.ContextWindowExpanded{ContextReply: reply}
		}
		return &events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: reply}
	}
	switch call.Name {
	case loadMessages:
		increment, text, code := e.loadMessages(call.Arguments)
		answer(text, code)
		return &events.ContextWindowExpanded{Increment: increment, ContextReply: reply}
	case loadToolResult:
		ids, text, code := e.loadResults(call.Arguments)
		answer(text, code)
		return &events.ToolCallsAddedToContext{CallIDs: ids, ContextReply: reply}
	}
	answer(e.history.search(call.Arguments), tool.CodeOK)
	return &events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: reply}
}

// arguments reads arguments that satisfy their schema; no text at all is no
// arguments.
func arguments(text string, into any) {
	_ = json.Unmarshal([]byte(text), into)
}

// split parts a reply's calls into those of Moorebus' own tools and the others.
func (j *judge) split(calls []events.Call) (internal, external []events.Call) {
	for _, call := range calls {
		if j.offersInternal && internalTool(call.Name) != nil {
			internal = append(internal, call)
		} else {
			external = append(external, call)
		}
	}
	return internal, external
}

// contextEvents are the events of a reply with calls of Moorebus' own tools: one
// for each of them, and last that of the other calls, if there are any. The last
// one is what counts as the reply.
func (j *judge) contextEvents(internal []events.Call, reply *events.ToolCallReply, rest events.Payload) []events.Payload {
	all := make([]events.Payload, 0, len(internal)+1)
	var e *edits
	j.look(func(mem *reducer.Memory) { e = newEdits(mem, j.validator, internal) })
	for _, call := range internal {
		all = append(all, e.event(call))
	}
	if rest != nil {
		return append(all, rest)
	}
	last := events.ReplyOf(all[len(all)-1])
	last.Part = false
	last.Content, last.MessageID, last.Confidence = reply.Content, reply.MessageID, reply.Confidence
	last.Model, last.Usage, last.Chunks, last.Reasoning = reply.Model, reply.Usage, reply.Chunks, reply.Reasoning
	return all
}
