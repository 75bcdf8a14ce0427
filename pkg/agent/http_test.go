package agent_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

func listenLocally(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A program's HTTP interface demands the token, has the names that it was given, and
// checks scripts when a run is started.
func TestServeHTTPOptions(t *testing.T) {
	t.Parallel()
	serve := func(o agent.HTTP) (url string) {
		a, err := agent.New("agent").Provider("scripted", scripted.New()).Use("scripted").Bus(simtest.New(simtest.Options{}).NewProcess()).Build()
		require.NoError(t, err)
		o.Listener = listenLocally(t)
		server, err := agent.ServeHTTP(t.Context(), o, a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		return "http://" + o.Listener.Addr().String() + "/v1/runs"
	}
	ask := func(url, method, token, host, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		r.Host = host
		if r.Header.Set("Content-Type", "application/json"); token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(text)
	}
	guarded, open := serve(agent.HTTP{Token: "secret"}), serve(agent.HTTP{Hosts: []string{"agents.example"}})
	for _, tt := range []struct {
		url, token, host string
		want             int
	}{
		{guarded, "", "", http.StatusUnauthorized},
		{guarded, "other", "", http.StatusUnauthorized},
		{guarded, "secret", "", http.StatusOK},
		{open, "", "agents.example", http.StatusOK},
		{open, "", "other.example", http.StatusForbidden},
	} {
		status, text := ask(tt.url, http.MethodGet, tt.token, tt.host, "")
		require.Equal(t, tt.want, status, "%+v: %s", tt, text)
	}
	status, text := ask(open, http.MethodPost, "", "", `{"agent":{"name":"x","llm":{"provider":"scripted","script":[{"txt":"a"}]}},"task":"t"}`)
	require.Equal(t, http.StatusBadRequest, status, text)
	require.Contains(t, text, "txt")
}

// A start that fails closes the listener, so that clients are refused at once.
func TestServeHTTPThatFails(t *testing.T) {
	t.Parallel()
	build := func(url string) *agent.Agent {
		a, err := agent.New("a").LLM(scripted.NewMock()).NATS(url).Build()
		require.NoError(t, err)
		return a
	}
	gone := "nats://" + listenLocally(t).Addr().String()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, agents := range map[string][]*agent.Agent{"no agents": nil, "twice one name": {build(gone), build(gone)}, "no bus": {build(gone)}} {
		l := listenLocally(t)
		_, err := agent.ServeHTTP(ended, agent.HTTP{Listener: l}, agents...)
		require.Error(t, err, name)
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed, name)
	}
}
