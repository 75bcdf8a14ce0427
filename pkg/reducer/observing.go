package reducer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

var observingRules = []rule{
	{
		typ: events.TypeContinue, adds: true, moves: []move{{events.Observing, events.Planning}}, from: own,
		check: always, legality: 1, fold: commit, trace: says("the next step"),
	},
	{
		typ: events.TypeNeedsReflection, moves: []move{{events.Observing, events.Reflecting}, {events.Planning, events.Reflecting}}, from: own,
		check: checkNeedsReflection, legality: 2, fold: foldNeedsReflection, trace: says("a reflection is due"),
	},
	{
		typ: events.TypeNeedsPaging, moves: []move{{events.Observing, events.Paging}}, from: own,
		check: always, legality: 1, fold: commit, trace: says("working memory is too large"),
	},
	{
		typ: events.TypeReflectDone, moves: []move{{events.Reflecting, events.Planning}}, from: own,
		check: always, legality: 1, fold: foldReflection,
		trace: traced(func(r *events.ReflectDone) string { return r.Summary + r.Failed }),
	},
	{
		typ: events.TypePageDone, moves: []move{{events.Paging, events.Planning}}, from: own,
		check: always, legality: 1, fold: foldPaged,
		trace: traced(func(d *events.PageDone) string {
			return fmt.Sprintf("%d entries to storage, %d dropped", len(d.Paged), len(d.Dropped))
		}),
	},
}

// checkNeedsReflection lets the planner compress a request that is too long once.
func checkNeedsReflection(mem *Memory, _ *events.Event) error {
	switch {
	case mem.State != events.Planning:
		return nil
	case len(mem.Control.Queued) > 0:
		return fmt.Errorf("comes before %d calls of the last reply have gone out", len(mem.Control.Queued))
	case mem.Control.Compacted == CompactedSummary:
		return errors.New("compresses a request that was compressed before")
	}
	return nil
}

func foldNeedsReflection(mem *Memory, e *events.Event) {
	if e.From == events.Planning {
		mem.narrowWindow(leastShare)
		mem.Control.Compacted = CompactedSummary
		return
	}
	commit(mem, e)
}

// commit puts the reply's results into the history and clears what belongs to the
// reply.
func commit(mem *Memory, _ *events.Event) {
	c := &mem.Control
	if c.Last != nil {
		mem.commitResult(*c.Last)
	}
	for _, r := range mem.ParallelResults {
		mem.commitResult(r)
	}
	for _, r := range c.Refused {
		mem.commitResult(ToolResult{
			ToolCall:    ToolCall{ID: r.ID, Name: r.Name, Arguments: r.Arguments},
			Observation: r.Observation, Code: r.Code,
		})
	}
	mem.CurrentToolCall, mem.LastObservation = nil, nil
	mem.PendingToolCalls, mem.ParallelResults = []ToolCall{}, []ToolResult{}
	c.Calls, c.Refused, c.Batch, c.Last = nil, nil, false, nil
}

func (mem *Memory) commitResult(r ToolResult) {
	mem.History = append(mem.History, HistoryEntry{
		Step: mem.Step, Tool: r.ToolCall, Observation: r.Observation, Success: r.Success, Code: r.Code,
	})
}

func foldReflection(mem *Memory, e *events.Event) {
	p, c := e.Data.(*events.ReflectDone), &mem.Control
	if p.Usage != nil {
		mem.addUsage(*p.Usage)
	}
	if c.Compacted != CompactedSummary {
		if !c.LowPending {
			mem.RetryCount = 0
		}
		c.LowPending = false
	}
	if p.Summary == "" {
		return
	}
	mem.History = []HistoryEntry{{
		Step: mem.Step, Tool: ToolCall{Name: summaryTool}, Observation: p.Summary, Success: true, Code: "ok",
	}}
	mem.summarize(p.Summary)
}

// summarize puts a summary in the place of the calls that it is made of; the
// conversation stays.
func (mem *Memory) summarize(summary string) {
	c := &mem.Control
	// A new slice: others may still read the old turns.
	turns := make([]Turn, 0, len(c.Turns))
	open := []string{}
	for _, t := range c.Turns {
		switch {
		case t.Kind == turnSummary:
		case len(t.Calls) == 0:
			turns = append(turns, t)
		case mem.unanswered(t.Calls):
			turns = append(turns, t)
			open = append(open, t.Calls...)
		case t.Content != "":
			turns = append(turns, Turn{Kind: turnReply, Content: t.Content})
		}
	}
	c.Turns = append(turns, Turn{Kind: turnSummary, Content: summary})
	c.Asked = lastAsked(c.Turns)
	if r := mem.ReactContext; r != nil {
		r.ToolCallIDs = open // what was summarized is shown again when it is asked for
		r.changeEdits(func(e *Edit) { e.CallIDs = nil })
	}
	// What was shown is not shown any more, so nothing may say that it is.
	c.Internal = slices.DeleteFunc(slices.Clone(c.Internal), func(call InternalCall) bool { return !slices.Contains(open, call.ID) })
}

// unanswered reports whether one of the calls has no result yet: then its
// reply stays as it is, so that no result is parted from its call.
func (mem *Memory) unanswered(ids []string) bool {
	for _, id := range ids {
		if record := mem.ToolCalls[id]; record != nil && record.Result == nil {
			return true
		}
	}
	return false
}

// The bounds of what the model sees of a paging.
const (
	notedSets  = 10
	notedBytes = 1 << 10
)

// foldPaged removes what went to storage from working memory, and adds a note for the
// model. Only the last such note stays: what earlier ones name lies in storage all
// the same, and notes must not fill the conversation of a long run.
func foldPaged(mem *Memory, e *events.Event) {
	p := e.Data.(*events.PageDone)
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
	mem.addTurn(Turn{Kind: turnPaged, Content: pagedNote(p)})
}

// moveStorage gives the run the storage of another agent. What it loaded from the
// former one lies nowhere in this one, so paging has to store it; what was paged to
// the former one cannot be loaded, and a note tells the model.
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

func isPaged(t Turn) bool { return t.Kind == turnPaged }

func tagsText(tags []string) string { return strings.Join(tags, ", ") }

// pagedNote is what the model sees of a paging: the tags of some of the entries
// that went, and how to have them back.
func pagedNote(p *events.PageDone) string {
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
