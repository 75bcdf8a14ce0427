package httpapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
)

// A client that never saw the answer asks again, also after the run has ended.
func TestRepeatedInputsAfterTheEnd(t *testing.T) {
	r := simulatedRig(t, nil)
	id := r.start("chat")
	message := `{"type":"user-message","message_id":"m1","content":"hello?"}`
	require.Equal(t, 200, r.inputs(id, "["+message+"]").status)
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
	a := r.inputs(id, "["+message+"]")
	require.Equal(t, 200, a.status, a.body)
	require.JSONEq(t, `{"accepted":1,"n":3}`, a.body)
	r.fails(409, "run_ended", r.inputs(id, "["+message+`,{"type":"user-message","message_id":"m2","content":"new"}]`))
	require.Equal(t, []string{"Start", "UserMessage", "Cancelled"}, r.Types(id))
}

// The log says by how much the window grew, not that it was left to the agent.
func TestExpandedWindowIsWrittenOut(t *testing.T) {
	r := simulatedRig(t, nil)
	id := r.start("chat")
	require.Equal(t, 200, r.inputs(id, `[{"type":"expand-context-window"}]`).status)
	require.Contains(t, string(r.Records(id)[1].Body), `"increment":10`)
}

func TestPathsAreNotCleaned(t *testing.T) {
	r := simulatedRig(t, nil)
	for _, path := range []string{"//v1/runs", "/v1/../v1/runs", "/v1/runs/", "/v1//runs"} {
		r.fails(404, "not_found", r.do("GET", path, ""))
	}
}

func TestBrokenApprovalExpressionIsRefused(t *testing.T) {
	r := simulatedRig(t, func(c *config) { c.CheckApproval = approval.New().Check })
	bad := `{"name":"a","llm":{"provider":"openai"},"approval":{"policy":"expr","expr":"((("}}`
	r.fails(422, "bad_approval", r.do("POST", "/v1/runs", `{"agent":`+bad+`,"task":"x"}`))
	r.fails(422, "bad_approval", r.do("PUT", "/v1/agents/a", bad, "Content-Type", "application/json"))
	good := `{"name":"a","llm":{"provider":"openai"},"approval":{"policy":"expr","expr":"risk == 'high'"}}`
	require.Equal(t, 200, r.do("PUT", "/v1/agents/a", good, "Content-Type", "application/json").status)
}
