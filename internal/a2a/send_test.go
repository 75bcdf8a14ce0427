package a2a_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/pkg/events"
)

// Data in a message that starts a task is text, also with the keys of an answer.
func TestDataThatStartsATask(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	data := `{"decision":"buy","type":"order"}`
	status, sent := call(t, "POST", url+"/v1/a2a/counter/message:send", message("m-1", "", `{"data": `+data+`}`))
	require.Equal(t, http.StatusOK, status, sent)
	history, _ := field(sent, "task", "history").([]any)
	require.NotEmpty(t, history)
	require.JSONEq(t, data, textOf(history[0]))
}

// A text that has decided on a call decides on no other one when it comes again.
func TestTextThatDecidesComesAgain(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	base := url + "/v1/a2a/spender"
	_, sent := call(t, "POST", base+"/message:send", message("m-0", "", `{"text": "Pay."}`))
	id := field(sent, "task", "id").(string)
	waits := func() string {
		_, task := call(t, "GET", base+"/tasks/"+id, "")
		require.Equal(t, "TASK_STATE_INPUT_REQUIRED", field(task, "status", "state"), task)
		return textOf(task, "status", "message")
	}
	yes := message("m-1", id, `{"text": "approved"}`)
	require.Contains(t, waits(), `{"crowns":1}`)
	for range 2 {
		status, answer := call(t, "POST", base+"/message:send", yes)
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, waits(), `{"crowns":2}`)
	}
	last := message("m-2", id, `{"text": "approved"}`)
	for range 2 {
		status, answer := call(t, "POST", base+"/message:send", last)
		require.Equal(t, http.StatusOK, status, answer)
		require.Equal(t, "TASK_STATE_COMPLETED", field(answer, "task", "status", "state"))
	}
}

// metadata.labels of the message are those of the run that it starts.
func TestLabels(t *testing.T) {
	t.Parallel()
	gateway, url := serve(t, nil)
	with := func(id, metadata string) string {
		return strings.Replace(message(id, "", `{"text": "Count."}`), `"parts"`, `"metadata":`+metadata+`,"parts"`, 1)
	}
	status, refused := call(t, "POST", url+"/v1/a2a/counter/message:send", with("m-1", `{"labels":{"A":"x"}}`))
	require.Equal(t, http.StatusBadRequest, status, refused)
	status, refused = call(t, "POST", url+"/v1/a2a/counter/message:send", with("m-1", `{"labels":{"a":1}}`))
	require.Equal(t, http.StatusBadRequest, status, refused)
	status, sent := call(t, "POST", url+"/v1/a2a/counter/message:send", with("m-1", `{"labels":{"env":"prod"},"other":{}}`))
	require.Equal(t, http.StatusOK, status, sent)
	run, err := gateway.Editor.State(t.Context(), "", field(sent, "task", "id").(string), 0)
	require.NoError(t, err)
	require.Equal(t, events.Labels{"env": "prod"}, run.Labels)
}

// A run has the trace context of the request that started it.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	gateway, url := serve(t, nil)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	status, sent := call(t, "POST", url+"/v1/a2a/counter/message:send", message("m-1", "", `{"text": "Count."}`), "Traceparent", trace)
	require.Equal(t, http.StatusOK, status, sent)
	run, _ := field(sent, "task", "id").(string)
	store := gateway.Editor.Store
	for e, err := range store.Log().Read(t.Context(), store.Place(events.DefaultNamespace, run), 0) {
		require.NoError(t, err)
		first, err := new(events.Codec).Decode(e.Body)
		require.NoError(t, err)
		require.Equal(t, trace, first.TraceParent)
		return
	}
	t.Fatal("the task is no run")
}

// The id of a message tells nothing of the task that somebody else began with it: another message
// with the same id begins a task of its own, in its own context and namespace, and only the same
// message finds the task again.
func TestMessageIDsTellNoTask(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	base := url + "/v1/a2a/counter"
	in := func(context, body string) string {
		return strings.Replace(body, `"messageId"`, `"contextId": "`+context+`", "messageId"`, 1)
	}
	first := in("mine", message("m-1", "", `{"text": "Count."}`, `{"data": {"a": 1, "b": [1.0, null]}}`))
	send := func(body string, header ...string) string {
		status, sent := call(t, "POST", base+"/message:send", body, header...)
		require.Equal(t, http.StatusOK, status, sent)
		return field(sent, "task", "id").(string)
	}
	mine := send(first)
	require.NotEqual(t, runid.Request("counter", "m-1"), mine, "it follows from the id alone")
	require.Equal(t, mine, send(first))
	require.Equal(t, mine, send(in("mine", message("m-1", "", `{"text": "Count."}`, `{"data": { "b": [1.0, null], "a": 1 }}`))), "the same in other words of JSON")
	require.Equal(t, mine, send(strings.Replace(first, `{"message"`, `{"configuration": {"returnImmediately": true}, "message"`, 1)))

	known := map[string]bool{mine: true}
	for what, body := range map[string]string{
		"other words":   in("mine", message("m-1", "", `{"text": "Count!"}`, `{"data": {"a": 1, "b": [1.0, null]}}`)),
		"other data":    in("mine", message("m-1", "", `{"text": "Count."}`, `{"data": {"a": 2, "b": [1.0, null]}}`)),
		"other context": in("yours", message("m-1", "", `{"text": "Count."}`, `{"data": {"a": 1, "b": [1.0, null]}}`)),
		"no context":    message("m-1", "", `{"text": "Count."}`, `{"data": {"a": 1, "b": [1.0, null]}}`),
		"a picture":     in("mine", message("m-1", "", `{"text": "Count."}`, `{"raw": "iVBORw0KGgo=", "mediaType": "image/png"}`)),
	} {
		id := send(body)
		require.False(t, known[id], what)
		known[id] = true
	}
	status, refused := call(t, "POST", base+"/message:send", first, "Moorebus-Namespace", "other")
	require.Equal(t, http.StatusNotFound, status, refused)
	require.NotContains(t, fmt.Sprint(refused), mine)
	status, refused = call(t, "POST", base+"/message:send", in("yours", message("m-2", mine, `{"text": "More."}`)))
	require.Equal(t, http.StatusBadRequest, status, refused)
	require.NotContains(t, fmt.Sprint(refused), "context mine")
}

// A message that came first to an earlier build finds its run, and another message with its id does
// not.
func TestMessageOfAnEarlierBuild(t *testing.T) {
	t.Parallel()
	gateway, url := serve(t, nil)
	before := runid.Request("counter", "m-1")
	_, err := gateway.Start(t.Context(), "", control.StartRequest{
		AgentName: "counter", RunID: before, Task: "Count.", MessageID: "m-1", Custom: map[string]json.RawMessage{"a2a": json.RawMessage(`{"context_id": "mine"}`)},
	})
	require.NoError(t, err)
	for body, same := range map[string]bool{
		`"contextId": "mine", "parts": [{"text": "Count."}]`:  true,
		`"contextId": "mine", "parts": [{"text": "Count!"}]`:  false,
		`"contextId": "yours", "parts": [{"text": "Count."}]`: false,
		`"parts": [{"text": "Count."}]`:                       false,
	} {
		status, sent := call(t, "POST", url+"/v1/a2a/counter/message:send", `{"message": {"messageId": "m-1", "role": "ROLE_USER", `+body+`}}`)
		require.Equal(t, http.StatusOK, status, sent)
		require.Equal(t, same, field(sent, "task", "id") == before, body)
	}
}
