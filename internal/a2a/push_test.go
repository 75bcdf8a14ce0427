package a2a_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/host"
)

// notification is a request that a receiver took.
type notification struct {
	header http.Header
	task   map[string]any
}

// receiver gets the updates of tasks. It fails the first failures requests.
type receiver struct {
	*httptest.Server
	failures atomic.Int32
	got      chan notification
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{got: make(chan notification, 100)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.failures.Add(-1) >= 0 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		data, _ := io.ReadAll(req.Body)
		var update struct{ Task map[string]any }
		_ = json.Unmarshal(data, &update)
		r.got <- notification{req.Header, update.Task}
	}))
	t.Cleanup(r.Close)
	return r
}

// until returns the notifications up to the one of a state, with their states.
func (r *receiver) until(t *testing.T, state string) (all []notification, states []string) {
	t.Helper()
	for {
		select {
		case n := <-r.got:
			now, _ := field(n.task, "status", "state").(string)
			all, states = append(all, n), append(states, strings.TrimPrefix(now, "TASK_STATE_"))
			if now == "TASK_STATE_"+state {
				return all, trimmed(states)
			}
		case <-time.After(time.Minute):
			require.FailNow(t, "no notification of the state", "%s after %v", state, states)
		}
	}
}

func servePushes(t *testing.T) string {
	t.Helper()
	_, url := serve(t, func(o *host.Options) {
		o.Features = all.Features().With("webhooks", webhooks.Made(webhooks.Settings{
			Allowed: webhooks.Loopback(), Retries: []time.Duration{10 * time.Millisecond, 10 * time.Millisecond, time.Hour},
		}))
	})
	return url
}

// The updates of a task are posted in order, with the client's own credentials, until it ends. A
// failure of the receiver loses none. Then the configuration is gone.
func TestPush(t *testing.T) {
	t.Parallel()
	url := servePushes(t)
	base := url + "/v1/a2a/cashier"
	first, second := newReceiver(t), newReceiver(t)
	first.failures.Store(2)
	config := `{"url": "` + first.URL + `/a", "id": "mine", "token": "s3cret", "authentication": {"scheme": "Bearer", "credentials": "k3y"}}`
	body := strings.Replace(message("m-1", "", `{"text": "Pay."}`), `{"message"`, `{"configuration": {"taskPushNotificationConfig": `+config+`}, "message"`, 1)
	var id string
	for range 2 { // the same message again changes nothing
		status, sent := call(t, "POST", base+"/message:send", body)
		require.Equal(t, http.StatusOK, status, sent)
		id = field(sent, "task", "id").(string)
	}
	all, states := first.until(t, "INPUT_REQUIRED")
	require.Equal(t, []string{"SUBMITTED", "INPUT_REQUIRED"}, states)
	seen := map[string]bool{}
	for _, n := range all {
		require.Equal(t, id, n.task["id"])
		require.Equal(t, "s3cret", n.header.Get("X-A2A-Notification-Token"))
		require.Equal(t, "Bearer k3y", n.header.Get("Authorization"))
		require.Equal(t, "application/a2a+json", n.header.Get("Content-Type"))
		seen[n.header.Get("webhook-id")] = true
	}
	require.Len(t, seen, len(all), "each has an id of its own")
	require.Contains(t, textOf(all[len(all)-1].task, "status", "message"), "May pay run with")

	configs := base + "/tasks/" + id + "/pushNotificationConfigs"
	status, made := call(t, "POST", configs, `{"url": "`+second.URL+`", "token": "other"}`)
	require.Equal(t, http.StatusOK, status, made)
	require.NotEmpty(t, made["id"])
	require.Equal(t, id, made["taskId"])
	_, list := call(t, "GET", configs, "")
	require.Len(t, list["configs"], 2)
	_, mine := call(t, "GET", configs+"/mine", "")
	require.Equal(t, first.URL+"/a", mine["url"])
	text, err := json.Marshal(list)
	require.NoError(t, err)
	for _, secret := range []string{"s3cret", "k3y", "other"} {
		require.NotContains(t, string(text), secret)
	}
	_, done := call(t, "POST", base+"/message:send", message("m-2", id, `{"text": "approved"}`))
	require.Equal(t, "TASK_STATE_COMPLETED", field(done, "task", "status", "state"), done)
	for _, r := range []*receiver{first, second} {
		all, states := r.until(t, "COMPLETED")
		require.Equal(t, []string{"WORKING", "COMPLETED"}, states, "only what is new")
		last := all[len(all)-1].task
		require.Equal(t, "The tool says: paid", textOf(last["artifacts"].([]any)[0]))
	}
	require.Eventually(t, func() bool {
		_, list := call(t, "GET", configs, "")
		return len(list["configs"].([]any)) == 0
	}, time.Minute, 20*time.Millisecond, "the task has ended")
	status, refused := call(t, "POST", configs, `{"url": "`+second.URL+`"}`)
	require.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, "UNSUPPORTED_OPERATION", reason(t, refused))
	require.Empty(t, first.got)
	require.Empty(t, second.got)
}

// Nothing is posted to an address that the operator does not allow.
func TestPushToThisMachine(t *testing.T) {
	t.Parallel()
	_, url := serve(t, nil)
	r := newReceiver(t)
	body := strings.Replace(message("m-1", "", `{"text": "Pay."}`), `{"message"`, `{"configuration": {"taskPushNotificationConfig": {"url": "`+r.URL+`"}}, "message"`, 1)
	status, sent := call(t, "POST", url+"/v1/a2a/cashier/message:send", body)
	require.Equal(t, http.StatusBadRequest, status, sent)
	require.Contains(t, field(sent, "error", "message"), "is not public")
	_, tasks := call(t, "GET", url+"/v1/a2a/cashier/tasks", "")
	require.Empty(t, field(tasks, "tasks"), "nothing was started")
	require.Empty(t, r.got)
}

// A configuration that was deleted gets nothing more, and another one of the task does.
func TestPushIsDeleted(t *testing.T) {
	t.Parallel()
	url := servePushes(t)
	base := url + "/v1/a2a/asker"
	gone, stays := newReceiver(t), newReceiver(t)
	_, sent := call(t, "POST", base+"/message:send", message("m-1", "", `{"text": "Paint."}`))
	id := field(sent, "task", "id").(string)
	rpc := func(method, params string) map[string]any {
		_, answer := call(t, "POST", base+"/rpc", `{"jsonrpc": "2.0", "id": 1, "method": "`+method+`", "params": `+params+`}`)
		require.NotContains(t, answer, "error")
		return answer
	}
	for name, r := range map[string]*receiver{"gone": gone, "stays": stays} {
		made := rpc("CreateTaskPushNotificationConfig", `{"taskId": "`+id+`", "id": "`+name+`", "url": "`+r.URL+`"}`)
		require.Equal(t, name, field(made, "result", "id"))
	}
	for range 2 { // also when it is not there any more
		rpc("DeleteTaskPushNotificationConfig", `{"taskId": "`+id+`", "id": "gone"}`)
	}
	require.Len(t, field(rpc("ListTaskPushNotificationConfigs", `{"taskId": "`+id+`"}`), "result", "configs"), 1)
	require.Equal(t, stays.URL, field(rpc("GetTaskPushNotificationConfig", `{"taskId": "`+id+`", "id": "stays"}`), "result", "url"))
	call(t, "POST", base+"/message:send", message("m-2", id, `{"text": "Red"}`))
	_, states := stays.until(t, "COMPLETED")
	require.Equal(t, []string{"WORKING", "COMPLETED"}, states)
	require.Empty(t, gone.got)
}
