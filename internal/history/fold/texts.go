package fold

import (
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/words"
	"github.com/moorebus/moorebus/pkg/events"
)

// maxOffloaded is how much is kept of a text that was too large for the log, in bytes.
const maxOffloaded = 1 << 20

// Offloaded returns a text with what its Ref points to, as far as that is kept.
func Offloaded(t history.Text, data []byte) history.Text {
	var reasoning events.Reasoning
	t.Ref = nil
	if t.Kind == history.Reasoning && json.Unmarshal(data, &reasoning) == nil {
		data = []byte(reasoning.Text())
	}
	t.Text = words.JSON(string(data[:min(len(data), maxOffloaded)])) // words are of whole characters
	return t
}

// Texts returns the texts of an event; of JSON they have keys and decoded values. A fork's task that is its
// parent's is not one of them.
func Texts(e *events.Event) []history.Text {
	t := texts{e: e}
	switch p := e.Data.(type) {
	case *events.Start:
		t.add(history.Task, "", p.Task)
	case *events.Forked:
		t.add(history.Task, "", p.Task)
	case *events.UserMessage:
		t.add(history.Message, "", p.Content)
	case *events.LLMToolCall:
		t.reply(&p.ToolCallReply)
	case *events.LLMParallelToolCalls:
		t.reply(&p.ToolCallReply)
	case *events.HumanApprovalRequired:
		if e.From == events.Planning { // else the calls are in an earlier event
			t.reply(&p.ToolCallReply)
		}
	case *events.HumanModified:
		t.add(history.Call, "", words.JSON(p.Arguments))
	case *events.HumanDecision:
		t.add(history.Call, "", words.JSON(p.Arguments))
	case *events.ToolBlacklisted:
		t.refused(&p.RefusedReply)
	case *events.ReplyInvalid:
		t.refused(&p.RefusedReply)
	case *events.LLMFinalAnswer:
		t.add(history.Answer, "", words.JSON(p.Content))
	case *events.LLMMessageComplete:
		t.add(history.Message, "", p.Content)
	case *events.AnswerTooShort:
		t.add(history.Message, "", p.Content)
	case *events.LLMThought:
		t.add(history.Reasoning, "", p.Content)
	case *events.LLMAttemptFailed:
		t.add(history.Message, "", p.Content)
		t.add(history.Error, p.Kind, p.Kind+" "+p.Message)
	case *events.FatalError:
		t.ended(&p.Outcome)
	case *events.MaxSteps:
		t.ended(&p.Outcome)
	case *events.BudgetExceeded:
		t.ended(&p.Outcome)
	}
	if r := events.ReplyOf(e.Data); r != nil {
		t.add(history.Message, "", r.Content)
	}
	if facts := events.FactsOf(e.Data); facts != nil {
		t.offloaded(history.Reasoning, "", facts.Reasoning.Text(), facts.ReasoningRef)
	}
	if o := outcomeOf(e.Data); o != nil {
		t.result(o.Success, o.Code, o.Observation, o.Ref)
	}
	return t.all
}

// texts are those of an event.
type texts struct {
	e   *events.Event
	all []history.Text
}

func (t *texts) add(kind history.Kind, code, text string) { t.offloaded(kind, code, text, nil) }

// offloaded adds a text of which ref has the rest; nil: it is entire.
func (t *texts) offloaded(kind history.Kind, code, text string, ref *events.Ref) {
	if text != "" || code != "" || ref != nil {
		t.all = append(t.all, history.Text{N: t.e.N, Kind: kind, Code: code, Text: text, At: t.e.Time, Ref: ref})
	}
}

func (t *texts) ended(o *events.Outcome) {
	t.add(history.Error, o.Code, strings.TrimSpace(o.Code+" "+o.Message))
}

// reply adds the texts of a reply with calls. Those of its calls that go out later are in later events.
func (t *texts) reply(r *events.ToolCallReply) {
	t.add(history.Message, "", r.Content)
	for _, c := range r.Calls {
		t.call(&c)
	}
	for _, c := range r.Refused {
		t.call(&c.Call)
		t.result(false, c.Code, c.Observation, nil)
	}
}

// refused adds the texts of a reply that was refused.
func (t *texts) refused(r *events.RefusedReply) {
	t.add(history.Message, "", r.Content)
	for _, c := range r.Calls {
		t.call(&c)
	}
	for _, a := range r.Results {
		if a.ID == "" { // the reply itself is of no use
			t.add(history.Error, a.Code, strings.TrimSpace(a.Code+" "+a.Observation))
			continue
		}
		t.result(false, a.Code, a.Observation, nil)
	}
}

func (t *texts) call(c *events.Call) {
	t.add(history.Call, "", strings.TrimSpace(c.Name+" "+words.JSON(c.Arguments)))
}

func (t *texts) result(success bool, code, text string, ref *events.Ref) {
	kind := history.CallError
	if success {
		kind, code = history.Result, ""
	}
	t.offloaded(kind, code, words.JSON(text), ref)
}
