package reducer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

var contextRules = []rule{
	{
		typ: events.TypeContextWindowExpanded, stays: true, from: own | control, fromNow: contextOrigins,
		ways: contextWays, route: contextRoute, rearms: true, legality: 1, steps: contextSteps,
		check: func(mem *Memory, e *events.Event) error { return mem.checkContextReply(events.ReplyOf(e.Data)) },
		fold:  foldExpanded,
		trace: func(p events.Payload) string {
			return traceEdit(p, fmt.Sprintf("by %d messages", p.(*events.ContextWindowExpanded).Increment))
		},
	},
	{
		typ: events.TypeToolCallsAddedToContext, stays: true, from: own | control, fromNow: contextOrigins,
		ways: contextWays, route: contextRoute, rearms: true, legality: 1, steps: contextSteps,
		check: checkCallsAdded, fold: foldCallsAdded,
		trace: func(p events.Payload) string {
			return traceEdit(p, cut(strings.Join(p.(*events.ToolCallsAddedToContext).CallIDs, ", "), traceTextLimit))
		},
	},
	{
		typ: events.TypeWorkingMemoryAdded, stays: true, adds: true, from: own, check: always, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			mem.addEntry(e.Data.(*events.WorkingMemoryAdded).Entry, e.N, false)
		},
		trace: traced(func(p *events.WorkingMemoryAdded) string { return traceEntry(p.Entry) }),
	},
	{
		typ: events.TypeWorkingMemoryRemoved, stays: true, adds: true, from: own, check: always, legality: 1,
		fold:  func(mem *Memory, e *events.Event) { mem.removeEntry(e.Data.(*events.WorkingMemoryRemoved).Tags) },
		trace: traced(func(p *events.WorkingMemoryRemoved) string { return strings.Join(p.Tags, ", ") }),
	},
	{
		typ: events.TypeStorageSaved, stays: true, adds: true, from: own, check: always, legality: 1,
		fold:  func(mem *Memory, e *events.Event) { mem.savedEntry(e.Data.(*events.StorageSaved).Tags) },
		trace: traced(func(p *events.StorageSaved) string { return traceEntry(p.Entry) }),
	},
	{
		typ: events.TypeStorageLoaded, stays: true, adds: true, from: own, check: always, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			for _, entry := range e.Data.(*events.StorageLoaded).Entries {
				if !mem.HoldsNewer(entry) {
					mem.addEntry(entry, e.N, true)
				}
			}
		},
		trace: traced(func(l *events.StorageLoaded) string {
			return fmt.Sprintf("%s: %d entries", strings.Join(l.Tags, ", "), len(l.Entries))
		}),
	},
}

// contextWays are the ways of an edit of the context. It wakes Planning only.
func contextWays(_ *Table, state events.State) []Edge {
	if state == events.Planning {
		return []Edge{plain(events.Planning), nobody}
	}
	return []Edge{nobody}
}

func contextRoute(mem *Memory, p events.Payload) (events.State, string) {
	// What follows a part of a reply is appended with it, so nobody has to be
	// woken by it.
	if r := events.ReplyOf(p); mem.State == events.Planning && (r == nil || !r.Part) {
		return events.Planning, events.DefaultPool
	}
	return events.Nobody, events.DefaultPool
}

// contextOrigins lets only the planner publish what the model itself asked for.
func contextOrigins(mem *Memory, p events.Payload) origin {
	switch {
	case events.ReplyOf(p) == nil:
		return own | control
	case mem.State == events.Planning:
		return own
	}
	return 0
}

func contextSteps(_ *Memory, p events.Payload) int {
	if r := events.ReplyOf(p); r != nil && !r.Part {
		return 1
	}
	return 0
}

// checkContextReply holds a reply that edits its own context to its calls: each
// is of a tool that is Moorebus' own, and has its answer.
func (mem *Memory) checkContextReply(r *events.ContextReply) error {
	if r == nil {
		return nil
	}
	if len(r.Calls) == 0 || len(r.Calls) != len(r.Results) {
		return fmt.Errorf("has %d calls and %d answers, want one for each", len(r.Calls), len(r.Results))
	}
	for i, call := range r.Calls {
		switch {
		case !strings.HasPrefix(call.Name, events.ReservedPrefix):
			return fmt.Errorf("calls %q, which does not edit the context", call.Name)
		case r.Results[i].ID != call.ID:
			return fmt.Errorf("answers call %q in the place of %q", r.Results[i].ID, call.ID)
		}
	}
	return mem.checkNewCalls(r.Calls)
}

func checkCallsAdded(mem *Memory, e *events.Event) error {
	p := e.Data.(*events.ToolCallsAddedToContext)
	for _, id := range p.CallIDs {
		if mem.ToolCalls[id] == nil {
			return fmt.Errorf("names the unknown call %q", id)
		}
	}
	return mem.checkContextReply(p.ContextReply)
}

func foldExpanded(mem *Memory, e *events.Event) {
	p := e.Data.(*events.ContextWindowExpanded)
	if p.NextTurn && mem.ReactContext == nil {
		mem.keepForNextTurn(p.Increment, nil)
		return
	}
	mem.foldContextReply(e, p.ContextReply)
	if p.ContextReply == nil || p.Increment > 0 {
		mem.noteEdit(p.ContextReply, Edit{Widened: mem.expandWindow(p.Increment)})
	}
}

func foldCallsAdded(mem *Memory, e *events.Event) {
	p := e.Data.(*events.ToolCallsAddedToContext)
	if p.NextTurn && mem.ReactContext == nil {
		mem.keepForNextTurn(0, p.CallIDs)
		return
	}
	mem.foldContextReply(e, p.ContextReply)
	mem.noteEdit(p.ContextReply, Edit{CallIDs: mem.addCallsToContext(p.CallIDs)})
}

// expandWindow widens the window, never beyond the messages that there are, and
// returns by how many. A window of 0 shows everything already.
func (mem *Memory) expandWindow(increment int) int {
	r := mem.ReactContext
	if r == nil || r.ContextWindowSize == 0 {
		return 0
	}
	if increment <= 0 {
		increment = mem.Config.ExpandContextWindowSize
	}
	before := r.ContextWindowSize
	r.ContextWindowSize = max(before, min(before+increment, mem.Windowed()))
	return r.ContextWindowSize - before
}

// addCallsToContext returns those of the calls that are shown for it: the others were
// in the context already. Under the text protocol those are shown for longer.
func (mem *Memory) addCallsToContext(ids []string) (added []string) {
	r := mem.ReactContext
	if r == nil {
		return nil
	}
	for _, id := range ids {
		known := slices.Contains(r.ToolCallIDs, id)
		if !known {
			r.ToolCallIDs = append(r.ToolCallIDs, id)
		}
		if !known || mem.speaksText() {
			added = append(added, id)
		}
	}
	return added
}

// addEntry puts an entry into working memory; one with the same tags is
// replaced and counts as new.
func (mem *Memory) addEntry(entry events.Entry, n uint64, loaded bool) {
	tags := NormalTags(entry.Tags)
	mem.removeEntry(tags)
	mem.WorkingMemory = append(mem.WorkingMemory, MemoryEntry{Tags: tags, Value: entry.Value, N: n, Step: mem.Step, Loaded: loaded})
}

// savedEntry notes that storage has what was said last under these tags, so that an
// older value does not take its place when it leaves working memory.
func (mem *Memory) savedEntry(tags []string) {
	tags = NormalTags(tags)
	for i, entry := range mem.WorkingMemory {
		if slices.Equal(entry.Tags, tags) {
			mem.WorkingMemory = slices.Clone(mem.WorkingMemory)
			mem.WorkingMemory[i].Loaded = true
		}
	}
}

// HoldsNewer reports whether working memory holds another value under the tags of
// a stored entry that storage does not have yet. To load the entry does not replace
// that: nobody could have it back.
func (mem *Memory) HoldsNewer(stored events.Entry) bool {
	tags := NormalTags(stored.Tags)
	return slices.ContainsFunc(mem.WorkingMemory, func(held MemoryEntry) bool {
		return !held.Loaded && held.Value != stored.Value && slices.Equal(held.Tags, tags)
	})
}

func (mem *Memory) removeEntry(tags []string) {
	tags = NormalTags(tags)
	for i, entry := range mem.WorkingMemory {
		if slices.Equal(entry.Tags, tags) {
			rest := make([]MemoryEntry, 0, len(mem.WorkingMemory))
			rest = append(rest, mem.WorkingMemory[:i]...)
			mem.WorkingMemory = append(rest, mem.WorkingMemory[i+1:]...)
			return
		}
	}
}

// NormalTags returns the tags as a sorted set, spaces as underscores.
func NormalTags(tags []string) []string {
	set := make([]string, 0, len(tags))
	for _, tag := range tags {
		b := []byte(tag)
		for i, c := range b {
			if c == ' ' {
				b[i] = '_'
			}
		}
		if len(b) > 0 {
			set = append(set, string(b))
		}
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// InternalCall is a call of one of Moorebus' own tools, which edit the model's
// context and nothing else. Answer is what the model sees.
type InternalCall struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Arguments  string `json:"arguments"`
	Answer     string `json:"answer"`
	ProviderID string `json:"provider_id,omitempty"`
}

// foldContextReply takes a reply that edits its own context into what the model
// sees next; nil is an edit from outside.
func (mem *Memory) foldContextReply(e *events.Event, r *events.ContextReply) {
	if r == nil {
		return
	}
	if !r.Part {
		mem.pass(r.Usage)
	}
	if r.Content != "" {
		mem.addMessage(e, r.MessageID, "assistant", r.Content)
	}
	c := &mem.Control
	ids := make([]string, len(r.Calls))
	for i, call := range r.Calls {
		ids[i] = call.ID
		c.CallOrder = append(c.CallOrder, call.ID)
		c.Internal = append(c.Internal, InternalCall{
			ID: call.ID, Name: call.Name, Arguments: call.Arguments, Answer: answerFor(r.Results, call.ID), ProviderID: call.ProviderID,
		})
	}
	mem.addTurn(Turn{Kind: turnReply, Content: r.Content, Calls: ids, Part: r.Part})
	mem.keepReasoning(&r.Facts)
	if mem.speaksText() {
		mem.forgetUnseen()
	}
}

// forgetUnseen forgets the calls of Moorebus' own tools that have left the window.
func (mem *Memory) forgetUnseen() {
	first, _ := mem.windowStart()
	seen := map[string]bool{}
	for _, t := range mem.Control.Turns[first:] {
		for _, id := range t.Calls {
			seen[id] = true
		}
	}
	mem.forgetInternal(seen)
}

// forgetInternal forgets the calls of Moorebus' own tools, but those to be kept, and
// the turns that show nothing without them: they would take places in the window of
// the text protocol, which counts every turn.
func (mem *Memory) forgetInternal(keep map[string]bool) {
	c, gone := &mem.Control, map[string]bool{}
	var kept []InternalCall
	for _, call := range c.Internal {
		if keep[call.ID] {
			kept = append(kept, call)
		} else {
			gone[call.ID] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	c.Internal = kept
	// They are calls of the current loop, so older ones need not be checked.
	first := len(c.Turns)
	for left := len(gone); first > 0 && left > 0; {
		first--
		for _, id := range c.Turns[first].Calls {
			if gone[id] {
				left--
			}
		}
	}
	// A new slice: others may still read the old turns.
	c.Turns = slices.Concat(c.Turns[:first], slices.DeleteFunc(slices.Clone(c.Turns[first:]), mem.showsNothing))
	if c.Asked >= first {
		c.Asked = lastAsked(c.Turns)
	}
}

// showsNothing reports whether a turn is a reply that consists of calls that nobody
// knows any more.
func (mem *Memory) showsNothing(t Turn) bool {
	if t.Kind != turnReply || t.Content != "" || len(t.Calls) == 0 {
		return false
	}
	return !slices.ContainsFunc(t.Calls, func(id string) bool { return mem.ToolCalls[id] != nil || mem.internal(id) != nil })
}

// internal returns the current loop's call of one of Moorebus' own tools, nil if
// it is none.
func (mem *Memory) internal(id string) *InternalCall {
	for i := range mem.Control.Internal {
		if mem.Control.Internal[i].ID == id {
			return &mem.Control.Internal[i]
		}
	}
	return nil
}

// joinParts puts a reply's turn and those of its earlier parts together, so that
// the model is sent one reply as one. It reports whether t has its place.
func (mem *Memory) joinParts(t *Turn) bool {
	turns := mem.Control.Turns
	if len(turns) == 0 || t.Kind != turnReply || !turns[len(turns)-1].Part {
		return false
	}
	last := &turns[len(turns)-1]
	// A new slice: others may still read the turn.
	last.Calls = slices.Concat(last.Calls, t.Calls)
	last.Content, last.Part, last.Aside = t.Content, t.Part, t.Aside
	return true
}

// keepForNextTurn keeps an edit of the context that was made while the run waits
// for its user, until a message opens the next turn.
func (mem *Memory) keepForNextTurn(increment int, ids []string) {
	c := &mem.Control
	next := Edit{Step: mem.Step}
	if c.NextTurn != nil {
		next = *c.NextTurn
	}
	next.Widened = min(next.Widened+min(increment, mostWidened), mostWidened)
	next.CallIDs = slices.Clone(next.CallIDs)
	for _, id := range ids {
		if !slices.Contains(next.CallIDs, id) {
			next.CallIDs = append(next.CallIDs, id)
		}
	}
	c.NextTurn = &next
}

// mostWidened bounds the sum of increments, which is beyond any conversation.
const mostWidened = 1 << 30

// applyNextTurn makes the edits that were kept for the turn that has just begun.
func (mem *Memory) applyNextTurn() {
	next := mem.Control.NextTurn
	if next == nil {
		return
	}
	mem.Control.NextTurn = nil
	if next.Widened > 0 {
		mem.noteEdit(nil, Edit{Widened: mem.expandWindow(next.Widened)})
	}
	mem.noteEdit(nil, Edit{CallIDs: mem.addCallsToContext(next.CallIDs)})
}

// traceEdit is the calls by which the model asked for an edit, or the edit.
func traceEdit(p events.Payload, edit string) string {
	if r := events.ReplyOf(p); r != nil {
		return traceCalls(r.Calls)
	}
	return edit
}

func traceEntry(e events.Entry) string {
	return cut(strings.Join(e.Tags, ", ")+": "+e.Value, traceTextLimit)
}
