package a2a_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/host"
)

// A JSON-RPC request that is refused has an answer with the code that its clients know, the id of
// the request, and the status 200.
func TestJSONRPCRefusals(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	rpc := url + "/v1/a2a/cashier/rpc"
	pay := message("m-1", "", `{"text": "Pay."}`)
	status, sent := call(t, "POST", rpc, `{"jsonrpc": "2.0", "id": "one", "method": "SendMessage", "params": `+pay+`}`, "A2A-Version", "1.0")
	require.Equal(t, http.StatusOK, status, sent)
	require.Equal(t, "one", sent["id"])
	require.Equal(t, "TASK_STATE_INPUT_REQUIRED", field(sent, "result", "task", "status", "state"))
	require.NotContains(t, sent, "error")
	id := field(sent, "result", "task", "id").(string)
	for name, c := range map[string]struct {
		method, params string
		code           int
		reason         string
	}{
		"no method":             {"tasks/get", `{}`, -32601, "INVALID_PARAMS"},
		"no task":               {"GetTask", `{"id": "nothing"}`, -32001, "TASK_NOT_FOUND"},
		"no id":                 {"GetTask", `{}`, -32602, "INVALID_PARAMS"},
		"no parameters":         {"GetTask", `7`, -32602, "INVALID_PARAMS"},
		"a tenant":              {"GetTask", `{"id": "x", "tenant": "t"}`, -32602, "INVALID_PARAMS"},
		"no length":             {"GetTask", `{"id": "` + id + `", "historyLength": -1}`, -32602, "INVALID_PARAMS"},
		"no message":            {"SendMessage", `{}`, -32602, "INVALID_PARAMS"},
		"no message to stream":  {"SendStreamingMessage", `{}`, -32602, "INVALID_PARAMS"},
		"words for a decision":  {"SendMessage", message("m-2", id, `{"text": "Perhaps."}`), -32602, "ANSWER_NEEDED"},
		"a file of no type":     {"SendMessage", message("m-3", "", `{"raw": "AAAA"}`), -32005, "CONTENT_TYPE_NOT_SUPPORTED"},
		"subscribe to no task":  {"SubscribeToTask", `{"id": "nothing"}`, -32001, "TASK_NOT_FOUND"},
		"a list of no state":    {"ListTasks", `{"status": "DONE"}`, -32602, "INVALID_PARAMS"},
		"an extended card":      {"GetExtendedAgentCard", `{}`, -32004, "UNSUPPORTED_OPERATION"},
		"a list for one tenant": {"ListTasks", `{"tenant": "t"}`, -32602, "INVALID_PARAMS"},
	} {
		status, answer := call(t, "POST", rpc, `{"jsonrpc": "2.0", "id": 7, "method": "`+c.method+`", "params": `+c.params+`}`)
		require.Equal(t, http.StatusOK, status, name)
		require.EqualValues(t, 7, answer["id"], name)
		require.EqualValues(t, c.code, field(answer, "error", "code"), "%s: %v", name, answer)
		require.NotContains(t, answer, "result", name)
		details := field(answer, "error", "data").([]any)
		require.Equal(t, c.reason, field(details[0], "reason"), name)
	}
	for body, code := range map[string]int{
		"{": -32700, "[]": -32700, `{"jsonrpc": "2.0", "method": "GetTask"}`: -32600, `{"jsonrpc": "2.0", "id": {}, "method": "GetTask"}`: -32600,
		`{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}`: -32600, `{"jsonrpc": "2.0", "id": 1}`: -32600,
	} {
		status, answer := call(t, "POST", rpc, body)
		require.Equal(t, http.StatusOK, status, body)
		require.EqualValues(t, code, field(answer, "error", "code"), body)
		require.Contains(t, answer, "id")
	}
	_, answer := call(t, "POST", rpc, `{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}`, "A2A-Version", "0.3")
	require.EqualValues(t, -32009, field(answer, "error", "code"))
	_, answer = call(t, "POST", url+"/v1/a2a/nobody/rpc", `{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": `+pay+`}`)
	require.EqualValues(t, -32602, field(answer, "error", "code"), answer)
	require.Equal(t, "AGENT_NOT_FOUND", field(field(answer, "error", "data").([]any)[0], "reason"))
}

// A stream over JSON-RPC can be resumed as one over HTTP+JSON, and without the token there is none.
func TestJSONRPCStreams(t *testing.T) {
	t.Parallel()
	_, url := serve(t, func(o *host.Options) { o.Token = "secret" })
	rpc := url + "/v1/a2a/writer/rpc"
	status, refused := call(t, "POST", rpc, `{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}`)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, "2.0", refused["jsonrpc"])
	require.NotEmpty(t, field(refused, "error", "message"))
	_, all := updates(t, rpc, `{"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": `+message("m-1", "", `{"text": "Go."}`)+`}`, "Authorization", "Bearer secret")
	id := field(all[0], "result", "task", "id").(string)
	ids, rest := updates(t, rpc, `{"jsonrpc": "2.0", "id": "again", "method": "SubscribeToTask", "params": {"id": "`+id+`"}}`,
		"Authorization", "Bearer secret", "Last-Event-ID", "1")
	require.Equal(t, "1", ids[0])
	for _, u := range rest {
		require.Equal(t, "again", u["id"])
		require.Equal(t, "2.0", u["jsonrpc"])
	}
	last := rest[len(rest)-1]
	require.Equal(t, "TASK_STATE_COMPLETED", field(last, "result", "statusUpdate", "status", "state"))
}
