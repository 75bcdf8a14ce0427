// Package contextedit has the tools by which a model edits its own context: it loads older
// messages and earlier results again, and searches earlier calls. They are offered if the
// context window is limited. One more tool reads results that were cut, and is offered when
// there is one. No policy applies to them, since they reach only what the run already holds.
//
// The planner answers their calls itself. Each call becomes one event, which holds the
// call and its answer.
package contextedit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/codes"
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
		resultTool(),
	}
}

// Tools returns the tools that the run's model has, as it sees them. They must not be changed.
func Tools(mem *reducer.Memory) []llm.Tool {
	tools := callTools
	if mem.Control.Agent.LLM.Text {
		tools = textTools
	}
	begin, end := 0, len(tools)
	if mem.ReactContext == nil || mem.ReactContext.ContextWindowSize == 0 {
		begin = len(tools) - 1
	}
	if !hasCut(mem) {
		end--
	}
	return tools[begin:end:end]
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
	cut      cut
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
// arguments. blob reads from the object store, without the lock; nil without an error: it
// is not there.
func New(mem *reducer.Memory, validator tool.Validator, blob func(events.Ref) ([]byte, error), calls []events.Call) *Edits {
	e := &Edits{
		validator: validator, total: mem.Windowed(), expand: mem.Config.ExpandContextWindowSize, answered: map[string]pastResult{},
		history: history{left: searchBytes, room: listedBytes}, loads: newLoads(mem),
		cut: cut{blob: blob, wanted: map[string]cutResult{}},
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
		case readResult:
			e.cut.want(mem, &known, call.Arguments)
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
		answer(fmt.Sprintf("%sinvalid arguments for %s: %s", codes.ErrorPrefix, call.Name, Clip(maxSaid, err.Error())), tool.CodeInvalidArguments)
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
	case readResult:
		text, code, left := e.cut.result(call.Arguments, e.room)
		e.room = left
		answer(text, code)
		return &events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: reply}
	}
	answer(e.history.search(call.Arguments), codes.OK)
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

// loadBytes bounds what one reply may show again, loadedBytes what is shown again at any
// time: older messages, and calls with their results. A result that is kept complete fits
// alone.
const (
	loadBytes   = 256<<10 + 16<<10
	loadedBytes = 2 * loadBytes
)

// loads is what one reply may still show again.
type loads struct {
	room int
	// older are the sizes of the messages before the window, the newest first. cut says
	// that there are more, which do not fit.
	older []int
	cut   bool
	// loaded are the calls that are already shown again.
	loaded map[string]bool
}

// newLoads copies what is shown of a run, under its lock.
func newLoads(mem *reducer.Memory) loads {
	loaded, bytes := mem.Loaded()
	l := loads{room: max(0, min(loadBytes, loadedBytes-bytes)), loaded: loaded}
	l.older, l.cut = mem.Older(l.room)
	return l
}

// messages reserves space for that many older messages and returns how many fit.
func (l *loads) messages(wanted int) int {
	for n := range wanted {
		switch {
		case len(l.older) == 0 && !l.cut:
			return wanted
		case len(l.older) == 0 || l.older[0] > l.room:
			l.cut, l.older = true, nil // what is older does not fit either
			return n
		}
		l.room -= l.older[0]
		l.older = l.older[1:]
	}
	return wanted
}

// call reserves space for a call and reports whether it fits.
func (l *loads) call(c pastResult) bool {
	if l.loaded[c.id] {
		return true
	}
	if c.bytes > l.room {
		return false
	}
	l.room -= c.bytes
	l.loaded[c.id] = true
	return true
}

// tooLarge tells the model that something does not fit.
var tooLarge = fmt.Sprintf("At most %d KiB are shown at once and %d KiB in all: load fewer.", loadBytes>>10, loadedBytes>>10)

func (e *Edits) loadMessages(text string) (increment int, answer, code string) {
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
	wanted := min(before+increment, total) - before
	if wanted == 0 {
		return increment, fmt.Sprintf("All %d messages of the conversation are shown already.", total), codes.OK
	}
	fit := e.messages(wanted)
	if fit == 0 {
		return 0, codes.ErrorPrefix + "No older message is shown: the next one is too large. " + tooLarge, codes.TooLarge
	}
	if fit < wanted {
		increment = fit
	}
	e.window = before + fit
	answer = fmt.Sprintf("%d older messages are shown: now the last %d of %d.", fit, e.window, total)
	if fit < wanted {
		answer += " The one before them is too large. " + tooLarge
	}
	return increment, answer, codes.OK
}

// loadResults returns the calls that are shown again. The answer names unknown calls and
// calls that do not fit; the others are shown.
func (e *Edits) loadResults(text string) (ids []string, answer, code string) {
	ids, code = []string{}, codes.OK
	var large, shown, unknown, says []string
	for _, wanted := range wantedCalls(text) {
		past, known := e.answered[wanted]
		switch {
		case !known:
			unknown = append(unknown, fmt.Sprintf("%.100q", wanted))
		case slices.Contains(ids, past.id):
		case !e.call(past):
			large = append(large, fmt.Sprintf("%s (%d bytes)", Clip(listedID, past.id), past.bytes))
		default:
			ids, shown = append(ids, past.id), append(shown, Clip(listedID, past.id))
		}
	}
	if len(large) > 0 {
		code = codes.TooLarge
		says = append(says, fmt.Sprintf("%d are not shown, since they are too large. %s Not shown: %s.", len(large), tooLarge, firstOf(large)))
	}
	if len(ids) > 0 {
		says = append(says, "Shown: "+strings.Join(shown, ", ")+".")
	}
	if len(unknown) > 0 {
		code = tool.CodeNotFound
		says = append(says, "No such tool call: "+strings.Join(unknown, ", ")+". "+searchToolCalls+" lists them.")
	}
	answer = strings.Join(says, " ")
	if code != codes.OK {
		answer = codes.ErrorPrefix + answer
	}
	return ids, Clip(maxSaid, answer), code
}

// firstOf lists the first of some names, and how many more there are.
func firstOf(names []string) string {
	const most = 5
	text := strings.Join(names[:min(len(names), most)], ", ")
	if rest := len(names) - most; rest > 0 {
		text += fmt.Sprintf(", and %d more", rest)
	}
	return text
}

const (
	searchLimit = 20
	// searchArguments and listedID bound what is listed of a call's arguments and id, in
	// bytes.
	searchArguments = 200
	listedID        = 200
	// searchBytes bounds the text that the searches of one reply read in all. leastBytes
	// is the least that a call counts for.
	searchBytes = 16 << 20
	leastBytes  = 64
	// listedBytes bounds what the searches of one reply list in all, in about bytes.
	listedBytes = 256 << 10
)

// history is what searches read: the run's answered calls, newest first, up to a bound for
// one reply. It is searched without the run's lock.
type history struct {
	collected bool
	calls     []pastCall
	// older is how many calls there are besides those, left how much text may still be
	// searched, room how much may still be listed.
	older, left, room int
}

// pastCall is a call with its result.
type pastCall struct {
	id, name, arguments, result string
	success                     bool
}

func (c *pastCall) bytes() int {
	return max(leastBytes, len(c.name)+len(c.arguments)+len(c.result))
}

// collect copies the calls, under the run's lock. Texts are not copied.
func (h *history) collect(mem *reducer.Memory) {
	if h.collected {
		return
	}
	h.collected = true
	order, room := mem.Control.CallOrder, searchBytes
	for i := len(order) - 1; i >= 0; i-- {
		record := mem.ToolCalls[order[i]]
		if record == nil || record.Result == nil {
			continue
		}
		call := pastCall{
			id: order[i], name: record.Name, arguments: record.Parameters,
			result: record.Result.Text(), success: record.Result.Success != nil,
		}
		if room -= call.bytes(); room < 0 {
			h.older = i + 1
			return
		}
		h.calls = append(h.calls, call)
	}
}

// found is a tool call in the answer to a search.
type found struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Success   bool   `json:"success"`
}

// search lists the run's answered calls that match, newest first.
func (h *history) search(text string) string {
	in := struct {
		Query, Name string
		Limit       float64
	}{Limit: searchLimit}
	arguments(text, &in)
	query := strings.ToLower(in.Query)
	list := struct {
		Calls []found `json:"calls"`
		// More is how many further calls match, NotSearched how many older calls were not
		// searched.
		More        int `json:"more"`
		NotSearched int `json:"not_searched,omitempty"`
	}{Calls: []found{}, NotSearched: h.older}
	for i := range h.calls {
		call := &h.calls[i]
		if h.left -= call.bytes(); h.left < 0 {
			list.NotSearched += len(h.calls) - i
			break
		}
		switch {
		case in.Name != "" && call.name != in.Name || !call.matches(query):
		case len(list.Calls) >= int(in.Limit) || h.room <= 0:
			list.More++
		default:
			list.Calls = append(list.Calls, found{
				ID: Clip(listedID, call.id), Name: call.name, Arguments: Clip(searchArguments, call.arguments), Success: call.success,
			})
			h.room -= leastBytes + len(call.name) + min(len(call.id), listedID) + min(len(call.arguments), searchArguments)
		}
	}
	return inJSON(list)
}

// inJSON writes a list for the model.
func inJSON(list any) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(list); err != nil {
		return codes.ErrorPrefix + "the calls cannot be listed"
	}
	return strings.TrimSpace(out.String())
}

func (c *pastCall) matches(query string) bool {
	return query == "" || strings.Contains(strings.ToLower(c.name+" "+c.arguments), query) ||
		strings.Contains(strings.ToLower(c.result), query)
}

// listed finds the calls that a search lists under ids, in the memory that the search
// read.
type listed struct {
	mem *reducer.Memory
	// cut are the calls whose ids are too long to be listed whole, by the listed part; the
	// newest if several are equal. nil until one is needed.
	cut map[string]string
}

// as returns the call that is listed under an id: the call with that id, or the provider's
// id. If the id was too long to be listed whole, it is the newest call that begins with
// it.
func (l *listed) as(id string) string {
	id = callname.Find(l.mem, id)
	begin, cut := strings.CutSuffix(id, "…")
	if l.mem.ToolCalls[id] != nil || !cut || len(begin) > listedID || len(begin) < listedID-3 {
		return id
	}
	if l.cut == nil {
		l.cut = map[string]string{}
		for _, known := range l.mem.Control.CallOrder {
			if len(known) > listedID && l.mem.ToolCalls[known] != nil {
				l.cut[Clip(listedID, known)] = known
			}
		}
	}
	if known, ok := l.cut[id]; ok {
		return known
	}
	return id
}
