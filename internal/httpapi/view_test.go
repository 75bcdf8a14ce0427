package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestLateReadersHearWhatWasSaid(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		run := r.At(id)
		path := "/v1/runs/" + id + "/events?from=2"
		asks := make(chan events.Run, 100)
		stop, err := r.Bus.WatchAsks(func(run events.Run) { asks <- run })
		require.NoError(t, err)
		defer stop()
		publish := func(c livetext.Chunk) {
			data, err := json.Marshal(c)
			require.NoError(t, err)
			require.NoError(t, r.Bus.PublishChunk(run, data))
		}
		chunk := func(offset int, text string) sse {
			return sse{event: "chunk", data: fmt.Sprintf(`{"message_id":"m","offset":%d,"text":%q,"kind":"text"}`, offset, text)}
		}
		early := r.stream(path)
		require.Equal(t, run, <-asks)
		publish(livetext.Chunk{MessageID: "m", Text: "Hm.", Kind: livetext.KindReasoning})
		require.Equal(t, sse{event: "chunk", data: `{"message_id":"m","offset":0,"text":"Hm.","kind":"reasoning"}`}, early.next())
		publish(livetext.Chunk{MessageID: "m", Text: "It "})
		publish(livetext.Chunk{MessageID: "m", Offset: 3, Text: "is "})
		require.Equal(t, chunk(0, "It "), early.next())
		require.Equal(t, chunk(3, "is "), early.next())

		late := r.stream(path)
		require.Equal(t, run, <-asks, "it asks when it comes")
		publish(livetext.Chunk{MessageID: "m", Offset: 6, Text: "for"})
		publish(livetext.Chunk{MessageID: "m", Text: "It is for", CatchUp: true})
		publish(livetext.Chunk{MessageID: "m", Offset: 9, Text: "ty."})
		require.Equal(t, chunk(6, "for"), early.next())
		require.Equal(t, chunk(9, "ty."), early.next(), "what it has is not repeated")
		require.Equal(t, chunk(0, "It is for"), late.next())
		require.Equal(t, chunk(9, "ty."), late.next())

		reply := answered("It is forty.")
		reply.MessageID = "m"
		r.Happens(id, events.Planning, reply)
		for _, s := range []*stream{early, late} {
			require.Equal(t, "LlmFinalAnswer", s.next().event)
			s.ends()
		}
	})
}

// The last chunks may come after the event that has the whole text, or not at all.
func TestTheRestIsHeardBeforeTheEvent(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		s := r.stream("/v1/runs/" + id + "/events")
		require.Equal(t, "Start", s.next().event)
		run := r.At(id)
		require.NoError(t, r.Bus.PublishChunk(run, []byte(`{"message_id":"m","offset":0,"text":"It is "}`)))
		require.Equal(t, sse{event: "chunk", data: `{"message_id":"m","offset":0,"text":"It is ","kind":"text"}`}, s.next())
		reply := answered("It is forty.")
		reply.MessageID = "m"
		r.Happens(id, events.Planning, reply)
		require.Equal(t, sse{event: "chunk", data: `{"message_id":"m","offset":6,"text":"forty.","kind":"text"}`}, s.next())
		require.Equal(t, "LlmFinalAnswer", s.next().event)
		s.ends()
	})
}

// TestStateFirst: a stream with view=state begins with the body of GET /v1/runs/{id}, then
// sends the events that change it.
func TestStateFirst(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("task")
		run := "/v1/runs/" + id
		path := run + "/events?view=state"
		r.Happens(id, events.Planning, &events.LLMThought{})
		state := func(at int) string {
			return strings.TrimSpace(r.do("GET", fmt.Sprint(run, "?at=", at), "").body)
		}

		s := r.stream(path)
		first := s.next()
		require.Equal(t, "state", first.event)
		require.Equal(t, "2", first.id)
		require.JSONEq(t, state(2), first.data)
		second := r.stream(path + "&from=2")
		before := second.next()
		require.Equal(t, sse{event: "state", id: "1", data: before.data}, before)
		require.JSONEq(t, state(1), before.data, "the state as it was before")
		require.Equal(t, "2", second.next().id, "and the event from there")
		whole := r.stream(path + "&from=1")
		nothing := whole.next()
		require.Equal(t, "0", nothing.id)
		require.Contains(t, nothing.data, `"state":"idle"`)
		require.Equal(t, "1", whole.next().id)
		require.Equal(t, "2", whole.next().id)
		resumed := r.stream(path, "Last-Event-ID", "1")
		require.Equal(t, "LlmThought", resumed.next().event, "who resumes has the state")

		r.Happens(id, events.Planning, answered("It is 42."))
		for _, s := range []*stream{s, second, whole, resumed} {
			require.Equal(t, sse{event: "LlmFinalAnswer", id: "3", data: string(r.Records(id)[2].Body)}, s.next())
			s.ends()
		}
		ended := r.stream(path)
		require.Equal(t, "3", ended.next().id)
		ended.ends()
		require.Equal(t, http.StatusNoContent, r.do("GET", path, "", "Accept", "text/event-stream", "Last-Event-ID", "3").status)
	})
}

func TestStateFirstInLines(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	run := "/v1/runs/" + id
	r.Happens(id, events.Planning, &events.LLMThought{}, answered("It is 42."))
	lines := func(query string) []string {
		a := r.do("GET", run+"/events?"+query, "")
		require.Equal(t, 200, a.status, a.body)
		return strings.Split(strings.TrimSuffix(a.body, "\n"), "\n")
	}
	all := lines("view=state&from=2")
	require.Len(t, all, 3)
	require.JSONEq(t, r.do("GET", run+"?at=1", "").body, all[0])
	require.Equal(t, string(r.Records(id)[1].Body), all[1], "byte for byte")
	require.Len(t, lines("view=state"), 1, "without from it is the state that there is")
	require.Len(t, lines("view=state&from=4"), 1, "behind the head there are no events")
	require.Len(t, lines("view=state&from=1"), 4)
	state, _, _ := strings.Cut(r.do("GET", run+"/events?view=state&from=1", "").body, `"memory"`)
	require.NotContains(t, state, "0001-01-01", "before it begins a run has no times")
	for query, says := range map[string]string{
		"view=state&from=5": "no state before event 5", "view=statue": "is not a view", "view=": "is not a view", "view=state&from=0": "not a number",
		"view=state&view=state": "twice",
	} {
		for _, accept := range []string{"*/*", "text/event-stream"} {
			a := r.do("GET", run+"/events?"+query, "", "Accept", accept)
			r.fails(400, "bad_parameter", a)
			require.Contains(t, a.body, says)
		}
	}
	r.fails(404, "run_not_found", r.do("GET", "/v1/runs/"+r.Store.NewID()+"/events?view=state", ""))
}
