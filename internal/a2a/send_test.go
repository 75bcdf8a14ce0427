package a2a_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
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
