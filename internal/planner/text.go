package planner

import (
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The codes of runs that end because their model makes no progress.
const (
	codeMaxSteps      = "max_steps"
	codeMaxIterations = "max_iterations"
	codeReplyInvalid  = "reply_invalid"
)

// overPasses returns the end of a run that has used up its planning calls since the last
// user message, or whose model's replies cannot be used; else nil.
func overPasses(mem *reducer.Memory) events.Payload {
	c, since := mem.Config, mem.Control.SinceUser
	code, name, limit := codeMaxSteps, "steps", c.MaxSteps
	// Runs that an older version started have this limit pinned, whatever protocol their
	// model uses.
	if mem.SpeaksText() && c.MaxIterations > 0 && c.MaxIterations < limit {
		code, name, limit = codeMaxIterations, "iterations", c.MaxIterations
	}
	if since.Steps >= limit {
		return &events.MaxSteps{Outcome: events.Outcome{Code: code, Message: fmt.Sprintf("max %s %d exceeded", name, limit)}}
	}
	if bound := c.InvalidReplies(); mem.SpeaksText() && bound > 0 && since.Invalid >= bound {
		return &events.FatalError{Outcome: events.Outcome{Code: codeReplyInvalid, Message: fmt.Sprintf(
			"%d replies in a row could not be used; the last one: %s", since.Invalid,
			clean(strings.TrimPrefix(reducer.LastRefusal(mem), reducer.ErrorPrefix)))}}
	}
	return nil
}

// textMemory returns what a model that uses the text protocol sees besides the
// conversation, nil for other models.
func textMemory(mem *reducer.Memory) *llm.Memory {
	if !mem.SpeaksText() {
		return nil
	}
	state, _ := textState(mem)
	m := &llm.Memory{State: state, Prompts: mem.Control.Agent.LLM.StatePrompts}
	for _, entry := range mem.WorkingMemory {
		m.Entries = append(m.Entries, llm.MemoryEntry{Tags: entry.Tags, Value: entry.Value})
	}
	for _, thought := range mem.ThinkingLog {
		m.Thoughts = append(m.Thoughts, llm.LogEntry{Name: thought.Name, Content: thought.Content})
	}
	return m
}

// textState returns the state in which a model that speaks the text protocol is asked, and
// why that is not the one in the log; the note is empty where it is.
func textState(mem *reducer.Memory) (state, note string) {
	state = mem.Control.TextState
	if events.ValidTextState(state) {
		return state, ""
	}
	return events.TextThinking, "the stored state \"" + contextedit.Clip(maxStateNamed, state) + "\" is unknown and was reset to thinking"
}

// maxStateNamed bounds what is said of a state that nobody knows, in bytes.
const maxStateNamed = 100

// textNote returns what is wrong with the logged state, empty if nothing is.
func textNote(mem *reducer.Memory) string {
	if !mem.SpeaksText() {
		return ""
	}
	_, note := textState(mem)
	return note
}

// estimateMemory returns the size of a request's memory in tokens.
func estimateMemory(count tokens.Estimator, m *llm.Memory) int {
	if m == nil {
		return 0
	}
	total := 0
	for _, entry := range m.Entries {
		total += count(strings.Join(entry.Tags, " ")) + count(entry.Value)
	}
	for _, thought := range m.Thoughts {
		total += count(thought.Name + thought.Content)
	}
	for _, prompt := range m.Prompts {
		total += count(prompt)
	}
	return total
}

// speaking wraps the caller in the text protocol if the agent wants it. Reflections are
// plain text anyway.
func (p *Planner) speaking(caller llm.Caller, req llm.Request) (llm.Caller, error) {
	switch {
	case req.Memory == nil || req.Purpose == llm.PurposeReflect:
		return caller, nil
	case p.cfg.Text == nil:
		return nil, &llm.Error{Kind: llm.KindOther, Message: "the agent says llm.text, and this planner has no text protocol"}
	}
	return p.cfg.Text(caller), nil
}

// thought is the event of a thinking pass.
func (ch *replyChecker) thought(r llm.Thought) events.Payload {
	notes := make([]string, 0, 2)
	for _, note := range []string{ch.textNote, r.Note} {
		if note != "" {
			notes = append(notes, clean(note))
		}
	}
	return &events.LLMThought{
		Reply:     events.Reply{Content: strings.ToValidUTF8(r.Content, "\uFFFD"), Model: r.Model, Usage: usage(r.Usage)},
		NextState: strings.ToValidUTF8(r.NextState, "\uFFFD"), Note: strings.Join(notes, "; "),
	}
}

// malformed is the event of a reply that could not be parsed.
func (ch *replyChecker) malformed(r llm.Invalid) events.Payload {
	return ch.invalid(r.Meta, strings.ToValidUTF8(r.Content, "\uFFFD"), reducer.CodeMalformedReply, clean(r.Reason))
}
