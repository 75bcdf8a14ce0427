package contextedit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// edited is past in a loop with a window.
func edited(n, bytes, window int) *reducer.Memory {
	mem := past(n, bytes)
	mem.ReactContext = &reducer.ReactContext{ContextWindowSize: window}
	mem.Config.ContextWindowSize, mem.Config.ExpandContextWindowSize = window, 10
	return mem
}

// spoken adds messages of so many bytes.
func spoken(mem *reducer.Memory, n, bytes int) *reducer.Memory {
	for range n {
		text := strings.Repeat("x", bytes)
		mem.Messages = append(mem.Messages, reducer.Message{Content: text})
		mem.Control.Turns = append(mem.Control.Turns, reducer.Turn{Kind: "reply", Content: text})
	}
	return mem
}

func loadOf(ids ...string) events.Call {
	arguments, _ := json.Marshal(map[string]any{"call_ids": ids})
	return events.Call{ID: "l", Name: loadToolResult, Arguments: string(arguments)}
}

func ids(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint("c", i))
	}
	return all
}

// answered carries out calls of one reply.
func answered(mem *reducer.Memory, calls ...events.Call) (all []events.Payload, says []events.Answer) {
	e := New(mem, schema.New(schema.Options{}), nil, calls)
	for _, call := range calls {
		p := e.Event(call)
		all, says = append(all, p), append(says, events.ReplyOf(p).Results[0])
	}
	return all, says
}

// One reply has only so much shown again, whichever calls it asks for that by, and is
// told what is not shown.
func TestLoadsOfAReplyAreBounded(t *testing.T) {
	t.Parallel()
	mem := edited(10, 60<<10, 2)
	all, says := answered(mem, loadOf(ids(0, 8)...), loadOf("c0", "c9", "nope"))
	require.Equal(t, ids(0, 4), all[0].(*events.ToolCallsAddedToContext).CallIDs)
	require.Equal(t, "ERROR: 4 are not shown, since they are too large. At most 272 KiB are shown at once and 544 KiB in all: load fewer. "+
		"Not shown: c4 (61445 bytes), c5 (61445 bytes), c6 (61445 bytes), c7 (61445 bytes). Shown: c0, c1, c2, c3.", says[0].Observation)
	require.Equal(t, codes.TooLarge, says[0].Code)
	require.Equal(t, []string{"c0"}, all[1].(*events.ToolCallsAddedToContext).CallIDs, "what is shown costs nothing")
	require.Equal(t, tool.CodeNotFound, says[1].Code)
	require.Contains(t, says[1].Observation, "Not shown: c9 (61445 bytes). Shown: c0. No such tool call: \"nope\".")

	_, says = answered(edited(20, 60<<10, 2), loadOf(ids(0, 20)...))
	require.Contains(t, says[0].Observation, "c8 (61445 bytes), and 11 more. Shown: c0, c1, c2, c3.")
	whole, says := answered(edited(1, 256<<10, 2), loadOf("c0"))
	require.Equal(t, []string{"c0"}, whole[0].(*events.ToolCallsAddedToContext).CallIDs, "a result that is kept whole fits")
	require.Equal(t, codes.OK, says[0].Code)
}

// And so has a whole loop.
func TestLoadsOfALoopAreBounded(t *testing.T) {
	t.Parallel()
	mem := edited(20, 60<<10, 2)
	mem.ReactContext.Edits = []reducer.Edit{{CallIDs: ids(0, 3)}, {CallIDs: ids(1, 7)}}
	mem.ReactContext.ToolCallIDs = ids(0, 8) // the last one is the loop's own
	all, says := answered(mem, loadOf(append(ids(0, 8), ids(10, 14)...)...))
	require.Equal(t, append(ids(0, 8), "c10", "c11"), all[0].(*events.ToolCallsAddedToContext).CallIDs)
	require.Equal(t, codes.TooLarge, says[0].Code)

	mem.ReactContext.Edits = []reducer.Edit{{CallIDs: ids(0, 10)}}
	all, _ = answered(mem, loadOf("c10"))
	require.Empty(t, all[0].(*events.ToolCallsAddedToContext).CallIDs)
}

// Older messages are shown as far as they fit.
func TestLoadedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	more := events.Call{ID: "m", Name: loadMessages, Arguments: `{"count":50}`}
	all, says := answered(spoken(edited(0, 0, 2), 30, 60<<10), more, more)
	require.Equal(t, 4, all[0].(*events.ContextWindowExpanded).Increment)
	require.Equal(t, "4 older messages are shown: now the last 6 of 30. The one before them is too large. "+
		"At most 272 KiB are shown at once and 544 KiB in all: load fewer.", says[0].Observation)
	require.Zero(t, all[1].(*events.ContextWindowExpanded).Increment)
	require.Equal(t, "ERROR: No older message is shown: the next one is too large. "+tooLarge, says[1].Observation)
	require.Equal(t, codes.TooLarge, says[1].Code)

	all, says = answered(spoken(edited(0, 0, 2), 30, 100), more, more)
	require.Equal(t, 30, all[0].(*events.ContextWindowExpanded).Increment)
	require.Equal(t, "28 older messages are shown: now the last 30 of 30.", says[0].Observation)
	require.Equal(t, "All 30 messages of the conversation are shown already.", says[1].Observation)

	wide := spoken(edited(5, 60<<10, 2), 30, 60<<10)
	wide.ReactContext.ContextWindowSize = 10 // by 8 messages
	_, says = answered(wide, more, loadOf("c0"))
	require.Contains(t, says[0].Observation, "1 older messages are shown: now the last 11 of 30.", "what is shown counts")
	require.Equal(t, codes.TooLarge, says[1].Code)
}

// What the searches of one reply list is bounded as well.
func TestListsOfAReplyAreBounded(t *testing.T) {
	t.Parallel()
	mem := edited(1000, 1, 2)
	for _, id := range mem.Control.CallOrder {
		mem.ToolCalls[id].Parameters = strings.Repeat("x", 200)
	}
	search := events.Call{ID: "s", Name: searchToolCalls, Arguments: `{"limit":100}`}
	calls := make([]events.Call, 30)
	for i := range calls {
		calls[i] = search
	}
	_, says := answered(mem, calls...)
	size := 0
	for _, answer := range says {
		size += len(answer.Observation)
	}
	require.Less(t, size, 2*listedBytes)
	require.Equal(t, `{"calls":[],"more":1000}`, says[29].Observation)
}

// However many shortened ids a reply has, the run is looked through once for them.
func TestShortenedIDsAreFoundAtOnce(t *testing.T) {
	t.Parallel()
	mem := edited(200_000, 1, 2)
	for i, id := range mem.Control.CallOrder {
		long := id + strings.Repeat("-", listedID)
		mem.ToolCalls[long], mem.Control.CallOrder[i] = mem.ToolCalls[id], long
	}
	wrong := make([]string, maxWanted)
	for i := range wrong {
		wrong[i] = fmt.Sprintf("%0*d…", listedID, i)
	}
	calls := make([]events.Call, 100)
	for i := range calls {
		calls[i] = loadOf(wrong...)
	}
	began := time.Now()
	e := New(mem, schema.New(schema.Options{}), nil, calls)
	require.Less(t, time.Since(began), 30*time.Second, "to look through it for each takes longer")
	require.Empty(t, e.answered)
}

// past is a memory of so many calls with results of so many bytes.
func past(n, bytes int) *reducer.Memory {
	mem := &reducer.Memory{ToolCalls: map[string]*reducer.ToolCallRecord{}}
	for i := range n {
		id := fmt.Sprint("c", i)
		mem.Control.CallOrder = append(mem.Control.CallOrder, id)
		mem.ToolCalls[id] = &reducer.ToolCallRecord{
			Name: "alpha", Result: &reducer.CallResult{Success: &reducer.Success{Content: strings.Repeat("x", bytes)}},
		}
	}
	return mem
}

type listing struct {
	Calls       []found `json:"calls"`
	More        int     `json:"more"`
	NotSearched int     `json:"not_searched"`
}

func searchedBy(t *testing.T, e *Edits, arguments string) (l listing) {
	t.Helper()
	p := e.Event(events.Call{ID: "s", Name: searchToolCalls, Arguments: arguments})
	require.NoError(t, json.Unmarshal([]byte(events.ReplyOf(p).Results[0].Observation), &l))
	return l
}

// All searches of a reply together look through so much of the run's results, the
// newest first, and say what they left out.
func TestSearchesOfAReplyAreBounded(t *testing.T) {
	t.Parallel()
	search := events.Call{Name: searchToolCalls, Arguments: "{}"}
	e := New(past(30, 1<<20), schema.New(schema.Options{}), nil, []events.Call{search, search})
	require.Len(t, e.history.calls, 15, "each counts its name as well")
	first := searchedBy(t, e, `{"query":"X","limit":3}`)
	require.Equal(t, []int{3, 12, 15}, []int{len(first.Calls), first.More, first.NotSearched})
	require.Equal(t, "c29", first.Calls[0].ID)
	second := searchedBy(t, e, `{"query":"X"}`)
	require.Equal(t, []int{0, 0, 30}, []int{len(second.Calls), second.More, second.NotSearched})
	require.Empty(t, New(past(30, 1), schema.New(schema.Options{}), nil, nil).history.calls, "nobody searches")
}

// A call's id is the provider's, and may be long: what is listed of it is enough to
// have the call shown.
func TestLongIDsAreListedShort(t *testing.T) {
	t.Parallel()
	mem, long := past(1, 1), strings.Repeat("é", 5000)
	mem.ToolCalls[long], mem.Control.CallOrder = mem.ToolCalls["c0"], []string{"c0", long}
	validator := schema.New(schema.Options{})
	listed := searchedBy(t, New(mem, validator, nil, []events.Call{{Name: searchToolCalls}}), "{}").Calls[0].ID
	require.Less(t, len(listed), 210)
	wanted, err := json.Marshal(map[string]any{"call_ids": []string{listed, "nope…"}})
	require.NoError(t, err)
	load := events.Call{ID: "l", Name: loadToolResult, Arguments: string(wanted)}
	p := New(mem, validator, nil, []events.Call{load}).Event(load).(*events.ToolCallsAddedToContext)
	require.Equal(t, []string{long}, p.CallIDs)
	require.Contains(t, p.Results[0].Observation, "No such tool call: \"nope…\"")
}
