package planner_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
)

const resultTool = "moorebus_result"

// TestCutResultsAreRead: in task mode and in a chat, before a reflection and after it, the model
// reads what was left out of a result.
func TestCutResultsAreRead(t *testing.T) {
	whole := strings.Repeat("héllo ", 20_000) + "the needle" + strings.Repeat(" wörld", 20_000)
	for name, start := range map[string]func(*events.Start){"task": func(*events.Start) {}, "chat": chat, "narrow chat": narrow(1)} {
		t.Run(name, func(t *testing.T) {
			store := shelf{}
			ref, err := store.PutBlob(t.Context(), "default", []byte(whole))
			require.NoError(t, err)
			read := func(arguments string) any { return ask(call("", resultTool, arguments)) }
			seen(t, store, func(t *testing.T, r *rig) {
				run := r.begin(start)
				mem := r.AwaitState(run, events.Acting)
				require.NotContains(t, named(r.mock.Requests()[0]), resultTool, "nothing was cut yet")
				r.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{
					CallID: mem.CurrentToolCall.ID, Success: true, Observation: "SUCCESS: héllo … wörld", Code: "ok", Ref: &ref,
				}})
				r.Append(run, events.Observing, &events.NeedsReflection{})
				quiet()

				require.Equal(t, "A summary of it.", r.Memory(run).History[0].Observation, "the reflection took the call")
				requests := r.mock.Requests()[2:]
				require.Contains(t, named(requests[0]), resultTool)
				answer := func(n int) string { return lastOf(requests[n]).Content }
				require.JSONEq(t, `{"results":[{"id":"c","name":"alpha","arguments":"{}","bytes":280010}],"more":0}`, answer(1))
				require.Equal(t, "Bytes 140000 to 140010 of 280010:\nthe needle\n[140000 more bytes; continue with offset 140010]", answer(2))
				require.True(t, strings.HasPrefix(answer(3), "Bytes 0 to 16384 of 280010:\nhéllo"), "%.80s", answer(3))
				require.True(t, strings.HasPrefix(answer(4), "Bytes 1 to 3 of 280010:\né"), "no character is cut: %.80s", answer(4))
				require.Equal(t, "Bytes 280010 to 280010 of 280010:\n", answer(5))
				require.Contains(t, answer(6), "ERROR: the result has no such text")
				require.Contains(t, answer(7), `ERROR: no result of a call "other" was cut`)
				require.Contains(t, answer(8), "ERROR: invalid arguments for moorebus_result")
				for _, e := range r.Events(run)[5:13] {
					p := e.Data.(*events.ToolCallsAddedToContext)
					require.Empty(t, p.CallIDs)
					require.Equal(t, resultTool, p.Calls[0].Name)
				}
			},
				ask(call("c", "alpha", "{}")), say("A summary of it."), read(""), read(`{"call_id":"c","find":"the needle","limit":10}`), read(`{"call_id":"c"}`),
				read(`{"call_id":"c","offset":2,"limit":2}`), read(`{"call_id":"c","offset":1e9}`), read(`{"call_id":"c","find":"nowhere"}`),
				read(`{"call_id":"other"}`), read(`{"call_id":"c","limit":65537}`), say("That is all."),
			)
		})
	}
}

// One reply reads only so much, and a result that cannot be read is told.
func TestReadsAreBounded(t *testing.T) {
	large := llm.ToolCalls{Meta: ask().Meta}
	for range 6 {
		large.Calls = append(large.Calls, call("", resultTool, `{"call_id":"c","limit":65536}`))
	}
	for name, c := range map[string]struct {
		change func(store shelf, key string)
		codes  []string
		says   string
	}{
		"large": {func(shelf, string) {}, []string{"ok", "ok", "ok", "ok", "ok", "too_large"}, "At most 272 KiB"},
		"gone":  {func(s shelf, key string) { delete(s, key) }, slices.Repeat([]string{tool.CodeFailed}, 6), "it is not stored any more"},
		"away":  {func(s shelf, key string) { s[key] = nil }, slices.Repeat([]string{tool.CodeFailed}, 6), "the store is away"},
	} {
		t.Run(name, func(t *testing.T) {
			store := shelf{}
			ref, err := store.PutBlob(t.Context(), "default", []byte(strings.Repeat("x", 1<<20)))
			require.NoError(t, err)
			c.change(store, ref.Key)
			seen(t, store, func(t *testing.T, r *rig) {
				run := r.begin()
				mem := r.AwaitState(run, events.Acting)
				r.Append(run, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{
					CallID: mem.CurrentToolCall.ID, Success: true, Observation: "SUCCESS: x", Code: "ok", Ref: &ref,
				}})
				r.Append(run, events.Observing, &events.Continue{})
				r.AwaitState(run, events.Done)
				var codes []string
				var last string
				shown := 0
				for _, e := range r.Events(run) {
					if p, ok := e.Data.(*events.ToolCallsAddedToContext); ok {
						last = p.Results[0].Observation
						codes, shown = append(codes, p.Results[0].Code), shown+strings.Count(last, "x")
					}
				}
				require.Equal(t, c.codes, codes)
				require.Contains(t, last, c.says)
				require.LessOrEqual(t, shown, 280<<10)
			}, ask(call("c", "alpha", "{}")), large, say("That is all."))
		})
	}
}
