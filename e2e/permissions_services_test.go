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

	conn, refused := s.connectAs("service_text")
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

// TestGuardedDoors: on a bus with a user for each role, the server refuses what would get a
// user into a run as its client, as its model, or as a client's thread, and whatever a service
// says beside its answers.
func TestGuardedDoors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(s.block("--service")[:1])
	s.do(s.block("-c server.conf"))
	s.awaitPort("4222")
	s.do(s.block("operator.nk moorebus init --pools web\n"))
	run := newRunID()
	edge := func(edge string) string { return "moore.0.default." + edge + "." + run }
	const thread, ask, answer = "$KV.threads.default.a.x", "question.ask.client", "question.answer.x"
	everybody := []string{thread, ask, "timers.due.default." + run + ".client", "$JS.API.CONSUMER.MSG.NEXT.MOORE_0.acting_client"}
	for user, forbidden := range map[string][]string{
		"actor_web": append([]string{answer, edge("control.observing.default"), edge("control.none.default"), edge("planning.done.default"), edge("planning.acting.client"), edge("acting.none.client")}, everybody...),
		"planner":   append([]string{edge("control.observing.default"), edge("acting.observing.default")}, everybody...),
		"observer":  append([]string{answer, edge("control.observing.default"), edge("planning.done.default")}, everybody...),
		"tap":       append([]string{answer, edge("control.observing.default"), edge("planning.done.default")}, everybody...),
		"gateway":   {answer, edge("planning.done.default"), edge("planning.acting.client"), edge("acting.observing.default"), everybody[2]},
		"service_text": append([]string{
			answer, edge("acting.observing.default"), edge("control.observing.default"), edge("planning.done.default"),
			"_INBOX_actor_web.x", "_INBOX.x", "$JS.API.STREAM.INFO.MOORE_0", "$JS.ACK.MOORE_0.acting_web.1.1.1.1.1", "$SRV.INFO", "feed.x", "chunk.default." + run,
		}, everybody...),
	} {
		conn, refused := s.connectAs(user)
		for _, subject := range forbidden {
			require.NoError(t, conn.Publish(subject, []byte("{}")))
			require.Contains(t, await(t, refused, user+" may publish on "+subject).Error(), `"`+subject+`"`)
		}
	}
	for user, forbidden := range map[string][]string{
		"actor_web": {ask, answer, "question.>"}, "planner": {answer, "question.answer.*", "_SERVICES.>"}, "tap": {ask, answer}, "service_text": {ask, answer, edge("*.*.*"), "_SERVICES.>"},
	} {
		conn, refused := s.connectAs(user)
		for _, subject := range forbidden {
			_, err := conn.SubscribeSync(subject)
			require.NoError(t, err)
			require.Contains(t, await(t, refused, user+" may subscribe to "+subject).Error(), `"`+subject+`"`)
		}
	}
}

// connectAs connects as a user; refused gets what the server refuses.
func (s *site) connectAs(user string) (conn *nats.Conn, refused chan error) {
	s.t.Helper()
	key, err := nats.NkeyOptionFromSeed(filepath.Join(s.dir, "keys", user+".nk"))
	require.NoError(s.t, err)
	refused = make(chan error, 100)
	conn, err = nats.Connect("tls://127.0.0.1:"+s.port["4222"], key, nats.RootCAs(filepath.Join(s.dir, "tls", "ca.pem")), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(s.t, err)
	s.t.Cleanup(conn.Close)
	return conn, refused
}
