// Package contextedit has the tools by which a model edits its own context: it loads older
// messages and earlier results again, and searches earlier calls. They are offered if the
// context window is limited. No policy applies to them, since they reach only what the run
// already holds.
//
// The planner answers their calls itself. Each call becomes one event, which holds the
// call and its answer.
package contextedit

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/truncate"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The names of the tools.
const (
	loadMessages    = events.ReservedPrefix + "load_messages"
	searchToolCalls = events.ReservedPrefix + "search_tool_calls"
	loadToolResult  = events.ReservedPrefix + "load_tool_result"
)

// callTools are the tools as the model sees them, by name. textTools are the same for a
// model that uses the text protocol.
var (
	callTools = toolsOf("They stay until you have answered.")
	textTools = toolsOf(fmt.Sprintf("They stay for your next %d replies.", reducer.EditReplies))
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

// Offered reports whether a run's model may edit its own context.
func Offered(mem *reducer.Memory) bool {
	return mem.ReactContext != nil && mem.ReactContext.ContextWindowSize > 0
}

// Tools returns the tools as the run's model sees them. They must not be changed.
func Tools(mem *reducer.Memory) []llm.Tool {
	if mem.SpeaksText() {
		return textTools
	}
	return callTools
}

// Is reports whether a tool has the name.
func Is(name string) bool { return toolOf(name) != nil }

// toolOf returns a tool by name, nil if there is none.
func toolOf(name string) *llm.Tool {
	for i := range callTools {
		if callTools[i].Name == name {
			return &callTools[i]
		}
	}
	return nil
}

// Edits answers the calls of one reply, in order. It holds what they need of the memory at
// the time of the request, and changes nothing.
type Edits struct {
	validator tool.Validator
	// total is how many messages there are, window how many are shown after the calls so
	// far, expand how many more are shown by default.
	total, window, expand int
	// answered are the calls that the model wants to see and that have a result, by the
	// ids that it gave.
	answered map[string]pastResult
	history  history
	loads
}

// pastResult is a call that has a result, and how many bytes it takes to show both.
type pastResult struct {
	id    string
	bytes int
}

// New copies what the calls of one reply need from the run's memory, under the run's lock.
// Its time does not depend on the length of the run. validator checks the calls'
// arguments.
func New(mem *reducer.Memory, validator tool.Validator, calls []events.Call) *Edits {
	e := &Edits{
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
			e.history.collect(mem)
		}
	}
	return e
}

// wantedCalls returns the ids in a call's arguments; none if those are wrong.
func wantedCalls(text string) []string {
	var in struct {
		CallIDs []string `json:"call_ids"`
	}
	arguments(text, &in)
	return in.CallIDs[:min(len(in.CallIDs), maxWanted)]
}

// maxWanted is how many calls are shown again at once, as the schema says.
const maxWanted = 100

// Event answers the next call of the reply, which must be of one of the tools, and returns
// its event.
func (e *Edits) Event(call events.Call) events.Payload {
	reply := &events.ContextReply{Calls: []events.Call{call}, Part: true}
	answer := func(text, code string) {
		reply.Results = []events.Answer{{ID: call.ID, Observation: text, Code: code}}
	}
	if err := e.validator.Validate(toolOf(call.Name).Schema, call.Arguments); err != nil {
		answer(fmt.Sprintf("%sinvalid arguments for %s: %s", reducer.ErrorPrefix, call.Name, Clip(maxSaid, err.Error())), tool.CodeInvalidArguments)
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

// arguments reads arguments that satisfy their schema. Empty text means no arguments.
func arguments(text string, into any) {
	_ = json.Unmarshal([]byte(text), into)
}

// Clip makes text from outside valid UTF-8 of at most so many bytes.
func Clip(most int, text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if begin := truncate.Prefix(text, int64(most)); begin != text {
		return begin + "…"
	}
	return text
}

// maxSaid bounds an error message, in bytes.
const maxSaid = 4000
