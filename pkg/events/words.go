package events

import (
	"fmt"
	"strings"
)

// wordBytes bounds what a summary takes of one text among several.
const wordBytes = 800

func short(text string) string {
	if len(text) <= wordBytes {
		return text
	}
	return strings.ToValidUTF8(text[:wordBytes], "") + "…"
}

// UnusualEnding says how a reply ended that did not end with a stop or with calls, as in
// "[length: max_tokens] "; empty for every other payload.
func UnusualEnding(p Payload) string {
	f := FactsOf(p)
	switch {
	case f == nil, f.Finish == "", f.Finish == finishStop, f.Finish == finishToolCalls:
		return ""
	case f.FinishRaw == "" || f.FinishRaw == f.Finish:
		return "[" + f.Finish + "] "
	}
	return "[" + f.Finish + ": " + short(f.FinishRaw) + "] "
}

func (r *ToolCallReply) summary() string {
	parts := make([]string, 0, len(r.Calls)+len(r.Refused))
	for _, c := range r.Calls {
		parts = append(parts, c.Name+"("+short(c.Arguments)+")")
	}
	for _, c := range r.Refused {
		parts = append(parts, c.Name+" refused: "+c.Code)
	}
	return strings.Join(parts, ", ")
}

func (r *RefusedReply) summary() string {
	parts := make([]string, len(r.Results))
	for i, a := range r.Results {
		parts[i] = a.Code + ": " + short(a.Observation)
	}
	return strings.Join(parts, ", ")
}

// summary is the calls by which the model asked for an edit, or the edit.
func (r *ContextReply) summary(edit string) string {
	if r == nil {
		return edit
	}
	return (&ToolCallReply{Calls: r.Calls}).summary()
}

func (p *LLMThought) summary() string {
	if p.Note == "" {
		return p.Content
	}
	return strings.TrimSpace(p.Content + " (" + p.Note + ")")
}

func (o *ToolOutcome) summary() string {
	switch {
	case o == nil:
		return ""
	case o.Success || o.Code == "":
		return o.Observation
	}
	return o.Code + ": " + o.Observation
}

func (o *Outcome) summary() string { return o.Code + ": " + o.Message }

func (p *FatalError) summary() string {
	text := p.Outcome.summary()
	if p.N > 0 {
		text += fmt.Sprintf(" (event %d: %s)", p.N, p.Poison.Reason)
	}
	return text
}

func (b *By) summary() string {
	switch {
	case b.By == "":
		return b.Reason
	case b.Reason == "":
		return "by " + b.By
	}
	return b.Reason + " (by " + b.By + ")"
}

func (p *HumanApprovalRequired) summary() string {
	parts := make([]string, len(p.Requests))
	for i, r := range p.Requests {
		parts[i] = r.Tool + "(" + short(r.Arguments) + ")"
	}
	return strings.Join(parts, ", ")
}

func (d *Decision) summary() string {
	if d.Decision == "" {
		return ""
	}
	what := d.Decision
	if d.Arguments != "" {
		what += " to " + short(d.Arguments)
	}
	return strings.TrimSpace(d.CallID + " " + what + " " + (&By{Reason: d.Reason, By: d.By}).summary())
}

func (e *Entry) summary() string { return strings.Join(e.Tags, ", ") + ": " + e.Value }
