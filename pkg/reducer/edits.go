package reducer

import (
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// EditReplies is for how many replies an edit of the context lasts under the text
// protocol, where an entire run may be one loop: what is shown has to stay bounded.
const EditReplies = 5

// Edit is an edit of the current loop's context that still shows something: by how
// many messages it widened the window, and which calls it shows again. Step is the
// run's step when it was made.
type Edit struct {
	Step    int      `json:"step"`
	Widened int      `json:"widened,omitempty"`
	CallIDs []string `json:"call_ids,omitempty"`
}

// noteEdit keeps an edit that shows something; r is the reply that made it, nil for
// one from outside.
func (mem *Memory) noteEdit(r *events.ContextReply, e Edit) {
	if e.Widened == 0 && len(e.CallIDs) == 0 {
		return
	}
	e.Step = mem.Step
	if r != nil && r.Part {
		e.Step++ // the reply counts with its last part
	}
	mem.ReactContext.Edits = append(mem.ReactContext.Edits, e)
}

func (r *ReactContext) changeEdits(change func(*Edit)) {
	for i := range r.Edits {
		change(&r.Edits[i])
	}
	r.Edits = slices.DeleteFunc(r.Edits, func(e Edit) bool { return e.Widened == 0 && len(e.CallIDs) == 0 })
}

// endEdits lets the edits go that have lasted long enough, and narrows the window to
// what the others make of it.
func (mem *Memory) endEdits() {
	r := mem.ReactContext
	if r == nil || !mem.speaksText() {
		return
	}
	over := func(e Edit) bool { return mem.Step-e.Step >= EditReplies }
	if !slices.ContainsFunc(r.Edits, over) {
		return
	}
	r.Edits = slices.DeleteFunc(slices.Clone(r.Edits), over)
	r.ToolCallIDs = []string{}
	size := mem.Config.ContextWindowSize
	for _, e := range r.Edits {
		size += e.Widened
		mem.addCallsToContext(e.CallIDs)
	}
	if r.ContextWindowSize > 0 {
		r.ContextWindowSize = size
	}
}

// Loaded returns the calls that belong to the current loop's context, and about how many
// bytes the edits of the context show.
func (mem *Memory) Loaded() (calls map[string]bool, bytes int) {
	calls = map[string]bool{}
	r := mem.ReactContext
	if r == nil {
		return calls, 0
	}
	for _, e := range r.Edits {
		for _, id := range e.CallIDs {
			if !calls[id] {
				calls[id] = true
				bytes += mem.CallBytes(id)
			}
		}
	}
	for _, id := range r.ToolCallIDs {
		calls[id] = true
	}
	configured, _ := mem.windowOf(mem.Config.ContextWindowSize)
	first, _ := mem.windowStart()
	for i := first; i < configured; i++ {
		bytes += mem.turnBytes(&mem.Control.Turns[i])
	}
	return calls, bytes
}

// Older returns the sizes in bytes of the messages before the window, the last one first,
// each with the calls that belong to it: as many as fit into room bytes. more says that there are
// others. The cost grows with what fits, not with the run.
func (mem *Memory) Older(room int) (sizes []int, more bool) {
	first, _ := mem.windowStart()
	size := 0
	for i := first - 1; i >= 0; i-- {
		t := &mem.Control.Turns[i]
		if size += mem.turnBytes(t); size > room {
			return sizes, true
		}
		if mem.counts(t) {
			sizes = append(sizes, size)
			room -= size
			size = 0
		}
	}
	return sizes, false
}

// leastBytes is what a turn or a call counts for at least.
const leastBytes = 64

// turnBytes is about how much a turn shows.
func (mem *Memory) turnBytes(t *Turn) int {
	size := max(leastBytes, len(t.Content))
	for _, id := range t.Calls {
		size += mem.CallBytes(id)
	}
	return size
}

// CallBytes is about how much a call with its result shows, in bytes; little for one
// that has no result.
func (mem *Memory) CallBytes(id string) int {
	call, result, _ := mem.answered(id)
	return max(leastBytes, len(call.Name)+len(call.Arguments)+len(result.Content))
}

// Compaction is what was done so that a request fits the model's context.
type Compaction string

// What is done, one after the other, once for each request.
const (
	// CompactedWindow narrows the window to about half of what it shows.
	CompactedWindow Compaction = "window"
	// CompactedSummary has the history summarized, and narrows the window further.
	CompactedSummary Compaction = "summary"
)

// What a narrowed window shows at most: one part in so many of what it showed before.
const (
	firstShare = 2
	leastShare = 8
)

// Compactable returns what can still be done so that the request which is due fits the
// model's context; empty: nothing.
func (mem *Memory) Compactable() Compaction {
	done := mem.Control.Compacted
	switch {
	case done == "" && mem.narrowed(firstShare) > 0:
		return CompactedWindow
	case done != CompactedSummary && (mem.Summarizable() || mem.narrowed(leastShare) > 0):
		return CompactedSummary
	}
	return ""
}

// Summarizable reports whether the history has more than a summary.
func (mem *Memory) Summarizable() bool {
	return len(mem.History) > 1 || len(mem.History) == 1 && mem.History[0].Tool.Name != summaryTool
}

// narrowed is the size of the window that shows one part in share of the bytes that the
// window shows now; 0 where it cannot be narrowed. The messages of the open turn stay, since
// a provider may want their calls back as they were. Tasks have one turn, which the window
// narrows only under the text protocol.
func (mem *Memory) narrowed(share int) int {
	if mem.ReactContext == nil || mem.Mode != events.ModeChat && !mem.speaksText() {
		return 0
	}
	turns := mem.Control.Turns
	first, _ := mem.windowStart()
	open := len(turns) - 1
	if !mem.speaksText() {
		open = mem.asked()
	}
	total := 0
	for i := first; i < len(turns); i++ {
		total += mem.turnBytes(&turns[i])
	}
	size, shown, bytes := 0, 0, 0
	for i := len(turns) - 1; i >= first; i-- {
		bytes += mem.turnBytes(&turns[i])
		if !mem.counts(&turns[i]) {
			continue
		}
		if shown++; i >= open || bytes <= total/share {
			size = shown
		}
	}
	if size == shown {
		return 0
	}
	return size
}

// narrowWindow narrows the window and reports whether that was possible.
func (mem *Memory) narrowWindow(share int) bool {
	size := mem.narrowed(share)
	if size == 0 {
		return false
	}
	r := mem.ReactContext
	r.ContextWindowSize = size
	r.changeEdits(func(e *Edit) { e.Widened = 0 })
	return true
}
