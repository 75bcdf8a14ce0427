package console

import (
	"bytes"
	"fmt"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Child is the run that answers a call.
type Child struct {
	Run    string `json:"run"`
	CallID string `json:"call_id"`
}

// children are the runs that answered calls of a run, or are about to, in the order
// of the calls.
func children(mem *reducer.Memory) []Child {
	var all []Child
	for _, id := range mem.Control.CallOrder {
		if record := mem.ToolCalls[id]; record != nil && record.Run != "" {
			all = append(all, Child{Run: record.Run, CallID: id})
		} else if call := mem.Call(id); call != nil && call.Waits() {
			all = append(all, Child{Run: events.ChildID(mem.RunID, id), CallID: id})
		}
	}
	return all
}

// family writes which run this one answers, and which answer this one.
func (r *Run) family(b *bytes.Buffer, p palette) {
	if r.Parent != nil {
		fmt.Fprintf(b, "%s %s of run %s\n", p.faint(pad("answers", 8)), Plain(r.Parent.CallID), Plain(r.Parent.Run))
	}
	for _, c := range r.Children {
		fmt.Fprintf(b, "%s %s by run %s\n", p.faint(pad("answered", 8)), Plain(c.CallID), Plain(c.Run))
	}
}
