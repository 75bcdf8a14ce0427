package reducer

import "github.com/moorebus/moorebus/pkg/events"

// Origins are the `<from>` that an event may have in a run as it stands.
func Origins(t *Table, mem *Memory, p events.Payload) []events.State {
	c, ok := t.cell(mem.State, events.TypeOf(p))
	if !ok {
		c.from = ruleFor(events.TypeOf(p)).from
	}
	if now := ruleFor(events.TypeOf(p)).fromNow; now != nil {
		c.from = now(mem, p)
	}
	return t.origins(c.from, mem.State)
}

// Facts is the text whose digest stands in the revisions.
var (
	Facts, Revisions = facts, revisions
	PagedNote        = pagedNote
)
