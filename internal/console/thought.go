package console

import (
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// thought is what a model thought, and what was odd about where that leads.
func thought(p *events.LLMThought) string {
	if p.Note == "" {
		return p.Content
	}
	return strings.TrimSpace(p.Content + " (" + p.Note + ")")
}
