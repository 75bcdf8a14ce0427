package agui

import (
	"cmp"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Translator makes the protocol's events of a run, from its first event on. Nothing comes out
// before [Translator.Join] or [Translator.Answer]. It is not safe for concurrent use.
type Translator struct {
	table  *reducer.Table
	thread string
	// request is the one that asked for the turn; nil: a client joined, and sees all turns.
	request *Request

	// speaks says that events are sent, answers that they are from the next turn on. tells says that
	// the next turn begins with all messages.
	speaks, answers, tells bool
	out                    []Event

	n  uint64
	at int64 // the time of event n
	// turn is the one that the run is in, or was in last. open says that it continues; used is
	// what the run had used when it began.
	turn turn
	open bool
	used reducer.TotalUsage
	// done says that the turn that was asked for is over.
	done bool
	// suspended are the interrupts of sub-runs with which the turn ends.
	suspended []Interrupt

	script transcript
	differ *record.Differ // of what was shown of the memory
	step   events.State
	// calls is how many of the run's calls are known, unanswered are those without a result,
	// agents those that sub-agents work on. parent is the message of the last reply.
	calls              int
	unanswered, agents []string
	// undecided are the decisions that the turn's request brings and that are not in the log.
	undecided []string
	parent    string
	settled   map[string]bool
	live      live
}

// Request is the request of a client that wants one turn.
type Request struct {
	// Messages are those that the client has.
	Messages []Message
	// Made are the ids of messages that the run has by now, if the turn is streamed again.
	Made map[string]bool
}

// live is the message that a model is writing.
type live struct {
	id                string
	text, reason      strings.Builder
	writing, thinking bool
}

// NewTranslator returns a Translator of a run in a client's thread. request is nil for a
// client that joins.
func NewTranslator(table *reducer.Table, thread string, request *Request) *Translator {
	return &Translator{table: table, thread: thread, request: request, settled: map[string]bool{}}
}

// Take returns the events that came out since the last Take.
func (t *Translator) Take() []Event {
	out := t.out
	t.out = nil
	return out
}

// Open reports whether a turn continues.
func (t *Translator) Open() bool { return t.open && !t.done }

// Suspend ends the turn: the run's sub-runs wait for a human, and nothing else works. mem is the
// memory after the run's last event.
func (t *Translator) Suspend(mem *reducer.Memory, interrupts []Interrupt) {
	t.suspended = interrupts
	t.finish(mem)
}

func (t *Translator) push(e Event) {
	if t.speaks {
		e.N, e.Timestamp = t.n, t.at
		t.out = append(t.out, e)
	}
}

// Answer lets events come out from the next event on, which opens the turn that was asked for.
func (t *Translator) Answer() { t.answers = true }

// Join lets events come out: first what the client needs to follow the run after the event that
// mem is the memory of. more says that the run has later events.
func (t *Translator) Join(mem *reducer.Memory, more bool) error {
	t.speaks, t.tells = true, true
	if !t.open && more {
		return nil // the next event opens a turn
	}
	ends := !t.open
	if err := t.begin(mem); err != nil {
		return err
	}
	if t.live.thinking {
		t.push(Event{Type: reasoningStart, MessageID: reasoningID(t.live.id)})
		t.push(Event{Type: reasonStart, MessageID: reasoningID(t.live.id), Role: roleReasoning})
	}
	if t.live.writing {
		t.push(Event{Type: textStart, MessageID: t.live.id, Role: roleAssistant})
	}
	if ends {
		t.finish(mem)
	}
	return nil
}

// begin opens the turn, or shows that it is open.
func (t *Translator) begin(mem *reducer.Memory) error {
	if !t.open {
		t.open, t.used = true, mem.TotalUsage
	}
	if !t.speaks {
		return nil
	}
	t.push(Event{Type: runStarted, ThreadID: t.thread, RunID: t.turn.RunID, ProtocolVersion: protocolVersion})
	state, err := stateOf(mem)
	if err != nil {
		return err
	}
	if t.differ, err = record.NewDiffer(mem, hidden...); err != nil {
		return err
	}
	t.push(Event{Type: stateSnapshot, Snapshot: state})
	if t.tells || t.request != nil && t.lacks() {
		t.tell()
	}
	t.tells = false
	if t.step != "" {
		t.push(Event{Type: stepStarted, StepName: string(t.step)})
	}
	for _, call := range t.agents {
		t.pushAgent(mem, call)
	}
	return nil
}

// tell sends all messages.
func (t *Translator) tell() {
	var client []Message
	if t.request != nil {
		client = t.request.Messages
	}
	all := t.script.snapshot(client)
	t.push(Event{Type: messagesSnapshot, Messages: &all})
}

// lacks reports whether the client that asks for the turn does not have the messages before it
// as they are. It forgets those of the client's messages that the turn will make again.
func (t *Translator) lacks() bool {
	r := t.request
	before := len(r.Messages)
	blank := false
	r.Messages = slices.DeleteFunc(slices.Clone(r.Messages), func(m Message) bool {
		if !r.Made[m.ID] || t.script.find(m.ID) >= 0 || t.brings(m.ID) {
			return false
		}
		blank = blank || m.Role == roleReasoning
		return m.Role != roleReasoning // clients keep the messages that are not sent
	})
	for i := range r.Messages {
		if m := &r.Messages[i]; m.Role == roleReasoning && r.Made[m.ID] && t.script.find(m.ID) < 0 {
			*m = Message{ID: m.ID, Role: m.Role}
		}
	}
	return blank || len(r.Messages) < before || slices.ContainsFunc(t.script.messages, func(m Message) bool {
		return m.Role != roleReasoning && !slices.ContainsFunc(r.Messages, func(has Message) bool { return has.ID == m.ID })
	})
}

// brings reports whether the turn's request brings the message.
func (t *Translator) brings(id string) bool {
	if slices.Contains(t.turn.Messages, id) {
		return true
	}
	for _, message := range t.turn.Results {
		if message == id {
			return true
		}
	}
	return false
}

// own reports whether the client that is spoken to brought the message itself.
func (t *Translator) own(id string) bool { return t.request != nil && t.brings(id) }

// Event translates the run's next event. mem is the memory after it, body the stored body. A
// record that is no legal event has e nil.
func (t *Translator) Event(mem *reducer.Memory, e *events.Event, body []byte) error {
	if e != nil {
		next, opens := opens(e)
		if opens && t.open { // it ended with the event before
			t.Suspend(mem, next.Interrupts)
		}
		t.at = e.Time.UnixMilli()
		if opens {
			t.turn, t.speaks, t.undecided = next, t.speaks || t.answers, slices.Clone(next.Decisions)
		}
	}
	t.n = mem.N
	if !t.open {
		if err := t.begin(mem); err != nil {
			return err
		}
	}
	if e == nil {
		return t.changed(mem)
	}
	switch p := e.Data.(type) {
	case *events.Start:
		t.user(cmp.Or(p.MessageID, e.ID), p.Task, p.Parts)
	case *events.UserMessage:
		if t.script.find(p.MessageID) < 0 {
			t.user(p.MessageID, events.Shown(p.Content, p.Parts), p.Parts)
		}
	case *events.ToolCallStarted:
		t.subagent(mem, p.CallID)
	default:
		t.reply(e, body)
	}
	t.decided(mem, e)
	t.newCalls(mem)
	t.results(mem)
	t.moveTo(mem.State)
	if err := t.changed(mem); err != nil {
		return err
	}
	if rests(t.table, mem) && len(t.undecided) == 0 && t.turn.came(mem) {
		t.finish(mem)
	}
	return nil
}

// changed sends what changed in the state.
func (t *Translator) changed(mem *reducer.Memory) error {
	if !t.speaks {
		return nil
	}
	ops, err := t.differ.Next(mem)
	if err == nil && len(ops) > 0 {
		t.push(Event{Type: stateDelta, Delta: ops})
	}
	return err
}

// decided notes which decisions of the turn's request are in the log.
func (t *Translator) decided(mem *reducer.Memory, e *events.Event) {
	if mem.State != events.WaitingForHuman {
		t.undecided = nil
	}
	if p, ok := e.Data.(*events.HumanDecision); ok {
		t.undecided = slices.DeleteFunc(t.undecided, func(id string) bool { return id == p.CallID })
	}
}

func (t *Translator) user(id, text string, parts []events.Part) {
	t.script.user(id, text, parts)
	if !t.own(id) {
		t.push(Event{Type: textStart, MessageID: id, Role: roleUser})
		t.pushText(textContent, id, text)
		t.push(Event{Type: textEnd, MessageID: id})
	}
}

func (t *Translator) pushText(typ, id, text string) {
	if text != "" {
		t.push(Event{Type: typ, MessageID: id, Delta: text})
	}
}

// newCalls sends the calls that the model has made.
func (t *Translator) newCalls(mem *reducer.Memory) {
	order := mem.Control.CallOrder
	for ; t.calls < len(order); t.calls++ {
		id := order[t.calls]
		call := mem.ToolCalls[id]
		if call == nil {
			continue // Moorebus' own tools, which only the model sees
		}
		t.unanswered = append(t.unanswered, id)
		t.script.call(t.parent, ToolCall{ID: id, Type: "function", Function: FunctionCall{Name: call.Name, Arguments: call.Parameters}})
		t.push(Event{Type: toolCallStart, ToolCallID: id, ToolCallName: call.Name, ParentMessageID: t.parent})
		if call.Parameters != "" {
			t.push(Event{Type: toolCallArgs, ToolCallID: id, Delta: call.Parameters})
		}
		t.push(Event{Type: toolCallEnd, ToolCallID: id})
	}
}

// results sends the results of calls that have got one.
func (t *Translator) results(mem *reducer.Memory) {
	t.unanswered = slices.DeleteFunc(t.unanswered, func(id string) bool {
		call := mem.ToolCalls[id]
		if call == nil || call.Result == nil {
			return false
		}
		text := call.Result.Text()
		if slices.Contains(t.agents, id) {
			t.agents = slices.DeleteFunc(t.agents, func(open string) bool { return open == id })
			if call.Result.Failed != nil {
				t.push(Event{Type: subagentError, SubagentRunID: runid.Child(mem.RunID, id), Message: text})
			} else {
				t.push(Event{Type: subagentFinished, SubagentRunID: runid.Child(mem.RunID, id), Outcome: &Outcome{Type: "success"}})
			}
		}
		message := cmp.Or(t.turn.Results[id], mem.RunID+":"+id)
		t.script.result(message, id, text)
		if !t.own(message) {
			t.push(Event{Type: toolCallResult, MessageID: message, ToolCallID: id, Content: &text, Role: roleTool})
		}
		return true
	})
}

// subagent sends that a sub-agent works on a call, if one does.
func (t *Translator) subagent(mem *reducer.Memory, id string) {
	if call := mem.Call(id); call != nil && call.Delegated() && !call.HandedOff && !slices.Contains(t.agents, id) {
		t.agents = append(t.agents, id)
		t.pushAgent(mem, id)
	}
}

func (t *Translator) pushAgent(mem *reducer.Memory, id string) {
	t.push(Event{Type: subagentStarted, SubagentRunID: runid.Child(mem.RunID, id), Name: mem.ToolCalls[id].Name, ParentToolCallID: id})
}

// moveTo sends that a step ended and another one began: the states in which the run works.
func (t *Translator) moveTo(state events.State) {
	if t.table.Terminal(state) || state == events.WaitingForUser || state == events.WaitingForHuman {
		state = ""
	}
	if state == t.step {
		return
	}
	if t.step != "" {
		t.push(Event{Type: stepFinished, StepName: string(t.step)})
	}
	if t.step = state; state != "" {
		t.push(Event{Type: stepStarted, StepName: string(state)})
	}
}

// finish ends the turn.
func (t *Translator) finish(mem *reducer.Memory) {
	t.drop()
	if t.step != "" { // a call waits for the client; the next turn continues there
		t.push(Event{Type: stepFinished, StepName: string(t.step)})
	}
	for _, id := range t.agents {
		t.push(Event{Type: subagentFinished, SubagentRunID: runid.Child(mem.RunID, id), Outcome: &Outcome{Type: "suspended"}})
	}
	t.open = false
	defer func() {
		if t.request != nil && t.speaks {
			t.done, t.speaks, t.answers = true, false, false
		}
	}()
	usage := []Usage{{
		Input: mem.TotalUsage.Input - t.used.Input, Output: mem.TotalUsage.Output - t.used.Output,
		Total: mem.TotalUsage.Total - t.used.Total, Cached: mem.TotalUsage.Cached - t.used.Cached,
	}}
	if mem.State == events.Errored {
		e := Event{Type: runError, Message: "the run failed", Usage: usage}
		if mem.Error != nil {
			e.Message, e.Code = cmp.Or(mem.Error.Message, e.Message), mem.Error.Code
		}
		t.push(e)
		return
	}
	outcome := outcomeOf(mem)
	if len(t.suspended) > 0 {
		outcome, t.suspended = &Outcome{Type: "interrupt", Interrupts: t.suspended}, nil
	}
	t.push(Event{Type: runFinished, ThreadID: t.thread, RunID: t.turn.RunID, Outcome: outcome, Usage: usage})
}

// reply sends the text and the reasoning of a model's reply, as far as they were not sent live.
func (t *Translator) reply(e *events.Event, body []byte) {
	facts := events.FactsOf(e.Data)
	if facts == nil {
		return
	}
	switch p := e.Data.(type) {
	case *events.FatalError:
		return // finish drops what was being written
	case *events.LLMAttemptFailed:
		if !p.Interrupted() {
			t.drop()
			return
		}
	}
	id, text := livetext.MessageOf(body)
	id = cmp.Or(id, e.ID)
	t.parent = id
	if t.settled[id] {
		return // a later pass of the reply
	}
	if t.live.id != id || !strings.HasPrefix(text, t.live.text.String()) {
		t.drop()
	}
	t.settled[id] = true
	if rest, ok := strings.CutPrefix(facts.Reasoning.Text(), t.live.reason.String()); ok {
		t.think(id, rest)
	}
	t.stopThinking()
	t.write(id, text[t.live.text.Len():])
	t.stopWriting()
	t.live = live{}
}

// Chunk translates text that a model is writing, as [livetext.Listener.Hear] returns it.
func (t *Translator) Chunk(c livetext.Chunk) {
	if !t.open || t.settled[c.MessageID] {
		return
	}
	said := t.live.text.Len()
	if c.Kind == livetext.KindReasoning {
		said = t.live.reason.Len()
	}
	if t.live.id != c.MessageID || c.Offset == 0 && said > 0 {
		t.drop() // the model begins again
		said = 0
	}
	if c.Offset != said {
		return // the reply's event has it
	}
	n, at := t.n, t.at
	t.n, t.at = 0, 0
	if c.Kind == livetext.KindReasoning {
		t.think(c.MessageID, c.Text)
	} else {
		t.stopThinking()
		t.write(c.MessageID, c.Text)
	}
	t.n, t.at = n, at
}

func reasoningID(id string) string { return id + ":reasoning" }

func (t *Translator) think(id, text string) {
	if text == "" {
		return
	}
	t.live.id = id
	id = reasoningID(id)
	if !t.live.thinking {
		t.live.thinking = true
		t.push(Event{Type: reasoningStart, MessageID: id})
		t.push(Event{Type: reasonStart, MessageID: id, Role: roleReasoning})
	}
	t.live.reason.WriteString(text)
	t.script.write(id, roleReasoning, text)
	t.pushText(reasonContent, id, text)
}

func (t *Translator) stopThinking() {
	if t.live.thinking {
		t.live.thinking = false
		t.push(Event{Type: reasonEnd, MessageID: reasoningID(t.live.id)})
		t.push(Event{Type: reasoningEnd, MessageID: reasoningID(t.live.id)})
	}
}

func (t *Translator) write(id, text string) {
	if text == "" {
		return
	}
	t.live.id = id
	if !t.live.writing {
		t.live.writing = true
		t.push(Event{Type: textStart, MessageID: id, Role: roleAssistant})
	}
	t.live.text.WriteString(text)
	t.script.write(id, roleAssistant, text)
	t.pushText(textContent, id, text)
}

func (t *Translator) stopWriting() {
	if t.live.writing {
		t.live.writing = false
		t.push(Event{Type: textEnd, MessageID: t.live.id})
	}
}

// drop takes back what was sent of a message that will not be: its model begins again, or failed.
func (t *Translator) drop() {
	if t.live.id == "" {
		return
	}
	t.stopThinking()
	t.stopWriting()
	t.script.remove(t.live.id)
	t.script.remove(reasoningID(t.live.id))
	t.live = live{}
	t.tell()
}
