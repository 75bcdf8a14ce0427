package reducer

import (
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

func (mem *Memory) foldContext(e *events.Event) {
	switch p := e.Data.(type) {
	case *events.ContextWindowExpanded:
		if p.NextTurn && mem.ReactContext == nil {
			mem.keepForNextTurn(p.Increment, nil)
			return
		}
		mem.foldContextReply(e, p.ContextReply)
		if p.ContextReply == nil || p.Increment > 0 {
			mem.noteEdit(p.ContextReply, Edit{Widened: mem.expandWindow(p.Increment)})
		}
	case *events.ToolCallsAddedToContext:
		if p.NextTurn && mem.ReactContext == nil {
			mem.keepForNextTurn(0, p.CallIDs)
			return
		}
		mem.foldContextReply(e, p.ContextReply)
		mem.noteEdit(p.ContextReply, Edit{CallIDs: mem.addCallsToContext(p.CallIDs)})
	case *events.WorkingMemoryAdded:
		mem.addEntry(p.Entry, e.N, false)
	case *events.WorkingMemoryRemoved:
		mem.removeEntry(p.Tags)
	case *events.StorageSaved:
		mem.savedEntry(p.Tags)
	case *events.StorageLoaded:
		for _, entry := range p.Entries {
			if !mem.HoldsNewer(entry) {
				mem.addEntry(entry, e.N, true)
			}
		}
	case *events.Paused:
		mem.Control.Paused = true
	case *events.Resumed:
		mem.Control.Paused = false
		mem.Control.DispatchAfter, mem.Control.Redriven = e.N, p.Redrive
	case *events.BudgetRaised:
		mem.raiseBudget(p.Budget)
	}
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
		if !known || mem.SpeaksText() {
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

// raiseBudget replaces the limits that are given.
func (mem *Memory) raiseBudget(by events.Budget) {
	b := events.Budget{}
	if mem.Budget != nil {
		b = *mem.Budget
	}
	if by.MaxInputTokens != 0 {
		b.MaxInputTokens = by.MaxInputTokens
	}
	if by.MaxOutputTokens != 0 {
		b.MaxOutputTokens = by.MaxOutputTokens
	}
	if by.MaxTotalTokens != 0 {
		b.MaxTotalTokens = by.MaxTotalTokens
	}
	if by.MaxCostUSD != 0 {
		b.MaxCostUSD = by.MaxCostUSD
	}
	if by.MaxWallTime != 0 {
		b.MaxWallTime = by.MaxWallTime
	}
	mem.Budget = &b
}
