package actor_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/httptool"
)

// Over real HTTP: what the tool is told about the call, what becomes of its
// answer, and that an idempotent call that a dead actor had begun is sent again
// under the same key.
func TestHTTPTool(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	hold, began := make(chan struct{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		mu.Lock()
		keys = append(keys, req.Header.Get("Idempotency-Key"))
		first := len(keys) == 1
		mu.Unlock()
		if first {
			began <- struct{}{}
			select {
			case <-hold:
			case <-req.Context().Done():
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]string{
			"x": req.Header.Get("X-Moorebus-Run"), "call": req.Header.Get("X-Moorebus-Call"),
			"key": req.Header.Get("Authorization"), "body": string(body),
		})
	}))
	defer server.Close()
	defer close(hold)
	get := func() tool.Tool {
		made, err := httptool.New(tool.Definition{Name: "get", Effect: tool.Idempotent}, httptool.Options{
			URL: server.URL, Headers: map[string]string{"Authorization": "Bearer s3cr3t-key"},
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = made.(io.Closer).Close() })
		return made
	}
	// The journal's time is the real one here, so its ack wait is short.
	r := &rig{Bench: workertest.New(t, simtest.Options{AckWait: 300 * time.Millisecond}, nil)}
	victim := r.spawn([]tool.Tool{get()})
	run := r.plan("get")
	<-began
	victim.Kill()
	r.spawn([]tool.Tool{get()}, redacting("Bearer s3cr3t-key"))
	o := r.outcome(run)
	require.True(t, o.Success)
	var answer map[string]string
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(o.Observation, "SUCCESS: ")), &answer))
	require.Equal(t, run.ID, answer["x"])
	require.Equal(t, "c1", answer["call"])
	require.Equal(t, "{}", answer["body"])
	require.Equal(t, "[REDACTED]", answer["key"], "a credential that comes back stays here")
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{run.ID + "/c1", run.ID + "/c1"}, keys)
}
