package reducer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func remembered(value string, tags ...string) events.Entry {
	return events.Entry{Tags: tags, Value: value}
}

func pagedOut(tags ...string) *events.PageDone {
	p := &events.PageDone{}
	for _, tag := range tags {
		p.Paged = append(p.Paged, events.Entry{Tags: strings.Split(tag, "+")})
	}
	return p
}

// The model hears of a paging, and of the last one alone.
func TestPagedNote(t *testing.T) {
	t.Parallel()
	s := started(t)
	var notes []string
	for i := range 3 {
		id, tag := fmt.Sprint("c", i), fmt.Sprint("t", i)
		s = s.do(single(id, "alpha"), &events.WorkingMemoryAdded{Entry: remembered("v", tag, "x y")}, success(id, "1"), &events.NeedsPaging{}, pagedOut("x y+"+tag))
		require.Empty(t, s.Mem.WorkingMemory)
		notes = nil
		for _, m := range reducer.View(nil, s.Mem) {
			if strings.HasPrefix(m.Content, "[moorebus: ") {
				require.Equal(t, "user", m.Role)
				notes = append(notes, m.Content)
			}
		}
		require.Equal(t, []string{"[moorebus: working memory was full: 1 of its entries went to storage. " +
			"storage_load brings an entry back by its tags. The tags: " + tag + ", x_y]"}, notes)
	}
	before := len(s.Mem.Control.Turns)
	s = s.do(single("d", "alpha"), success("d", "1"), &events.NeedsPaging{}, &events.PageDone{})
	require.Len(t, s.Mem.Control.Turns, before+1, "the reply alone: of nothing nothing is said")
}

// However much goes, the note is short.
func TestPagedNoteIsBounded(t *testing.T) {
	t.Parallel()
	var many, long []string
	for i := range 500 {
		many = append(many, fmt.Sprint("t", i))
		long = append(long, strings.Repeat("l", 400)+fmt.Sprint(i))
	}
	require.Contains(t, reducer.PagedNote(pagedOut(many...)), "t8; t9; and 490 more, which storage_search lists]")
	for _, p := range []*events.PageDone{pagedOut(many...), pagedOut(long...), {Dropped: pagedOut(strings.Repeat("x", 100_000)).Paged}} {
		require.Less(t, len(reducer.PagedNote(p)), 1300)
	}
	require.Contains(t, reducer.PagedNote(&events.PageDone{Dropped: pagedOut("a").Paged}), "1 of them only because they were the oldest")
}

// SPEC B26-28: a ring of so many entries, numbered on and on, the oldest dropped.
func TestThinkingLogKeepsItsLastEntries(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{10, 1, 0} {
		s := started(t, func(p *events.Start) { p.Agent.Config.ThinkingLogEntries, p.Agent.Config.MaxSteps = limit, 2000 })
		for i := 1; i <= 1003; i++ {
			s = s.do(&events.LLMThought{Reply: events.Reply{Content: fmt.Sprint("thought ", i)}})
			if i == 3 && limit == 10 {
				require.Equal(t, []reducer.Thought{
					{Name: "thinking_log_001", Content: "thought 1"}, {Name: "thinking_log_002", Content: "thought 2"}, {Name: "thinking_log_003", Content: "thought 3"},
				}, s.Mem.ThinkingLog)
			}
		}
		require.Len(t, s.Mem.ThinkingLog, limit)
		for i, thought := range s.Mem.ThinkingLog {
			n := 1003 - limit + 1 + i
			require.Equal(t, reducer.Thought{Name: fmt.Sprintf("thinking_log_%03d", n), Content: fmt.Sprint("thought ", n)}, thought)
		}
	}
}

// What the fork of a run loads and adds is marked as in the run.
func TestEntriesSayWhereTheyAreFrom(t *testing.T) {
	t.Parallel()
	s := started(t).do(single("a", "alpha"), &events.StorageLoaded{Tags: []string{"k"}, Entries: []events.Entry{remembered("1", "k"), remembered("2", "k", "l")}})
	require.True(t, s.Mem.WorkingMemory[0].Loaded)
	require.Equal(t, 1, s.Mem.WorkingMemory[1].Step)
	s = s.do(&events.WorkingMemoryAdded{Entry: remembered("3", "k")})
	require.Equal(t, []bool{true, false}, []bool{s.Mem.WorkingMemory[0].Loaded, s.Mem.WorkingMemory[1].Loaded}, "what replaces it is the model's own")
}
