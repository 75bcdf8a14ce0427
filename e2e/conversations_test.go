package e2e

import (
	"context"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConversations plays every conversation, all at once, through several processes of
// each role. The tools are in three pools, each served by an actor of its own, so that the
// calls of one reply go to several actors. A reader of the fleet's feed must not keep the
// gateway from ending. MOOREBUS_CONVERSATIONS names a file of other conversations.
func TestConversations(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	names, pools := toolNames(all), []string{"red", "green", "default"}
	settings := map[string]string{}
	for i, name := range names {
		settings[name] = "effect: idempotent, pool: " + pools[i%len(pools)]
	}
	c := startCluster(t, setup{planners: 2, observers: 2, actorPools: pools, tools: names, toolSettings: settings})
	seen := watchFleet(t, c.api)
	played := c.stage().play(t, all, nil)
	require.Positive(t, c.api.chunks.Load(), "no reply was streamed live")
	c.verifyAll()
	ended(t, c.api, played[0].run)
	for range played {
		await(t, seen, "the fleet's feed shows the end of every run")
	}
}

// TestConversationsOneProcess does the same with everything in one process.
func TestConversationsOneProcess(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	model, tools, address := newModelServer(t), newToolServer(t), freeAddress(t)
	home, data := t.TempDir(), filepath.Join(t.TempDir(), "data")
	names := toolNames(all)
	env := environment(home, "OPENAI_BASE_URL="+model.URL+"/v1", "OPENAI_API_KEY=dev")
	dev := launch(t, "dev", env, "moorebus", "dev", "--listen", address, "--data", data, "--tools", tools.write(t, "dev", &setup{tools: names}))
	t.Cleanup(func() { dev.reap(t) })
	client := newAPI(t, "http://"+address)
	client.awaitReady()
	client.awaitTools(names)
	s := &stage{api: client, model: model, tools: tools, names: names, limit: 2 * time.Minute}
	played := s.play(t, all, nil)
	ended(t, client, played[0].run)

	second := run(t, env, "moorebus", "dev", "--listen", freeAddress(t), "--data", data)
	require.Equal(t, 1, second.code, "a second server on the same data")
	require.Contains(t, second.stderr, strconv.Itoa(dev.cmd.Process.Pid), "the holder is named")

	require.NoError(t, dev.terminate())
	out := run(t, environment(home), "replay", "verify", "--all", "--data", data)
	require.Zero(t, out.code, "replay verify --all: %s%s", out.stdout, out.stderr)

	exported := run(t, environment(home), "moorebus", "export", "--all", "--data", data)
	again := run(t, environment(home), "replay", "export", "--all", "--data", data)
	require.Contains(t, exported.stdout, `"subject":"moore.`)
	require.True(t, exported.stdout == again.stdout, "both commands export the same bytes")
}

// ended checks what the gateway says of a run that is over.
func ended(t *testing.T, a *api, run string) {
	t.Helper()
	view, err := a.view(t.Context(), run)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.base+"/v1/runs/"+run+"/events", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Last-Event-ID", strconv.FormatUint(view.N, 10))
	response, err := a.http.Do(request)
	require.NoError(t, err)
	_ = response.Body.Close()
	require.Equal(t, http.StatusNoContent, response.StatusCode, "to connect again after the end")

	status, lines, err := a.do(t.Context(), http.MethodGet, "/v1/runs/"+run+"/events?from="+strconv.FormatUint(view.N, 10), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Regexp(t, `^\{[^\n]*"type":"Closed"[^\n]*\}\n$`, string(lines))

	var refusal *apiError
	err = a.call(t.Context(), http.MethodPost, "/v1/runs/"+run+"/cancel", nil, nil)
	require.ErrorAs(t, err, &refusal, "to cancel a run that is over")
	require.Equal(t, http.StatusConflict, refusal.Status)
}

// watchFleet reads the feed of all runs and sends the id of each run that ends,
// until the test is over and the gateway has gone.
func watchFleet(t *testing.T, a *api) <-chan string {
	t.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, a.base+"/v1/events?type=Closed", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	response, err := a.http.Do(request)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	seen := make(chan string, 1024)
	go func() {
		defer func() { _ = response.Body.Close() }()
		_ = readSSE(response.Body, func(name, _, _ string) error {
			seen <- name
			return nil
		})
	}()
	return seen
}
