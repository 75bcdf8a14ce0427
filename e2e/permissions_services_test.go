package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"
)

// TestGuardedServices follows the README for a NATS service: on a bus with TLS and a user for
// each role, an actor finds the service and calls its tool, and nobody needs more.
func TestGuardedServices(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "tools.yaml"), []byte(guardedTools), 0o600))
	block := s.block("--service")
	s.do(block[:1])
	s.do(s.block("-c server.conf"))
	s.awaitPort("4222")
	s.do(s.block("operator.nk moorebus init --pools web\n"))
	roles, _ := s.do(s.block("gateway.nk")[:4])
	actors, _ := s.do(block[2:])
	require.Len(t, roles, 3)
	require.Len(t, actors, 1)

	key, err := nats.NkeyOptionFromSeed(filepath.Join(s.dir, "keys", "service_text.nk"))
	require.NoError(t, err)
	refused := make(chan error, 100)
	conn, err := nats.Connect("tls://127.0.0.1:"+s.port["4222"], key, nats.RootCAs(filepath.Join(s.dir, "tls", "ca.pem")),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	service, err := micro.AddService(conn, micro.Config{Name: "text", Version: "1.0.0"})
	require.NoError(t, err)
	require.NoError(t, service.AddEndpoint("same", micro.HandlerFunc(func(r micro.Request) { _ = r.Respond(r.Data()) }),
		micro.WithEndpointSubject("text.same"), micro.WithEndpointMetadata(map[string]string{"moorebus.tool": "same", "moorebus.pool": "web"})))

	a := newAPI(t, "http://127.0.0.1:"+s.port["8080"])
	a.awaitReady()
	a.awaitTools([]string{"same"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var run struct {
		ID string `json:"run_id"`
	}
	require.NoError(t, a.persist(ctx, "POST", "/v1/runs", map[string]any{"task": "Say it.", "agent": map[string]any{
		"name": "echo", "tools": []string{"same"}, "llm": map[string]any{"provider": "scripted", "script": []any{
			map[string]any{"calls": []any{map[string]any{"name": "same", "arguments": map[string]any{"a": 1}}}},
			map[string]any{"text": "It said {{observation -1}}."},
		}},
	}}, &run))
	s.awaitState(ctx, a, run.ID, "done")
	_, log, err := a.do(ctx, "GET", "/v1/runs/"+run.ID+"/events", nil)
	require.NoError(t, err)
	require.Contains(t, string(log), `SUCCESS: {\"a\":1}`)
	require.Empty(t, refused)
	terminateAll(t, append(roles, actors...))
	for _, role := range append(roles, actors...) {
		require.NotContains(t, role.log.String(), "violation", "%s may do what it does", role.name)
	}
}
