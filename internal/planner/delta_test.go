package planner_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/output"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
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

// A piece of a call that comes after the reply's event is late, also where the reply
// has no text: the event names what was streamed.
func TestPiecesOfACallAreLateAfterItsEvent(t *testing.T) {
	for name, c := range map[string]llm.Call{
		"a tool's": call("a", "alpha", `{"q":1}`), "Moorebus' own": call("a", ours[0], `{"count":2}`), "one of several pools": call("a", "beta", "{}"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, []any{ask(c), say("That is all.")}, func(t *testing.T, r *rig) {
				run := r.Store.Place(events.DefaultNamespace, r.Store.NewID())
				var pieces [][]byte
				stop, err := r.Journal.WatchChunks(run, func(data []byte) { pieces = append(pieces, data) })
				require.NoError(t, err)
				r.Append(run, events.Idle, startOf(narrow(4)))
				e := r.event(run, 2)
				synctest.Wait()
				stop()
				require.NotEmpty(t, pieces)
				body := r.Records(run)[1].Body

				listener := livetext.NewListener(r.Journal, run)
				_, passed := listener.News(pieces[0])
				require.True(t, passed)
				id, _ := livetext.MessageOf(body)
				listener.Over(id)
				_, passed = listener.News(pieces[0])
				require.False(t, passed)

				told := 0
				stream := output.NewStream(reducer.DefaultTable(), func(output.Output) { told++ })
				stream.Event(r.Memory(run), e)
				told = 0
				stream.Chunk(pieces[0])
				require.Zero(t, told)
			})
		})
	}
}
