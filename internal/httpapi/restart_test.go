package httpapi_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
)

// starts counts the answers to repeated starts by status.
type starts struct {
	mu      sync.Mutex
	count   map[int]int
	refused string
	stop    context.CancelFunc
	ended   chan struct{}
}

// keepStarting starts runs, one after another, until the test ends.
func (r *rig) keepStarting() *starts {
	ctx, stop := context.WithCancel(context.Background())
	s := &starts{count: map[int]int{}, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for ctx.Err() == nil {
			req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/runs", strings.NewReader(startBody("task")))
			if err != nil {
				return
			}
			if res, err := http.DefaultClient.Do(req); err == nil {
				s.note(res)
			}
		}
	}()
	return s
}

func (s *starts) note(res *http.Response) {
	defer func() { _ = res.Body.Close() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[res.StatusCode]++
	if res.StatusCode/100 == 4 || res.StatusCode == 503 && res.Header.Get("Retry-After") == "" {
		var body strings.Builder
		_ = res.Write(&body)
		s.refused = body.String()
	}
}

// await waits for another answer with this status.
func (s *starts) await(t *testing.T, status int) {
	t.Helper()
	of := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.count[status]
	}
	before := of()
	require.Eventually(t, func() bool { return of() > before }, patience, waitStep, "a start is answered %d", status)
}

// The server is restarted three times, and all announcements have expired when it is back. No
// start is answered 4xx, and each 503 has Retry-After.
func TestStartsWhileTheServerIsRestarted(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it restarts a server
	}
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	free, err := freeport.Addresses(1)
	require.NoError(t, err)
	options := embedded.Options{Dir: t.TempDir(), Listen: free[0], Logger: quiet}
	server, err := embedded.Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { server.Shutdown() })
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: "nats://" + free[0], Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	b, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	r := newRig(t, b, nil)
	s := r.keepStarting()
	defer func() { s.stop(); <-s.ended }()
	for range 3 {
		s.await(t, http.StatusCreated)
		server.Shutdown()
		server, err = embedded.Start(t.Context(), options)
		require.NoError(t, err)
		lapse(t, server)
		s.await(t, http.StatusServiceUnavailable)
		require.Eventually(t, conn.IsConnected, patience, waitStep)
		s.await(t, http.StatusServiceUnavailable) // from what the directory says
		require.NoError(t, announce.NewDirectory(b, nil).Announce(t.Context(), events.DefaultPool, "a", []events.ToolSpec{searchTool}))
		require.NoError(t, announce.NewDirectory(b, nil).AnnounceProviders(t.Context(), "p", []string{"openai", "scripted"}))
	}
	s.await(t, http.StatusCreated)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.refused)
}

// lapse removes all announcements, as if they had expired.
func lapse(t *testing.T, server *embedded.Server) {
	t.Helper()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	for _, name := range []string{"KV_providers", "KV_tools_default"} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, stream.Purge(t.Context()))
	}
}
