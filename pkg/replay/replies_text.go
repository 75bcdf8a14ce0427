package replay

import (
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// thoughtReply is a thinking pass of the text protocol, read already.
func thoughtReply(p *events.LLMThought) Reply {
	return Reply{Response: llm.Thought{
		Meta: meta(p.Model, 1, p.Usage), Content: p.Content, NextState: p.NextState, Note: p.Note,
	}}
}

// unreadReply returns why a reply of the text protocol could not be read, or why a
// reply is not in the log; false for one that is.
func unreadReply(p *events.RefusedReply) (reason string, unread bool) {
	if len(p.Results) != 1 || len(p.Calls) > 0 || (p.Results[0].Code != reducer.CodeMalformedReply && p.Results[0].Code != reducer.CodeTooLarge) {
		return "", false
	}
	return strings.TrimPrefix(p.Results[0].Observation, reducer.ErrorPrefix), true
}
