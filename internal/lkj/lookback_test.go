package lkj_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// historian is a model that looks back all the time: it keeps something, looks for what
// it kept, has all of that shown again, and more of the conversation.
type historian struct {
	mu sync.Mutex
	// sizes are the bytes of what it was sent, in order.
	sizes []int
}

var foundID = regexp.MustCompile(`"id":"([^"]+)"`)

func (h *historian) call(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
	var prompt strings.Builder
	for _, m := range req.Messages {
		prompt.WriteString(m.Content)
	}
	h.mu.Lock()
	h.sizes = append(h.sizes, prompt.Len())
	h.mu.Unlock()
	act := action("storage_save", fmt.Sprintf("n_%d", req.Replies), strings.Repeat("to be remembered ", 20))
	switch req.Replies % 4 {
	case 1:
		act = "<type>moorebus_search_tool_calls</type><name>storage_save</name><limit>100</limit>"
	case 2:
		var ids []string
		text := prompt.String()
		for _, found := range foundID.FindAllStringSubmatch(text[strings.LastIndex(text, `{"calls":[`):], 100) {
			ids = append(ids, found[1])
		}
		act = "<type>moorebus_load_tool_result</type><call_ids>" + strings.Join(ids, ",") + "</call_ids>"
	case 3:
		act = "<type>moorebus_load_messages</type><count>50</count>"
	}
	return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "<agent><action>" + act + "</action></agent>"}, nil
}

// TestAThousandIterationsOfLookingBack: an imported agent, which never reflects, may
// have shown again what it did as often as it likes. What it is sent stays as large as
// it was.
func TestAThousandIterationsOfLookingBack(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: a thousand iterations take half a minute
	}
	t.Parallel()
	model := &historian{}
	s := newSite(t, llm.CallerFunc(model.call))
	count := map[events.Type]int{}
	_, mem := s.run(imported(t), func(_ *reducer.Memory, e *events.Event, _ journal.Record) {
		count[e.Type()]++
		if p, ok := e.Data.(*events.ToolCallsAddedToContext); ok {
			count["calls that were shown again"] += len(p.CallIDs)
		}
	})
	require.Equal(t, "max_iterations", mem.Error.Code, mem.Error.Message)
	require.Equal(t, iterations/4, count[events.TypeContextWindowExpanded], "%v", count)
	require.Equal(t, iterations/2, count[events.TypeToolCallsAddedToContext], "%v", count)
	require.Zero(t, count[events.TypeReplyInvalid])
	require.Greater(t, count["calls that were shown again"], iterations*iterations/50, "of ever more")
	require.Len(t, model.sizes, iterations)
	early, most := slices.Max(model.sizes[:iterations/2]), slices.Max(model.sizes)
	t.Logf("the largest request has %d bytes, in the first half %d", most, early)
	require.LessOrEqual(t, most, early+early/10)
	require.Less(t, len(mem.Control.Internal), 50)
}
