package a2a

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// FuzzMessage: a body is a message or is refused. A message means the same however its JSON is written:
// it begins the same run.
func FuzzMessage(f *testing.F) {
	for _, body := range []string{
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"Hi."}]}}`,
		`{"message":{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_USER","parts":[{"data":{"decision":"approved","call_id":"c","by":"ada"}},{"data":{"type":"tool-call-result","toolCallId":"c","result":{"a":1.0}}}]},"configuration":{"historyLength":0}}`,
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"raw":"iVBORw0KGgo=","mediaType":"image/png","filename":"a.png"},{"url":"https://x.example/a","mediaType":"application/pdf"},{"text":""}]}}`,
		`{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"a","data":1}]}}`, `{"tenant":"x"}`, `[]`, `null`, "\xff",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := readSend(body)
		requireRefusal(t, err)
		if err != nil {
			return
		}
		for _, answers := range []bool{false, true} {
			said, err := readParts(s.Message, answers)
			requireRefusal(t, err)
			if err == nil && !answers {
				require.Empty(t, said.decisions, "a message that starts a task decides nothing")
				require.Empty(t, said.inputs)
			}
		}
		run, err := runOf("default", "agent", s.Message)
		requireRefusal(t, err)
		if err != nil {
			return
		}
		require.NoError(t, events.CheckID(run))
		var other bytes.Buffer
		require.NoError(t, json.Indent(&other, body, " ", "\t"))
		same, err := readSend(other.Bytes())
		require.NoError(t, err)
		again, err := runOf("default", "agent", same.Message)
		require.NoError(t, err)
		require.Equal(t, run, again)
		same.Message.MessageID += "x"
		again, err = runOf("default", "agent", same.Message)
		require.NoError(t, err)
		require.NotEqual(t, run, again)
	})
}

// FuzzRequest: a body is a request of the JSON-RPC binding, or is refused with one of its codes.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x","historyLength":3}}`, `{"jsonrpc":"2.0","id":"a","method":"ListTasks","params":[]}`,
		`{"jsonrpc":"2.0","id":null,"method":"CancelTask"}`, `{"jsonrpc":"2.0","id":{},"method":""}`, `[{"jsonrpc":"2.0"}]`, `1`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var req rpcRequest
		if json.Unmarshal(body, &req) != nil {
			return // it is no JSON-RPC
		}
		err := req.check()
		requireRefusal(t, err)
		if err == nil {
			var n named
			err = req.decode(&n)
			requireRefusal(t, err)
		}
		if err != nil {
			var e *refusal.Error
			require.ErrorAs(t, err, &e)
			require.Contains(t, []int{rpcParse, rpcRequested, rpcMethod, rpcParams}, codeOf(err, e))
			answer, err := json.Marshal(rpcError(req.ID, e, codeOf(err, e)))
			require.NoError(t, err)
			require.True(t, json.Valid(answer))
		}
	})
}

// requireRefusal fails the test unless an error says what the client did wrong.
func requireRefusal(t *testing.T, err error) {
	t.Helper()
	if err != nil && route.RefusalOf(err).Kind >= refusal.Internal {
		require.NoError(t, err)
	}
}
