// Package otlp_test sends spans to the OTLP receiver of the OpenTelemetry Collector.
package otlp_test

import (
	"context"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/telemetry"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The Collector's receiver gets a run's spans over HTTP and over gRPC, with the same ids.
func TestCollector(t *testing.T) {
	addresses, err := freeport.Addresses(2)
	require.NoError(t, err)
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"http": map[string]any{"endpoint": addresses[0]}, "grpc": map[string]any{"endpoint": addresses[1]},
	}}).Unmarshal(cfg))
	sink := &consumertest.TracesSink{}
	receiver, err := factory.CreateTraces(t.Context(), receivertest.NewNopSettings(factory.Type()), cfg, sink)
	require.NoError(t, err)
	require.NoError(t, receiver.Start(t.Context(), componenttest.NewNopHost()))
	defer func() { require.NoError(t, receiver.Shutdown(context.Background())) }()

	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	defer server.Shutdown()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	a, err := agent.New("a").LLM(scripted.NewMock(scripted.Say("done"))).Conn(conn).Build()
	require.NoError(t, err)
	_, err = a.Run(t.Context(), "x")
	require.NoError(t, err)
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{})
	require.NoError(t, err)

	var all []map[string]string
	for i, protocol := range []string{"http/protobuf", "grpc"} {
		env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + addresses[i], "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", env["OTEL_EXPORTER_OTLP_ENDPOINT"]) // the client reads it itself
		client, err := telemetry.NewClient(func(name string) string { return env[name] })
		require.NoError(t, err)
		require.NoError(t, client.Start(t.Context()))
		resource, err := telemetry.Resource(t.Context())
		require.NoError(t, err)
		require.NoError(t, telemetry.New(telemetry.Config{
			Log: bus, Leases: bus, Positions: bus, Machine: reducer.NewMachine(reducer.MachineOptions{}), Sender: client, Resource: resource,
			From: time.Unix(1, 0), Once: true,
		}).Run(t.Context()))
		require.NoError(t, client.Stop(t.Context()))
		all = append(all, spansOf(sink))
		sink.Reset()
	}
	require.Len(t, all[0], 3, "invoke_agent, plan, chat")
	require.Equal(t, all[0], all[1])
}

// spansOf returns the names of the spans by their ids.
func spansOf(sink *consumertest.TracesSink) map[string]string {
	found := map[string]string{}
	for _, traces := range sink.AllTraces() {
		for _, rs := range traces.ResourceSpans().All() {
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					trace, span := s.TraceID(), s.SpanID()
					found[hex.EncodeToString(trace[:])+"/"+hex.EncodeToString(span[:])] = s.Name()
				}
			}
		}
	}
	return found
}
