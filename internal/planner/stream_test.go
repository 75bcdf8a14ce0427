package planner_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// talker says its words one a second, and then replies with what it said, or with
// something else.
func talker(reply string, words ...string) llm.Caller {
	return llm.CallerFunc(func(_ context.Context, _ llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		for _, word := range words {
			time.Sleep(time.Second) // in the bubble
			if stream != nil {
				stream(llm.Chunk{Kind: llm.ChunkText, Text: word})
			}
		}
		if reply == "" {
			reply = strings.Join(words, "")
		}
		return say(reply), nil
	})
}

// heard collects what a listener is told.
type heard struct {
	mu    sync.Mutex
	raw   []livetext.Chunk
	text  string
	again int
}

func (r *rig) listen(run events.Run) (*heard, *livetext.Listener) {
	r.T.Helper()
	h, l := &heard{}, livetext.NewListener(r.Journal, run)
	stop, err := r.Journal.WatchChunks(run, func(data []byte) {
		h.mu.Lock()
		defer h.mu.Unlock()
		var c livetext.Chunk
		if err := json.Unmarshal(data, &c); err != nil {
			r.T.Error(err)
		}
		h.raw = append(h.raw, c)
		news, ok := l.Hear(data)
		if !ok {
			return
		}
		if news.Offset == 0 {
			h.text, h.again = "", h.again+1
		}
		h.text += news.Text
	})
	require.NoError(r.T, err)
	r.T.Cleanup(stop)
	return h, l
}

// messages returns how many messages with chunks came.
func (h *heard) messages() int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.raw)
}

func (h *heard) now() string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text
}

func TestLateListenersHearWhatWasSaid(t *testing.T) {
	bubbleWith(t, talker("", "It ", "is ", "for", "ty-", "two."), func(t *testing.T, r *rig) {
		run := r.begin()
		early, _ := r.listen(run)
		time.Sleep(2500 * time.Millisecond) // in the bubble
		late, l := r.listen(run)
		require.Empty(t, late.now())
		l.Ask()
		require.Equal(t, "It is ", late.now())
		time.Sleep(time.Second) // in the bubble
		require.Equal(t, "It is for", late.now())
		r.AwaitEnd(run)
		require.Equal(t, "It is forty-two.", late.now())
		require.Equal(t, "It is forty-two.", early.now())
		require.Equal(t, 1, early.again, "who has it is not told again")
		l.Ask()
		require.NoError(t, r.Journal.AskCatchUp(run))
		said := len(early.raw)
		quiet()
		require.Len(t, early.raw, said, "after the reply nobody answers: it is in the log")
	})
}

// TestManyListeners: however many ask, the text is said again ten times a second
// at most, and nobody who asked is left out.
func TestManyListeners(t *testing.T) {
	bubbleWith(t, talker("", "one", "two"), func(t *testing.T, r *rig) {
		run := r.begin()
		h, _ := r.listen(run)
		time.Sleep(1500 * time.Millisecond) // in the bubble
		for range 450 {
			require.NoError(t, r.Journal.AskCatchUp(run))
			require.NoError(t, r.Journal.AskCatchUp(r.Store.Place("default", r.Store.NewID())), "of nobody's run")
			time.Sleep(time.Millisecond) // in the bubble
		}
		synctest.Wait()
		caught := 0
		for _, c := range h.raw {
			if c.CatchUp {
				caught++
			}
		}
		require.InDelta(t, 5, caught, 1)
		require.NoError(t, r.Journal.AskCatchUp(run))
		r.AwaitEnd(run)
		quiet()
	})
}

// TestABrokenStreamIsSaidAgain: the reply that came otherwise takes the place of
// what was heard.
func TestABrokenStreamIsSaidAgain(t *testing.T) {
	long := strings.Repeat("größer ", 30_000) // several messages
	bubbleWith(t, talker(long, "It is thir"), func(t *testing.T, r *rig) {
		run := r.begin(config(func(c *events.Config) { c.RecordChunks = true }))
		h, _ := r.listen(run)
		r.AwaitEnd(run)
		require.Equal(t, long, h.now())
		require.Equal(t, 2, h.again)
		for _, c := range h.raw {
			require.LessOrEqual(t, len(c.Text), 64<<10)
		}
		answer := r.Events(run)[1].Data.(*events.LLMFinalAnswer)
		require.Equal(t, events.Chunks{{1000, int64(len(long))}}, answer.Chunks, "what was heard before is void")
	})
}

func TestChunksAreRecorded(t *testing.T) {
	records := config(func(c *events.Config) { c.RecordChunks = true })
	words := []string{"It ", "is ", "größer."}
	for _, noStream := range []bool{false, true} {
		bubbleWith(t, talker("", words...), func(t *testing.T, r *rig) {
			run := r.begin(records)
			h, _ := r.listen(run)
			r.AwaitEnd(run)
			answer := r.Events(run)[1].Data.(*events.LLMFinalAnswer)
			require.Equal(t, events.Chunks{{1000, 3}, {2000, 3}, {3000, 9}}, answer.Chunks)
			text, chunks := events.ChunksOf(answer)
			require.Equal(t, "It is größer.", text)
			require.Equal(t, answer.Chunks, chunks)
			require.Equal(t, noStream, h.now() == "", "what is recorded need not be streamed")
			told := 0
			for _, c := range h.raw {
				require.Equal(t, answer.MessageID, c.MessageID)
				require.Equal(t, told, c.Offset)
				told += len(c.Text)
			}
		}, func(c *planner.Config) { c.NoStream = noStream })
	}
	bubbleWith(t, talker("", words...), func(t *testing.T, r *rig) {
		run := r.begin()
		r.AwaitEnd(run)
		require.NotContains(t, string(r.Records(run)[1].Body), "chunks", "only where it is wanted")
	})
}

func TestRecordedChunksAreBounded(t *testing.T) {
	words := make([]string, 3000)
	for i := range words {
		words[i] = "word "
	}
	bubbleWith(t, talker("", words...), func(t *testing.T, r *rig) {
		run := r.begin(config(func(c *events.Config) { c.RecordChunks = true }))
		h, _ := r.listen(run)
		r.AwaitEnd(run)
		answer := r.Events(run)[1].Data.(*events.LLMFinalAnswer)
		_, chunks := events.ChunksOf(answer)
		require.NotNil(t, chunks, "they add up to the text, in order")
		require.LessOrEqual(t, len(chunks), 256)
		require.Greater(t, len(chunks), 100)
		require.Equal(t, int64(3_000_000), chunks[len(chunks)-1][0])
		require.Equal(t, answer.Content, h.now())
	}, func(c *planner.Config) { c.CallTimeout = 2 * time.Hour })
}

// TestFastChunksAreJoined shows that parts that come in quick succession share messages, that
// they are published within a moment although nothing follows, and all before the reply's event.
func TestFastChunksAreJoined(t *testing.T) {
	word := "word "
	bursts := llm.CallerFunc(func(_ context.Context, _ llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		for range 2 {
			time.Sleep(time.Second) // in the bubble
			for range 100 {
				stream(llm.Chunk{Kind: llm.ChunkText, Text: word})
			}
		}
		for range 100 {
			time.Sleep(10 * time.Millisecond) // in the bubble
			stream(llm.Chunk{Kind: llm.ChunkText, Text: word})
		}
		return say(strings.Repeat(word, 300)), nil
	})
	bubbleWith(t, bursts, func(t *testing.T, r *rig) {
		run := r.begin()
		h, _ := r.listen(run)
		time.Sleep(time.Second) // in the bubble
		require.Equal(t, word, h.now(), "the first is published at once")
		time.Sleep(50 * time.Millisecond) // in the bubble
		require.Len(t, h.now(), 100*len(word))
		require.Equal(t, 2, h.messages())
		time.Sleep(time.Second) // in the bubble
		require.GreaterOrEqual(t, len(h.now()), 202*len(word), "nothing waits longer than a moment")
		r.AwaitEnd(run)
		require.Equal(t, strings.Repeat(word, 300), h.now(), "without what the event adds")
		require.Equal(t, 1, h.again)
		require.Less(t, h.messages(), 45)
	})
	bubbleWith(t, talker("", strings.Repeat("long ", 1000), "end."), func(t *testing.T, r *rig) {
		run := r.begin()
		h, _ := r.listen(run)
		r.AwaitEnd(run)
		require.Len(t, h.now(), 5004)
	})
}

// Pieces of one call are joined, those of different calls and the text are told apart.
func TestPiecesOfCallsAreJoined(t *testing.T) {
	pieces := llm.CallerFunc(func(_ context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		if len(req.Messages) > 2 {
			return say("done"), nil
		}
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "Let "})
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "me."})
		for i, name := range []string{"alpha", "beta"} {
			stream(llm.Chunk{Kind: llm.ChunkToolCall, Index: i, Name: name})
			for _, part := range []string{`{"q"`, `:`, `1}`} {
				stream(llm.Chunk{Kind: llm.ChunkToolCall, Index: i, Text: part})
			}
		}
		return say("Let me."), nil
	})
	bubbleWith(t, pieces, func(t *testing.T, r *rig) {
		run := r.Store.Place(events.DefaultNamespace, r.Store.NewID())
		var told []string
		stop, err := r.Journal.WatchChunks(run, func(data []byte) {
			var c planner.ToolCallChunk
			if err := json.Unmarshal(data, &c); err != nil {
				t.Error(err)
			}
			told = append(told, c.Kind+" "+c.Name+" "+c.Text)
		})
		require.NoError(t, err)
		r.Append(run, events.Idle, startOf())
		r.AwaitEnd(run)
		synctest.Wait()
		stop()
		require.Equal(t, []string{"  Let ", "  me.", `tool_call alpha {"q":1}`, `tool_call beta {"q":1}`}, told)
	})
}

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
				stream := runstream.NewStream(reducer.DefaultTable(), func(runstream.Output) { told++ })
				stream.Event(r.Memory(run), e)
				told = 0
				stream.Chunk(pieces[0])
				require.Zero(t, told)
			})
		})
	}
}

// What the model reasons goes over the feed beside its text. Late listeners get both.
func TestReasoningIsStreamed(t *testing.T) {
	caller := llm.CallerFunc(func(_ context.Context, _ llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
		for _, c := range []llm.Chunk{
			{Kind: llm.ChunkReasoning, Text: "Six "}, {Kind: llm.ChunkReasoning, Text: "times seven."}, {Kind: llm.ChunkText, Text: "It is "},
		} {
			stream(c)
			time.Sleep(time.Second) // in the bubble
		}
		stream(llm.Chunk{Kind: llm.ChunkText, Text: "42."})
		return say("It is 42."), nil
	})
	bubbleWith(t, caller, func(t *testing.T, r *rig) {
		run := r.begin()
		var mu sync.Mutex // each listener has a goroutine of its own
		said := map[string]string{}
		listen := func(prefix string) {
			stop, err := livetext.Listen(r.Journal, run, func(news []byte) {
				mu.Lock()
				defer mu.Unlock()
				var c livetext.Chunk
				if err := json.Unmarshal(news, &c); err != nil || c.Offset != len(said[prefix+c.Kind]) {
					t.Errorf("chunk %s: %v", news, err)
				}
				said[prefix+c.Kind] += c.Text
			})
			require.NoError(t, err)
			t.Cleanup(stop)
		}
		listen("early ")
		time.Sleep(2500 * time.Millisecond) // in the bubble
		listen("late ")
		r.AwaitEnd(run)
		synctest.Wait()
		require.Equal(t, map[string]string{
			"early reasoning": "Six times seven.", "early text": "It is 42.", "late reasoning": "Six times seven.", "late text": "It is 42.",
		}, said)
	})
}
