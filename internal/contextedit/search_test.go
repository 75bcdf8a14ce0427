package contextedit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

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
	e := New(past(30, 1<<20), schema.New(schema.Options{}), []events.Call{search, search})
	require.Len(t, e.history.calls, 15, "each counts its name as well")
	first := searchedBy(t, e, `{"query":"X","limit":3}`)
	require.Equal(t, []int{3, 12, 15}, []int{len(first.Calls), first.More, first.NotSearched})
	require.Equal(t, "c29", first.Calls[0].ID)
	second := searchedBy(t, e, `{"query":"X"}`)
	require.Equal(t, []int{0, 0, 30}, []int{len(second.Calls), second.More, second.NotSearched})
	require.Empty(t, New(past(30, 1), schema.New(schema.Options{}), nil).history.calls, "nobody searches")
}

// A call's id is the provider's, and may be long: what is listed of it is enough to
// have the call shown.
func TestLongIDsAreListedShort(t *testing.T) {
	t.Parallel()
	mem, long := past(1, 1), strings.Repeat("é", 5000)
	mem.ToolCalls[long], mem.Control.CallOrder = mem.ToolCalls["c0"], []string{"c0", long}
	validator := schema.New(schema.Options{})
	listed := searchedBy(t, New(mem, validator, []events.Call{{Name: searchToolCalls}}), "{}").Calls[0].ID
	require.Less(t, len(listed), 210)
	wanted, err := json.Marshal(map[string]any{"call_ids": []string{listed, "nope…"}})
	require.NoError(t, err)
	load := events.Call{ID: "l", Name: loadToolResult, Arguments: string(wanted)}
	p := New(mem, validator, []events.Call{load}).Event(load).(*events.ToolCallsAddedToContext)
	require.Equal(t, []string{long}, p.CallIDs)
	require.Contains(t, p.Results[0].Observation, "No such tool call: \"nope…\"")
}
