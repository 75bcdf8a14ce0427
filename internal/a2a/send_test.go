package a2a_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

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

// A run has the trace context of the request that started it.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	gateway, url := serve(t, nil)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	status, sent := call(t, "POST", url+"/v1/a2a/counter/message:send", message("m-1", "", `{"text": "Count."}`), "Traceparent", trace)
	require.Equal(t, http.StatusOK, status, sent)
	run, _ := field(sent, "task", "id").(string)
	store := gateway.Access.Store
	for e, err := range store.Log().Read(t.Context(), store.Place(events.DefaultNamespace, run), 0) {
		require.NoError(t, err)
		first, err := events.DefaultCodec().Decode(e.Body)
		require.NoError(t, err)
		require.Equal(t, trace, first.TraceParent)
		return
	}
	t.Fatal("the task is no run")
}
