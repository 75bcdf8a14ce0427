package planner_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/planner"
)

// Calls are streamed beside the text, told apart from it by their kind.
func TestToolCallsAreStreamed(t *testing.T) {
	mock := scripted.NewMock(llm.ToolCalls{Content: "let me see", Calls: []llm.Call{
		{ID: "a", Name: "one", Arguments: `{"a":1}`}, {ID: "b", Name: "two", Arguments: "{\"b\":\"\xff\"}"},
	}}, say("never shown"))
	bubbleWith(t, mock, func(t *testing.T, r *rig) {
		run := r.Store.Place(events.DefaultNamespace, r.Store.NewID())
		var text string
		calls := map[int]planner.ToolCallChunk{}
		stop, err := r.Journal.WatchChunks(run, func(data []byte) {
			var c planner.ToolCallChunk
			if err := json.Unmarshal(data, &c); err != nil {
				t.Error(err)
				return
			}
			if c.Kind == "" {
				text += c.Text
				return
			}
			if c.Kind != planner.ChunkToolCall || c.MessageID == "" {
				t.Errorf("chunk %+v", c)
			}
			if text == "let me see" {
				calls[c.Index] = c
			}
		})
		require.NoError(t, err)
		r.Append(run, events.Idle, startOf())
		r.AwaitEnd(run)
		synctest.Wait()
		stop()
		require.Len(t, calls, 2)
		require.Equal(t, "one", calls[0].Name)
		require.Equal(t, `{"a":1}`, calls[0].Text)
		require.Equal(t, "{\"b\":\"\uFFFD\"}", calls[1].Text)
	})
}
