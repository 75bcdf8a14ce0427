package textprotocol

import (
	"slices"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// The names of the final answer, which is an action without a tool.
const (
	answerAction = "answer"
	answerAlias  = "final_answer"
)

// The elements that the grammar names.
const (
	agentElement     = "agent"
	nextElement      = "next_state"
	logElement       = "thinking_log"
	actionElement    = "action"
	typeElement      = "type"
	argumentsElement = "arguments"
	valueElement     = "value"
)

// element is an agent element as it was written.
type element struct {
	next     *field
	thoughts []string
	action   *action
}

// action is the action of an element; fields are its elements beside the type.
type action struct {
	at     int
	typ    *field
	fields []field
}

// parse reads a model's reply.
func parse(reply string, req *llm.Request, meta llm.Meta) llm.Response {
	said, from, ends := afterThinking(reply)
	res, err := llm.Response(nil), wrong(0, "the thoughts never end: expected </think>, and then an <agent> element")
	if ends {
		res, err = read(said, req, meta)
	}
	if err != nil {
		return llm.Invalid{Meta: meta, Content: reply, Reason: place(reply, from+err.at) + ": " + err.reason}
	}
	return res
}

const thinkOpen, thinkClose = "<think>", "</think>"

// afterThinking drops the text up to `</think>` and returns where the rest begins; ends
// is false if `</think>` is missing.
func afterThinking(reply string) (said string, from int, ends bool) {
	if i := strings.Index(reply, thinkClose); i >= 0 {
		from = i + len(thinkClose)
	}
	for {
		at := skipSpace(reply, from)
		if !strings.HasPrefix(reply[at:], thinkOpen) {
			return reply[from:], from, true
		}
		end := strings.Index(reply[at:], thinkClose)
		if end < 0 {
			return "", at, false
		}
		from = at + end + len(thinkClose)
	}
}

func read(said string, req *llm.Request, meta llm.Meta) (llm.Response, *syntaxError) {
	if len(said) > maxReply {
		return nil, wrong(0, "the reply has %d bytes: at most %d are read", len(said), maxReply)
	}
	open, ok := findAgent(said)
	if !ok {
		return nil, wrong(len(said), "there is no <agent> element: reply with one, and with nothing else")
	}
	e, err := readAgent(said, open)
	if err != nil {
		return nil, err
	}
	switch {
	case e.action != nil:
		return e.act(req, meta)
	case e.next == nil && e.thoughts == nil:
		return nil, wrong(open.start, "<agent> holds nothing: expected <next_state> and <thinking_log>, or <action>")
	}
	return e.think(meta), nil
}

func readAgent(said string, open tag) (*element, *syntaxError) {
	e := new(element)
	if open.empty {
		return e, nil
	}
	s := &scanner{text: said, at: open.end}
	for count := 0; ; count++ {
		t, ok, err := s.next(agentElement)
		switch {
		case err != nil:
			return nil, err
		case !ok, t.closing && t.is(agentElement):
			return e, nil
		case t.closing:
			return nil, wrong(t.start, "</%s> closes nothing: expected </agent>", t.name)
		case count == maxFields:
			return nil, wrong(t.start, "<agent> holds more than %d elements", maxFields)
		case t.is(actionElement):
			err = e.readAction(s, t)
		default:
			err = e.readField(s, t)
		}
		if err != nil {
			return nil, err
		}
	}
}

// readField reads a field of the agent element and ignores unknown ones.
func (e *element) readField(s *scanner, t tag) *syntaxError {
	f, err := s.field(t, agentElement)
	switch {
	case err != nil:
		return err
	case t.is(nextElement):
		e.next = &f
	case t.is(logElement):
		e.thoughts = append(e.thoughts, f.value())
	case t.is(typeElement):
		return wrong(t.start, "<type> stands outside of an action: expected <action><type>…</type>…</action>")
	}
	return nil
}

func (e *element) readAction(s *scanner, open tag) *syntaxError {
	if e.action != nil {
		return wrong(open.start, "there are two actions: expected one")
	}
	e.action = &action{at: open.start}
	if open.empty {
		return nil
	}
	fields, err := s.fields(actionElement, agentElement)
	if err != nil {
		return err
	}
	for _, f := range fields {
		switch {
		case !strings.EqualFold(f.name, typeElement):
			e.action.fields = append(e.action.fields, f)
		case e.action.typ != nil:
			return wrong(f.at, "the action has two types: an argument that is called type has to stand in <arguments>")
		default:
			e.action.typ = &f
		}
	}
	return nil
}

// fields reads the fields of an element after its opening tag, up to its closing tag,
// to that of the outer element, or to the end.
func (s *scanner) fields(name, around string) ([]field, *syntaxError) {
	var fields []field
	for {
		t, ok, err := s.next(name)
		switch {
		case err != nil:
			return nil, err
		case !ok, t.closing && t.is(name):
			return fields, nil
		case t.closing && t.is(around):
			s.at = t.start
			return fields, nil
		case t.closing:
			return nil, wrong(t.start, "</%s> closes nothing: expected </%s>, or &lt; for a < in a value", t.name, name)
		case len(fields) == maxFields:
			return nil, wrong(t.start, "<%s> holds more than %d elements", name, maxFields)
		}
		f, err := s.field(t, name, around)
		if err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
}

// think is a reply without an action.
func (e *element) think(meta llm.Meta) llm.Response {
	r := llm.Thought{Meta: meta, Content: e.thinking(), NextState: stateThinking}
	if e.next == nil {
		r.Note = "there is no next_state: thinking"
		return r
	}
	switch next := strings.ToLower(e.next.value()); next {
	case stateThinking, stateExecuting:
		r.NextState = next
	case "":
		r.Note = "next_state is empty: thinking"
	default:
		r.Note = "next_state \"" + head(next) + "\" is unknown: thinking"
	}
	return r
}

func (e *element) thinking() string { return strings.Join(e.thoughts, "\n") }

// act is a reply with an action.
func (e *element) act(req *llm.Request, meta llm.Meta) (llm.Response, *syntaxError) {
	a := e.action
	if a.typ == nil || a.typ.value() == "" {
		return nil, wrong(a.at, "the action has no type: expected <type> with the name of an action")
	}
	name := a.typ.value()
	at := slices.IndexFunc(req.Tools, func(t llm.Tool) bool { return t.Name == name })
	if name == answerName(req.Tools) || at < 0 && (name == answerAction || name == answerAlias) {
		return a.answer(req, meta)
	}
	var known llm.Tool
	if at >= 0 {
		known = req.Tools[at]
	}
	arguments, err := a.arguments(known.Schema)
	if err != nil {
		return nil, err
	}
	if meta.Finish == llm.FinishStop { // the words ended; the reply is a call
		meta.Finish = llm.FinishToolCalls
	}
	return llm.ToolCalls{Meta: meta, Content: e.thinking(), Calls: []llm.Call{{ID: callID(req), Name: name, Arguments: arguments}}}, nil
}

// callID names the call of a reply, since the model gives it no name.
func callID(req *llm.Request) string { return "call_" + strconv.Itoa(req.Replies+1) }

func (a *action) answer(req *llm.Request, meta llm.Meta) (llm.Response, *syntaxError) {
	var value *field
	for i, f := range a.fields {
		switch {
		case !strings.EqualFold(f.name, valueElement):
		case value != nil:
			return nil, wrong(f.at, "the answer has two values: expected one")
		default:
			value = &a.fields[i]
		}
	}
	switch {
	case value == nil:
		return nil, wrong(a.at, "the answer has no value: expected <value> with the answer")
	case len(req.OutputSchema) > 0:
		return llm.Structured{Meta: meta, Content: value.value()}, nil
	}
	return llm.Text{Meta: meta, Content: value.value()}, nil
}
