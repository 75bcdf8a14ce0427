package runstream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// told is a run whose outputs are gathered, as JSON.
type told struct {
	*reducertest.Run
	t      testing.TB
	stream *runstream.Stream
	lines  []string
}

func tell(t testing.TB) *told {
	r := &told{Run: reducertest.NewRun(nil), t: t}
	r.stream = runstream.NewStream(r.Machine.Table(), func(o runstream.Output) {
		line, err := runstream.Marshal("r", o)
		require.NoError(t, err)
		r.lines = append(r.lines, string(line))
	})
	return r
}

func (r *told) do(origin events.State, p events.Payload) {
	r.t.Helper()
	_, e, err := r.Append(origin, p)
	require.NoError(r.t, err)
	r.stream.Event(r.Mem, e)
}

// take returns what was told since it was asked the last time.
func (r *told) take() []string {
	lines := r.lines
	r.lines = nil
	return lines
}

func reply(id string, calls ...events.Call) events.ToolCallReply {
	return events.ToolCallReply{Content: "let me see", MessageID: id, Calls: calls, Confidence: 1}
}

func TestOutputsOfARun(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("find it", events.ModeTask))
	require.Equal(t, []string{`{"kind":"state_started","run":"r","n":1,"step":0,"state":"planning"}`}, r.take())

	r.stream.Chunk([]byte(`{"message_id":"m1","offset":0,"text":"let "}`))
	r.stream.Chunk([]byte(`{"message_id":"m1","kind":"tool_call","index":0,"name":"alpha","text":"{\"q\""}`))
	require.Equal(t, []string{
		`{"kind":"llm_token","run":"r","message_id":"m1","offset":0,"text":"let "}`,
		`{"kind":"tool_call_delta","run":"r","message_id":"m1","index":0,"name":"alpha","text":"{\"q\""}`,
	}, r.take())

	r.do(events.Planning, &events.LLMToolCall{ToolCallReply: reply("m1", events.Call{ID: "a", Name: "alpha", Arguments: `{"q":1}`})})
	require.Equal(t, []string{
		`{"kind":"llm_token","run":"r","message_id":"m1","offset":4,"text":"me see"}`,
		`{"kind":"action","run":"r","n":2,"step":1,"state":"planning","event":"LlmToolCall","data":"alpha({\"q\":1})"}`,
		`{"kind":"state_started","run":"r","n":2,"step":1,"state":"acting"}`,
		`{"kind":"tool_call_started","run":"r","n":2,"call_id":"a","name":"alpha","arguments":"{\"q\":1}"}`,
	}, r.take())

	r.stream.Chunk([]byte(`{"message_id":"m1","offset":4,"text":"me see"}`))
	require.Empty(t, r.take(), "the reply is in the log")
	r.do(events.Acting, &events.ToolCallStarted{CallID: "a"})
	require.Empty(t, r.take())
	r.do(events.Acting, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Observation: "ERROR: no", Code: "tool_failed", LatencyMS: 7}})
	require.Equal(t, []string{
		`{"kind":"tool_call_finished","run":"r","n":4,"call_id":"a","name":"alpha","success":false,"observation":"ERROR: no","code":"tool_failed","latency_ms":7}`,
		`{"kind":"state_started","run":"r","n":4,"step":1,"state":"observing"}`,
	}, r.take())
	r.do(events.Observing, &events.Continue{})
	r.take()
	r.do(events.Planning, &events.LLMFinalAnswer{MessageID: "m2", Reply: events.Reply{Content: "forty-two"}})
	require.Equal(t, []string{
		`{"kind":"state_started","run":"r","n":6,"step":2,"state":"done"}`,
		`{"kind":"final_answer","run":"r","n":6,"message_id":"m2","state":"done","content":"forty-two"}`,
	}, r.take())
	r.stream.Chunk([]byte(`{"message_id":"m2","offset":0,"text":"forty"}`))
	require.Empty(t, r.take(), "never after the answer")
}

// An answer that was cut off says so.
func TestIncompleteAnswer(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("find it", events.ModeTask))
	r.do(events.Planning, &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "forty"}, Incomplete: true})
	all := r.take()
	require.JSONEq(t, `{"kind":"final_answer","run":"r","n":2,"message_id":"m","state":"done","content":"forty","incomplete":true}`, all[len(all)-1])
}

// A reply that edits the model's own context is in the log like every other one, though
// it leaves the run where it is.
func TestNoChunkAfterAnEditOfTheContext(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]events.Payload{
		"load":   &events.ToolCallsAddedToContext{CallIDs: []string{}, ContextReply: &events.ContextReply{MessageID: "m1", Content: "let me look"}},
		"expand": &events.ContextWindowExpanded{ContextReply: &events.ContextReply{MessageID: "m1", Content: "let me look"}},
	} {
		r := tell(t)
		e := &events.Event{Data: p}
		e.N, e.From, e.To = 5, events.Planning, events.Planning
		r.stream.Event(r.Mem, e)
		r.take()
		r.stream.Chunk([]byte(`{"message_id":"m1","offset":0,"text":"let me"}`))
		r.stream.Chunk([]byte(`{"message_id":"m1","kind":"tool_call","index":0,"name":"alpha","text":"{}"}`))
		require.Empty(t, r.take(), name)
		r.stream.Chunk([]byte(`{"message_id":"m2","offset":0,"text":"now"}`))
		require.Len(t, r.take(), 1, name)
	}
}

// An event that is read twice is told once.
func TestEventsAreToldOnce(t *testing.T) {
	t.Parallel()
	r := tell(t)
	_, e, err := r.Append(events.Idle, reducertest.StartOf("x", events.ModeTask))
	require.NoError(t, err)
	r.stream.Event(r.Mem, e)
	r.stream.Event(r.Mem, e)
	require.Len(t, r.take(), 1)
}

func TestEndsThatAreNoAnswer(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("x", events.ModeTask))
	r.take()
	r.do(events.Control, &events.CancelledRun{By: events.By{Reason: "enough"}})
	require.Equal(t, `{"kind":"error","run":"r","n":2,"code":"cancelled","message":"enough"}`, r.take()[1])

	r = tell(t)
	r.do(events.Idle, reducertest.StartOf("x", events.ModeTask))
	r.take()
	r.do(events.Planning, &events.MaxSteps{Outcome: events.Outcome{Code: "max_steps", Message: "max steps 1 exceeded"}})
	require.Equal(t, `{"kind":"error","run":"r","n":2,"code":"max_steps","message":"max steps 1 exceeded"}`, r.take()[1])
}

// In chat mode every turn has its answer, and the end none.
func TestChatOutputs(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("hi", events.ModeChat))
	r.take()
	r.do(events.Planning, &events.LLMMessageComplete{MessageID: "m", Reply: events.Reply{Content: "hello"}})
	require.Equal(t, `{"kind":"final_answer","run":"r","n":2,"message_id":"m","state":"waiting_for_user","content":"hello"}`, r.take()[2])
	r.do(events.WaitingForUser, &events.Closed{})
	require.Equal(t, []string{`{"kind":"state_started","run":"r","n":3,"step":1,"state":"done"}`}, r.take())
}

// What an approval lets run starts then, not when it was asked for.
func TestApprovedCallsStartThen(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("x", events.ModeTask))
	calls := []events.Call{{ID: "a", Name: "beta", Arguments: `{}`}, {ID: "b", Name: "gamma", Arguments: `{}`}}
	r.do(events.Planning, &events.HumanApprovalRequired{ToolCallReply: reply("m", calls...), Requests: []events.Request{{CallID: "a", Tool: "beta"}, {CallID: "b", Tool: "gamma"}}})
	require.NotContains(t, strings.Join(r.take(), ""), "tool_call_started")
	r.do(events.WaitingForHuman, &events.HumanDecision{Decision: events.Decision{CallID: "a", Decision: "rejected", By: "x"}})
	r.do(events.WaitingForHuman, &events.HumanDecision{Decision: events.Decision{CallID: "b", Decision: "approved", By: "x"}})
	require.Empty(t, r.take())
	r.do(events.WaitingForHuman, &events.HumanApprovedParallel{})
	started := 0
	for _, line := range r.take() {
		if strings.Contains(line, "tool_call_started") {
			started++
			require.Contains(t, line, `"call_id":"b"`)
		}
	}
	require.Equal(t, 1, started)
}

// The feed is faster than the log: what a later state says may come before the reply that led to it.
func TestTextAfterAReplyThatComesBeforeIt(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("find it", events.ModeTask))
	_, e, err := r.Append(events.Planning, &events.LLMToolCall{ToolCallReply: reply("m1", events.Call{ID: "a", Name: "alpha", Arguments: `{}`})})
	require.NoError(t, err)
	const before, after = "00000000-0000-7000-8000-000000000000", "ffffffff-ffff-7fff-bfff-ffffffffffff"
	for _, id := range []string{before, after} {
		r.stream.Chunk([]byte(`{"message_id":"` + id + `","offset":0,"text":"a"}`))
	}
	r.stream.Event(r.Mem, e)
	r.take()
	for _, id := range []string{before, after} {
		r.stream.Chunk([]byte(`{"message_id":"` + id + `","offset":1,"text":"b"}`))
	}
	require.Equal(t, []string{`{"kind":"llm_token","run":"r","message_id":"` + after + `","offset":1,"text":"b"}`}, r.take())
}

// Reasoning comes piece by piece from the feed, and whole from the log before its reply.
func TestOutputsOfReasoning(t *testing.T) {
	t.Parallel()
	r := tell(t)
	r.do(events.Idle, reducertest.StartOf("find it", events.ModeTask))
	r.take()
	chunk := []byte(`{"message_id":"m1","kind":"reasoning","offset":0,"text":"So "}`)
	r.stream.Chunk(chunk)
	require.Equal(t, []string{`{"kind":"reasoning_token","run":"r","message_id":"m1","offset":0,"text":"So "}`}, r.take())
	p := &events.LLMToolCall{ToolCallReply: reply("m1", events.Call{ID: "a", Name: "alpha", Arguments: `{}`})}
	p.Reasoning = events.Reasoning{{Kind: events.ReasoningText, Text: "So it is."}, {Kind: events.ReasoningOpaque, Data: []byte(`"x"`)}}
	r.do(events.Planning, p)
	require.Equal(t, `{"kind":"reasoned","run":"r","n":2,"text":"So it is.","opaque":1}`, r.take()[0])
	r.stream.Chunk(chunk)
	require.Empty(t, r.take(), "it is late")
}

func TestWhatIsNoChunk(t *testing.T) {
	t.Parallel()
	for _, data := range []string{``, `{}`, `[1]`, `{"message_id":"m","kind":"else"}`, `{"message_id":7}`, `{"text":"x"}`} {
		require.Nil(t, runstream.OfChunk([]byte(data)), data)
	}
}

// Whatever a run does: every kind of output is one that is documented, outputs are
// the same each time, no call ends that did not begin but for those that were not
// let run, and a run that has ended has told its end last.
func TestOutputsOfAnyRun(t *testing.T) {
	t.Parallel()
	known := []string{"state_started", "tool_call_started", "tool_call_finished", "action", "final_answer", "error"}
	rapid.Check(t, func(rt *rapid.T) {
		run := reducertest.NewRun(nil)
		for range rapid.IntRange(1, 60).Draw(rt, "length") {
			next := reducertest.Next(rt, run)
			if next.Payload == nil {
				break
			}
			_, _, err := run.Append(next.Origin, next.Payload)
			require.NoError(rt, err)
		}
		first, second := outputsOf(t, run), outputsOf(t, run)
		require.Equal(t, first, second)
		for _, line := range first {
			var o struct{ Kind, Run string }
			require.NoError(t, json.Unmarshal([]byte(line), &o))
			require.Contains(t, known, o.Kind)
			require.Equal(t, run.ID.ID, o.Run)
		}
		if mem := run.Mem; run.Machine.Table().Terminal(mem.State) && mem.Mode == events.ModeTask {
			last := first[len(first)-1]
			require.True(t, strings.Contains(last, `"kind":"final_answer"`) || strings.Contains(last, `"kind":"error"`), last)
		}
	})
}

// A reply's event may come before the last chunks of its text: what is missing is told
// then, and the late chunks are not; but only what goes on from what was told.
func TestTheRestOfAText(t *testing.T) {
	t.Parallel()
	chunk := func(offset int, text string) string {
		return fmt.Sprintf(`{"message_id":"m1","offset":%d,"text":%q}`, offset, text)
	}
	for name, c := range map[string]struct {
		chunks []string
		rest   string
	}{
		"two of three parts":  {[]string{chunk(0, "let "), chunk(4, "me ")}, `"offset":7,"text":"see"`},
		"all of it":           {[]string{chunk(0, "let "), chunk(4, "me see")}, ""},
		"begun again":         {[]string{chunk(0, "or "), chunk(0, "let "), chunk(4, "me")}, `"offset":6,"text":" see"`},
		"nothing":             {nil, ""},
		"another text":        {[]string{chunk(0, "or not")}, ""},
		"without its begin":   {[]string{chunk(4, "me ")}, ""},
		"with a gap":          {[]string{chunk(0, "let "), chunk(7, "se")}, ""},
		"a call and no text":  {[]string{`{"message_id":"m1","kind":"tool_call","index":0,"name":"alpha","text":"{}"}`}, ""},
		"another message's":   {[]string{`{"message_id":"m2","offset":0,"text":"let "}`}, ""},
		"longer than it ends": {[]string{chunk(0, "let me see that")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tell(t)
			r.do(events.Idle, reducertest.StartOf("find it", events.ModeTask))
			for _, data := range c.chunks {
				r.stream.Chunk([]byte(data))
			}
			r.take()
			r.do(events.Planning, &events.LLMToolCall{ToolCallReply: reply("m1", events.Call{ID: "a", Name: "alpha", Arguments: `{"q":1}`})})
			r.stream.Chunk([]byte(chunk(7, "see")))
			lines := r.take()
			if c.rest == "" {
				require.NotContains(t, strings.Join(lines, "\n"), "llm_token")
				return
			}
			require.Equal(t, `{"kind":"llm_token","run":"r","message_id":"m1",`+c.rest+`}`, lines[0])
			require.NotContains(t, strings.Join(lines[1:], "\n"), "llm_token")
		})
	}
}

func outputsOf(t *testing.T, run *reducertest.Run) []string {
	t.Helper()
	mem := run.Machine.Initial(run.ID.ID)
	var lines []string
	stream := runstream.NewStream(run.Machine.Table(), func(o runstream.Output) {
		line, err := runstream.Marshal(run.ID.ID, o)
		require.NoError(t, err)
		lines = append(lines, string(line))
	})
	for _, rec := range run.Records {
		e, err := run.Machine.Apply(mem, rec.Subject, rec.Body)
		var parent *reducer.ParentError
		if err != nil {
			require.NotErrorAs(t, err, &parent, fmt.Sprint(err))
			continue
		}
		stream.Event(mem, e)
	}
	return lines
}
