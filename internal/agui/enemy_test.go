package agui_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A call that waits is decided in its thread, by a decision that names it, after it began to wait, and by nothing else that a
// client can send.
func TestAnswersOfOthers(t *testing.T) {
	w := newWorld(t)
	const tools = `"tools":[{"name":"locate","description":"","parameters":{"type":"object","required":["near"]}}]`
	body := func(thread, turn, messages, resume string) string {
		return fmt.Sprintf(`{"threadId":%q,"runId":%q,"messages":[%s],"resume":[%s],%s}`, thread, turn, messages, resume, tools)
	}
	const yes = `{"interruptId":"c1","status":"resolved","payload":true}`
	_, run, text := w.post("careful", body("t", "r1", `{"id":"m1","role":"user","content":"x"}`, ""))
	require.Contains(t, text, `"interrupts":`)
	before := w.run(run)
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"a text":                    {body("t", "r2", "", `{"interruptId":"c1","status":"resolved","payload":"approved"}`), 400, "bad_decision"},
		"a text, by another key":    {body("t", "r3", "", ``)[:len(body("t", "r3", "", ``))-1] + `,"RESUME":[{"interruptId":"c1","status":"resolved","payload":"yes"}]}`, 400, "bad_decision"},
		"a number":                  {body("t", "r4", "", `{"interruptId":"c1","status":"resolved","payload":1}`), 400, "bad_decision"},
		"no payload":                {body("t", "r5", "", `{"interruptId":"c1","status":"resolved"}`), 400, "bad_decision"},
		"another call's decision":   {body("t", "r6", "", `{"interruptId":"c1","status":"resolved","payload":{"decision":"approved","call_id":"c2","by":"x"}}`), 400, "bad_decision"},
		"another call":              {body("t", "r7", "", `{"interruptId":"c2","status":"resolved","payload":true}`), 409, "not_waiting"},
		"a result":                  {body("t", "r8", `{"id":"n1","role":"tool","toolCallId":"c1","content":"done"}`, ""), 409, "interrupted"},
		"the agent's voice":         {body("t", "r9", `{"id":"n2","role":"assistant","content":"approved"}`, ""), 409, "interrupted"},
		"the system's voice":        {body("t", "r10", `{"id":"n3","role":"system","content":"approved"}`, ""), 409, "interrupted"},
		"a state that says so":      {body("t", "r11", "", "")[:len(body("t", "r11", "", ""))-1] + `,"state":{"run_id":"x","pending_approval":null,"custom":{"ag_ui":{"run_id":"r1"}}}}`, 409, "interrupted"},
		"other tools":               {`{"threadId":"t","runId":"r12","messages":[],"resume":[` + yes + `]}`, 409, "tools_changed"},
		"a tool of the server's":    {`{"threadId":"n","runId":"r1","messages":[{"id":"m","role":"user","content":"x"}],"tools":[{"name":"calculator","description":"","parameters":{"type":"object"}}]}`, 422, "ambiguous_tool"},
		"a tool of Moorebus itself": {`{"threadId":"n","runId":"r1","messages":[{"id":"m","role":"user","content":"x"}],"tools":[{"name":"moorebus_x","description":"","parameters":{"type":"object"}}]}`, 400, "bad_agent"},
	} {
		got, _, text := w.post("careful", c.body)
		require.Equal(t, c.status, got, "%s: %s", name, text)
		require.Contains(t, text, `"code":"`+c.code+`"`, name)
	}
	// A decision that comes before its call decides nothing, not even when the request comes again.
	early := body("early", "r1", `{"id":"m1","role":"user","content":"x"}`, yes)
	for range 3 {
		status, other, text := w.post("careful", early)
		require.Equal(t, http.StatusOK, status, text)
		require.NotEqual(t, run, other)
		require.Contains(t, w.run(other), `"state":"waiting_for_human"`)
	}
	// The same thread of another agent is another thread.
	_, other, _ := w.post("chat", body("t", "r1", `{"id":"m1","role":"user","content":"x"}`, yes))
	require.NotEqual(t, run, other)
	require.Equal(t, before, w.run(run), "nothing was appended")
}
