package planner

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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

// internalTools are those tools as the model is told of them, by name.
var internalTools = []llm.Tool{
	{
		Name: loadMessages,
		Description: "Shows older messages of this conversation that you do not see now. They stay until you have answered." +
			" Without count it shows as many as usual.",
		Schema: json.RawMessage(`{"type":"object","properties":{"count":{"type":"integer","minimum":1,` +
			`"description":"how many older messages to show"}},"additionalProperties":false}`),
	},
	{
		Name:        loadToolResult,
		Description: "Shows earlier tool calls with their results again. They stay until you have answered.",
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
	answered map[string]string
	history  history
}

// newEdits takes what the calls need, under the run's lock. It is quick however
// long the run is.
func newEdits(mem *reducer.Memory, validator tool.Validator, calls []events.Call) *edits {
	e := &edits{
		validator: validator, total: mem.Windowed(), expand: mem.Config.ExpandContextWindowSize, answered: map[string]string{},
		history: history{left: searchBytes},
	}
	if mem.ReactContext != nil {
		e.window = mem.ReactContext.ContextWindowSize
	}
	for _, call := range calls {
		switch call.Name {
		case loadToolResult:
			for _, id := range wantedCalls(call.Arguments) {
				known := listedAs(mem, id)
				if record := mem.ToolCalls[known]; record != nil && record.Result != nil {
					e.answered[id] = known
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
	answer := func(text string) {
		reply.Results = []events.Answer{{ID: call.ID, Observation: text, Code: tool.CodeOK}}
	}
	if err := e.validator.Validate(internalTool(call.Name).Schema, call.Arguments); err != nil {
		answer(fmt.Sprintf("%sinvalid arguments for %s: %s", reducer.ErrorPrefix, call.Name, clean(err.Error())))
		reply.Results[0].Code = tool.CodeInvalidArguments
		if call.Name == loadMessages {
			return &events.ContextWindowExpanded{ContextReply: reply}
		}
		return &events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: reply}
	}
	switch call.Name {
	case loadMessages:
		increment, text := e.loadMessages(call.Arguments)
		answer(text)
		return &events.ContextWindowExpanded{Increment: increment, ContextReply: reply}
	case loadToolResult:
		ids, text, found := e.loadResults(call.Arguments)
		answer(text)
		if !found {
			reply.Results[0].Code = tool.CodeNotFound
		}
		return &events.ToolCallsAddedToContext{CallIDs: ids, ContextReply: reply}
	}
	answer(e.history.search(call.Arguments))
	return &events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: reply}
}

// arguments reads arguments that satisfy their schema; no text at all is no
// arguments.
func arguments(text string, into any) {
	_ = json.Unmarshal([]byte(text), into)
}

func (e *edits) loadMessages(text string) (increment int, answer string) {
	var in struct {
		Count float64 `json:"count"` // a schema's integer may be written 5.0
	}
	arguments(text, &in)
	total := e.total
	increment = int(min(in.Count, float64(total)))
	if increment < 1 {
		increment = max(1, e.expand)
	}
	before := min(e.window, total)
	e.window = max(e.window, min(e.window+increment, total))
	now := min(e.window, total)
	if now <= before {
		return increment, fmt.Sprintf("All %d messages of the conversation are shown already.", total)
	}
	return increment, fmt.Sprintf("%d older messages are shown: now the last %d of %d.", now-before, now, total)
}

// loadResults names the calls that are shown again. What the run does not know is
// said, and is in the way of nothing.
func (e *edits) loadResults(text string) (ids []string, answer string, found bool) {
	ids = []string{}
	var shown, unknown []string
	for _, wanted := range wantedCalls(text) {
		id, known := e.answered[wanted]
		switch {
		case !known:
			unknown = append(unknown, fmt.Sprintf("%.100q", wanted))
		case !slices.Contains(ids, id):
			ids, shown = append(ids, id), append(shown, cleanTo(listedID, id))
		}
	}
	if len(ids) > 0 {
		answer = "Shown: " + strings.Join(shown, ", ") + "."
	}
	if len(unknown) > 0 {
		if answer != "" {
			answer += " "
		}
		answer = reducer.ErrorPrefix + answer + "No such tool call: " + strings.Join(unknown, ", ") + ". " + searchToolCalls + " lists them."
	}
	return ids, clean(answer), len(unknown) == 0
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
