package agui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agui"
	"github.com/moorebus/moorebus/internal/runid"
)

// outcome returns the outcome of the last event of a stream.
func outcome(t *testing.T, stream string) (o agui.Outcome) {
	i := strings.LastIndex(stream, "data: ")
	require.GreaterOrEqual(t, i, 0, stream)
	line, _, _ := strings.Cut(stream[i+len("data: "):], "\n")
	var e struct {
		Type    string
		Outcome agui.Outcome
	}
	require.NoError(t, json.Unmarshal([]byte(line), &e))
	require.Equal(t, "RUN_FINISHED", e.Type, stream)
	return e.Outcome
}

func ids(o agui.Outcome) (all []string) {
	for _, i := range o.Interrupts {
		all = append(all, i.ID)
	}
	return all
}

// What sub-runs of any depth wait for are interrupts of the thread, and only of it.
func TestInterruptsOfSubruns(t *testing.T) {
	w := newWorld(t)
	body := func(thread, run string, resume ...string) string {
		return fmt.Sprintf(`{"threadId":%q,"runId":%q,"messages":[{"id":"m1","role":"user","content":"x"}],"resume":[%s]}`, thread, run, strings.Join(resume, ","))
	}
	resolve := func(id, payload string) string {
		return fmt.Sprintf(`{"interruptId":%q,"status":"resolved","payload":%s}`, id, payload)
	}
	_, run, first := w.post("boss", body("t", "r1"))
	worker, middle := runid.Child(run, "a1"), runid.Child(run, "a2")
	clerk := runid.Child(middle, "m")
	q, c, d := worker+"/q", clerk+"/c", clerk+"/d"
	o := outcome(t, first)
	require.Equal(t, "interrupt", o.Type)
	require.Equal(t, []string{q, c, d}, ids(o))
	require.Equal(t, "input_required", o.Interrupts[0].Reason)
	require.Equal(t, worker, o.Interrupts[0].SubagentRunID)
	require.Equal(t, "a1", o.Interrupts[0].ToolCallID)
	require.Equal(t, "tool_call", o.Interrupts[1].Reason)
	require.Equal(t, "a2", o.Interrupts[1].ToolCallID, "the thread has this call, not the clerk's")
	require.Equal(t, map[string]any{"tool": "calculator", "arguments": `{"expression":"1+2"}`, "risk": "low", "agent": "clerk", "call_id": "c"}, o.Interrupts[1].Metadata)

	_, _, another := w.post("boss", body("another", "r1"))
	foreign := ids(outcome(t, another))[1]
	before := w.run(run)
	w.refused("boss", body("t", "r2"), http.StatusConflict, "interrupted")
	w.refused("boss", body("t", "r2", resolve(foreign, "true")), http.StatusConflict, "not_waiting")
	w.refused("boss", body("t", "r2", resolve("c", "true")), http.StatusConflict, "not_waiting")
	for _, payload := range []string{`"no"`, `"yes"`, `{"answer":"yes"}`, `{"decision":"modified","arguments":{"expression":5}}`} {
		status, _, text := w.post("boss", body("t", "r2", resolve(q, `"blue"`), resolve(c, payload)))
		require.GreaterOrEqual(t, status, http.StatusBadRequest, text)
	}
	w.refused("boss", body("t", "r2", resolve(q, "true")), http.StatusBadRequest, "bad_decision")
	w.refused("boss", body("t", "r2", resolve(q, `" "`)), http.StatusUnprocessableEntity, "answer_needed")
	require.Equal(t, before, w.run(run), "nothing was appended")
	require.NotContains(t, w.run(clerk+"/events"), "HumanDecision")

	_, _, second := w.post("boss", body("t", "r2", resolve(q, `"blue"`), resolve(c, "true")))
	require.Equal(t, []string{d}, ids(outcome(t, second)), "what is left")
	_, _, third := w.post("boss", body("t", "r3", resolve(d, `{"approved":false,"reason":"too much","by":"Ann"}`)))
	require.Equal(t, "success", outcome(t, third).Type)
	require.Contains(t, third, "They say It is blue and 3, ")
	require.Contains(t, third, "too much")
	require.Contains(t, w.run(clerk+"/events"), `"by":"Ann"`)
	require.NotContains(t, w.run(foreign[:strings.Index(foreign, "/")]+"/events"), "HumanDecision")

	for i, stream := range []string{first, second, third} {
		_, _, again := w.post("boss", body("t", fmt.Sprintf("r%d", i+1)))
		// A model's text comes in pieces while it is written, and the log has it in one.
		require.Equal(t, slices.Compact(types(t, stream)), slices.Compact(types(t, again)))
		require.Equal(t, outcome(t, stream), outcome(t, again))
	}
}
