package telemetry

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Content has spans hold what was said: messages, arguments, results and error messages. A nil
// one holds nothing.
type Content struct {
	// Redact are what is replaced before anything leaves the process.
	Redact []*regexp.Regexp
}

// The most bytes of one text, and of all messages of a request. The newest messages count.
const (
	maxText  = 16 << 10
	maxInput = 64 << 10
)

const (
	redacted = "[redacted]"
	cutOff   = " [cut]"
)

// text returns a text as it may leave the process.
func (c *Content) text(text string) string {
	if c == nil {
		return ""
	}
	for _, r := range c.Redact {
		text = r.ReplaceAllLiteralString(text, redacted)
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + cutOff
	}
	return text
}

// message and part are those of the GenAI conventions.
type message struct {
	Role   string `json:"role"`
	Parts  []part `json:"parts"`
	Finish string `json:"finish_reason,omitempty"`
}

type part struct {
	Type      string `json:"type"`
	Content   string `json:"content,omitempty"`
	ID        string `json:"id,omitempty"`
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"`
	Result    string `json:"result,omitempty"`
}

func (c *Content) said(role, text string, calls []events.Call) message {
	m := message{Role: role, Parts: []part{}}
	if text != "" {
		m.Parts = append(m.Parts, part{Type: "text", Content: c.text(text)})
	}
	for _, call := range calls {
		m.Parts = append(m.Parts, part{Type: "tool_call", ID: call.ID, Name: call.Name, Arguments: c.text(call.Arguments)})
	}
	return m
}

func encode(messages ...message) string {
	data, err := json.Marshal(messages)
	if err != nil {
		return ""
	}
	return string(data)
}

// input is what the model is asked now.
func (c *Content) input(mem *reducer.Memory) string {
	if c == nil || mem.State != events.Planning {
		return ""
	}
	view := reducer.View(nil, mem)
	size, from := 0, len(view)
	for from > 0 && size < maxInput {
		from--
		size += min(len(view[from].Content), maxText)
	}
	messages := make([]message, 0, len(view)-from)
	for _, v := range view[from:] {
		if v.CallID != "" {
			messages = append(messages, message{Role: v.Role, Parts: []part{{Type: "tool_call_response", ID: v.CallID, Result: c.text(v.Content)}}})
			continue
		}
		messages = append(messages, c.said(v.Role, v.Content, v.Calls))
	}
	return encode(messages...)
}

// task is what the user said last.
func (c *Content) task(mem *reducer.Memory) string {
	if c == nil {
		return ""
	}
	for i := len(mem.Messages) - 1; i >= 0; i-- {
		if mem.Messages[i].Role == "user" {
			return encode(c.said("user", mem.Messages[i].Content, nil))
		}
	}
	return encode(c.said("user", mem.Task, nil))
}

// answer is what the model replied, empty for an event that is no reply.
func (c *Content) answer(p events.Payload) string {
	if c == nil {
		return ""
	}
	text, calls := "", []events.Call(nil)
	switch p := p.(type) {
	case *events.LLMToolCall:
		text, calls = p.Content, p.AllCalls()
	case *events.LLMParallelToolCalls:
		text, calls = p.Content, p.AllCalls()
	case *events.HumanApprovalRequired:
		text, calls = p.Content, p.AllCalls()
	case *events.LLMFinalAnswer:
		text = p.Content
	case *events.LLMMessageComplete:
		text = p.Content
	case *events.LLMThought:
		text = p.Content
	case *events.AnswerTooShort:
		text = p.Content
	case *events.ToolBlacklisted:
		text, calls = p.Content, p.Calls
	case *events.ReplyInvalid:
		text, calls = p.Content, p.Calls
	case *events.ReflectDone:
		text = p.Summary
	case *events.LLMAttemptFailed:
		text = p.Content
	default:
		r := events.ReplyOf(p)
		if r == nil {
			return ""
		}
		text, calls = r.Content, r.Calls
	}
	m := c.said("assistant", text, calls)
	if f := events.FactsOf(p); f != nil {
		m.Finish = f.Finish
	}
	return encode(m)
}
