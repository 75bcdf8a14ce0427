package reducer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// The bounds of what the model is told of a paging.
const (
	notedSets  = 10
	notedBytes = 1 << 10
)

// foldPaged takes what went to storage out of working memory, and tells the
// model. Only the last such note stays: what earlier ones name lies in storage all
// the same, and notes must not fill the conversation of a long run.
func (mem *Memory) foldPaged(p *events.PageDone) {
	gone := make(map[string]bool, len(p.Paged)+len(p.Dropped))
	for _, entry := range slices.Concat(p.Paged, p.Dropped) {
		gone[tagsText(NormalTags(entry.Tags))] = true
	}
	if len(gone) == 0 {
		return
	}
	kept := make([]MemoryEntry, 0, len(mem.WorkingMemory))
	for _, entry := range mem.WorkingMemory {
		if !gone[tagsText(entry.Tags)] {
			kept = append(kept, entry)
		}
	}
	mem.WorkingMemory = kept
	c := &mem.Control
	if slices.ContainsFunc(c.Turns, isPaged) {
		c.Turns = slices.DeleteFunc(slices.Clone(c.Turns), isPaged)
		c.Asked = lastAsked(c.Turns)
	}
	mem.addTurn(Turn{Kind: TurnPaged, Content: PagedNote(p)})
}

// moveStorage gives the run the storage of another agent. What it loaded from the
// former one lies nowhere in this one, so paging has to store it; what was paged to
// the former one cannot be had back, and the model is told so.
func (mem *Memory) moveStorage(agent string) {
	c := &mem.Control
	former := c.StorageAgent
	if former == agent {
		return
	}
	c.StorageAgent = agent
	for i := range mem.WorkingMemory {
		mem.WorkingMemory[i].Loaded = false
	}
	if at := slices.IndexFunc(c.Turns, isPaged); at >= 0 {
		c.Turns[at].Content = fmt.Sprintf("[moorebus: entries of working memory went to the storage of agent %s before; this run uses that of agent %s, where storage_load does not find them]",
			former, agent)
	}
}

func isPaged(t Turn) bool { return t.Kind == TurnPaged }

// tagsText names a set of tags.
func tagsText(tags []string) string { return strings.Join(tags, ", ") }

// PagedNote is what the model is told of a paging: the tags of some of the entries
// that went, and how to have them back.
func PagedNote(p *events.PageDone) string {
	all := slices.Concat(p.Paged, p.Dropped)
	var b strings.Builder
	fmt.Fprintf(&b, "[moorebus: working memory was full: %d of its entries went to storage", len(all))
	if len(p.Dropped) > 0 {
		fmt.Fprintf(&b, ", %d of them only because they were the oldest", len(p.Dropped))
	}
	b.WriteString(". storage_load brings an entry back by its tags. The tags: ")
	named := 0
	for _, entry := range all {
		text := tagsText(NormalTags(entry.Tags))
		if named == notedSets || b.Len()+len(text) > notedBytes {
			break
		}
		if named++; named > 1 {
			b.WriteString("; ")
		}
		b.WriteString(text)
	}
	if rest := len(all) - named; rest > 0 {
		fmt.Fprintf(&b, "; and %d more, which storage_search lists", rest)
	}
	b.WriteString("]")
	return b.String()
}
