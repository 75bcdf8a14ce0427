package reducer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// mayWrite lists, for every event type, the parts of memory that its fold may
// change, beside n, state, trace, updated and the runtime's own control.
var mayWrite = map[events.Type]string{
	events.TypeStart:                   "task task_type system_prompt mode budget messages tools react_context config blacklist started",
	events.TypeUserMessage:             "messages react_context retry_count final_answer",
	events.TypeLLMToolCall:             "step retry_count confidence_score total_usage current_tool_call messages tool_calls react_context",
	events.TypeLLMParallelToolCalls:    "step retry_count confidence_score total_usage pending_tool_calls parallel_results messages tool_calls react_context",
	events.TypeHumanApprovalRequired:   "step retry_count confidence_score total_usage current_tool_call pending_tool_calls parallel_results messages tool_calls react_context pending_approval",
	events.TypeLLMFinalAnswer:          "step total_usage final_answer messages react_context",
	events.TypeLLMMessageComplete:      "step total_usage final_answer messages react_context",
	events.TypeLLMThought:              "step total_usage thinking_log",
	events.TypeLowConfidence:           "step total_usage confidence_score retry_count",
	events.TypeAnswerTooShort:          "step total_usage",
	events.TypeToolBlacklisted:         "step total_usage messages tool_calls react_context",
	events.TypeReplyInvalid:            "step total_usage messages tool_calls react_context",
	events.TypeMaxSteps:                "error react_context",
	events.TypeBudgetExceeded:          "error react_context",
	events.TypeFatalError:              "error react_context total_usage",
	events.TypeCancelled:               "react_context",
	events.TypeClosed:                  "react_context",
	events.TypeHumanDecision:           "pending_approval",
	events.TypeHumanApproved:           "pending_approval",
	events.TypeHumanModified:           "pending_approval current_tool_call tool_calls",
	events.TypeHumanApprovedParallel:   "pending_approval pending_tool_calls parallel_results tool_calls",
	events.TypeHumanRejected:           "pending_approval last_observation parallel_results tool_calls",
	events.TypeApprovalExpired:         "pending_approval last_observation parallel_results tool_calls",
	events.TypeToolSuccess:             "last_observation tool_calls",
	events.TypeToolFailure:             "last_observation tool_calls",
	events.TypeToolCallResult:          "parallel_results tool_calls",
	events.TypeToolCallDispatched:      "",
	events.TypeToolCallStarted:         "",
	events.TypeContinue:                "history current_tool_call last_observation pending_tool_calls parallel_results",
	events.TypeNeedsReflection:         "history current_tool_call last_observation pending_tool_calls parallel_results react_context",
	events.TypeNeedsPaging:             "history current_tool_call last_observation pending_tool_calls parallel_results",
	events.TypeReflectDone:             "history retry_count total_usage react_context",
	events.TypePageDone:                "working_memory",
	events.TypeLLMAttemptFailed:        "total_usage messages react_context",
	events.TypeContextWindowExpanded:   "step total_usage messages react_context",
	events.TypeToolCallsAddedToContext: "step total_usage messages react_context",
	events.TypeWorkingMemoryAdded:      "working_memory",
	events.TypeWorkingMemoryRemoved:    "working_memory",
	events.TypeStorageSaved:            "working_memory",
	events.TypeStorageLoaded:           "working_memory",
	events.TypePaused:                  "",
	events.TypeResumed:                 "",
	events.TypeBudgetRaised:            "budget",
	events.TypeCustomMemorySet:         "custom",
	events.TypeAdmitted:                "",
	events.TypeHandedOff:               "system_prompt tools config blacklist react_context",
}

func always(key string) bool {
	return slices.Contains([]string{"n", "state", "trace", "updated", "control"}, key)
}

func fields(t require.TestingT, mem *reducer.Memory) map[string]json.RawMessage {
	text := []byte(reducertest.Canonical(mem))
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &m))
	return m
}

// checkOwner requires that the event wrote only what its type and the state it
// came out of may write: SPEC section 3.
func checkOwner(t require.TestingT, before, after *reducer.Memory, e *events.Event) {
	a, b := fields(t, before), fields(t, after)
	changed := map[string]bool{}
	for key := range b {
		if string(a[key]) == string(b[key]) {
			continue
		}
		changed[key] = true
		if !always(key) {
			require.Contains(t, strings.Fields(mayWrite[e.Type()]), key, "%s in %s may not change %s", e.Type(), e.From, key)
		}
	}
	require.Len(t, b, len(a), "no field comes or goes")
	from := func(states ...events.State) bool { return slices.Contains(states, e.From) }
	if changed["step"] {
		require.True(t, from(events.Planning))
		require.Equal(t, before.Step+1, after.Step)
	}
	if changed["current_tool_call"] {
		cleared := from(events.Observing) && after.CurrentToolCall == nil
		require.True(t, from(events.Planning) || cleared || e.Type() == events.TypeHumanModified)
	}
	if changed["last_observation"] {
		cleared := from(events.Observing) && after.LastObservation == nil
		require.True(t, from(events.Acting, events.WaitingForHuman) || cleared)
	}
	if changed["final_answer"] && after.FinalAnswer == nil {
		require.Equal(t, events.ModeChat, after.Mode, "never cleared in task mode")
		require.Equal(t, events.TypeUserMessage, e.Type())
	} else if changed["final_answer"] {
		require.True(t, from(events.Planning))
	}
	if changed["error"] {
		require.NotNil(t, after.Error, "never cleared")
		require.Equal(t, events.Errored, after.State)
	}
	if changed["history"] && from(events.Observing) {
		require.Equal(t, before.History, after.History[:len(before.History)], "Observing appends")
	} else if changed["history"] {
		require.True(t, from(events.Reflecting))
		require.Len(t, after.History, 1)
		require.Equal(t, "[SUMMARY]", after.History[0].Tool.Name)
	}
	require.Len(t, after.Trace, len(before.Trace)+1, "every event is in the trace")
	require.Equal(t, before.Trace, after.Trace[:len(before.Trace)])
}

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

// Storage and working memory may hold two values under the same tags: what was said
// last must be the one that stays.
func TestTheLastValueStays(t *testing.T) {
	entry := func(value string, tags ...string) events.Entry { return events.Entry{Tags: tags, Value: value} }
	for name, c := range map[string]struct {
		happens []events.Payload
		value   string
		loaded  bool
	}{
		"a load leaves what was not saved": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("new", "b", "a a")},
			&events.StorageLoaded{Tags: []string{"b"}, Entries: []events.Entry{entry("old", "a_a", "b")}},
		}, "new", false},
		"the same value was saved": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("same", "a")},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("same", "a")}},
		}, "same", true},
		"a load replaces what was loaded": {[]events.Payload{
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("old", "a")}},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("new", "a")}},
		}, "new", true},
		"a save is newer than working memory": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("old", "a")},
			&events.StorageSaved{Entry: entry("new", "a")},
		}, "old", true},
		"and is loaded": {[]events.Payload{
			&events.WorkingMemoryAdded{Entry: entry("old", "a")},
			&events.StorageSaved{Entry: entry("new", "a")},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("new", "a")}},
		}, "new", true},
		"what is added after a save is newer": {[]events.Payload{
			&events.StorageSaved{Entry: entry("old", "a")},
			&events.WorkingMemoryAdded{Entry: entry("new", "a")},
			&events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{entry("old", "a")}},
		}, "new", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := at(events.Acting)(t)
			for _, p := range c.happens {
				s.do(p)
			}
			require.Len(t, s.Mem.WorkingMemory, 1)
			require.Equal(t, c.value, s.Mem.WorkingMemory[0].Value)
			require.Equal(t, c.loaded, s.Mem.WorkingMemory[0].Loaded)
		})
	}
}
