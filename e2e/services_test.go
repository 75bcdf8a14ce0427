package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/nodetest"
)

// startServices is a cluster whose two actors serve all NATS services.
func startServices(t *testing.T) *cluster {
	t.Helper()
	return startCluster(t, setup{actors: 2, services: true, ackWait: quickAckWait, tools: []string{"stock"}})
}

func (c *cluster) connect() *nats.Conn {
	c.t.Helper()
	conn, err := nats.Connect(c.busURL())
	require.NoError(c.t, err)
	c.t.Cleanup(conn.Close)
	return conn
}

// serve starts an instance of a service with one tool of the service's name.
func (c *cluster) serve(conn *nats.Conn, name, version string, metadata map[string]string, handle func(micro.Request)) micro.Service {
	c.t.Helper()
	s, err := micro.AddService(conn, micro.Config{Name: name, Version: version})
	require.NoError(c.t, err)
	all := map[string]string{"moorebus.tool": name}
	for key, value := range metadata {
		all["moorebus."+key] = value
	}
	require.NoError(c.t, s.AddEndpoint(name, micro.HandlerFunc(handle), micro.WithEndpointMetadata(all)))
	require.NoError(c.t, conn.Flush())
	return s
}

type announced struct {
	Name, Description, Pool string
	Services                []string
}

// tool waits until a tool is announced as is says, and returns it; nil: it is not there.
func (c *cluster) tool(name string, is func(*announced) bool) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		var all []announced
		if c.api.get(c.t.Context(), "/v1/tools", &all) != nil {
			return false
		}
		at := slices.IndexFunc(all, func(a announced) bool { return a.Name == name })
		if at < 0 {
			return is(nil)
		}
		return is(&all[at])
	}, time.Minute, 50*time.Millisecond, "the tool %s", name)
}

func there(a *announced) bool { return a != nil }
func gone(a *announced) bool  { return a == nil }

// TestServices: the example's service in two processes, of which one is killed in the middle
// of many runs, and whose tools are those of every run.
func TestServices(t *testing.T) {
	t.Parallel()
	c := startServices(t)
	s := c.stage()
	instances := []*process{c.launch("service-0", c.env(), "services"), c.launch("service-1", c.env(), "services")}
	t.Cleanup(func() { terminateAll(t, instances[1:]) })
	c.tool("count_words", there)
	c.tool("publish", there)
	ask := script{asks("a-1", "count_words", `{"text":"to be or not"}`), asks("a-2", "publish", `{"text":"x"}`), asks("a-3", "publish", `{"text":""}`), says("Done.")}
	run := s.begin(t, ask, "count_words", "publish")
	_, view := s.finish(t, run)
	require.Equal(t, "SUCCESS: 4", view.Memory.History[0].Observation)
	require.Contains(t, view.Memory.History[1].Observation, "published as "+run+"/")
	require.Equal(t, "ERROR: there is no text to publish", view.Memory.History[2].Observation)
	_, log, err := c.api.do(t.Context(), "GET", "/v1/runs/"+run+"/events", nil)
	require.NoError(t, err)
	require.Contains(t, string(log), `"code":"service_empty"`)

	var runs []string
	for range 12 {
		runs = append(runs, s.begin(t, script{asks("a-1", "count_words", `{"text":"to be"}`), says("Done.")}, "count_words"))
	}
	instances[0].kill()
	for _, run := range runs {
		end, _ := s.finish(t, run)
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	}
	c.verifyAll()
}

// TestServicesOnce: an instance dies while it runs a call of class once. The call's outcome
// is unknown, and no other instance runs it.
func TestServicesOnce(t *testing.T) {
	t.Parallel()
	c := startServices(t)
	s := c.stage()
	begun, ran := make(chan *nats.Conn, 10), atomic.Int64{}
	for range 2 {
		conn := c.connect()
		c.serve(conn, "pay", "1.0.0", map[string]string{"timeout": "3s"}, func(micro.Request) {
			ran.Add(1)
			begun <- conn
		})
	}
	c.tool("pay", there)
	run := s.begin(t, script{asks("a-1", "pay", "{}"), says("Done.")}, "pay")
	await(t, begun, "the call").Close()
	end, view := s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type)
	require.Contains(t, view.Memory.History[0].Observation, "it may or may not have taken effect")
	_, log, err := c.api.do(t.Context(), "GET", "/v1/runs/"+run+"/events", nil)
	require.NoError(t, err)
	require.Contains(t, string(log), `"code":"outcome_unknown"`)
	require.EqualValues(t, 1, ran.Load())
	c.verifyAll()
}

// TestServicesComeAndGo: tools are announced while everything runs, in pools that no actor
// knew, change with the service's version, are ambiguous in two services, and go. A call has
// the trace context of its run.
func TestServicesComeAndGo(t *testing.T) {
	t.Parallel()
	c := startServices(t)
	traces := make(chan string, 10)
	handle := func(r micro.Request) {
		traces <- r.Headers().Get("traceparent")
		_ = r.Respond([]byte("here"))
	}
	old := c.serve(c.connect(), "clock", "1.0.0", map[string]string{"description": "old", "pool": "late"}, handle)
	c.tool("clock", func(a *announced) bool { return a != nil && a.Description == "old" && a.Pool == "late" })

	trace := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	body, err := json.Marshal(map[string]any{"task": "x", "agent": map[string]any{"name": "a", "tools": []string{"clock"}, "llm": map[string]any{
		"provider": "scripted", "script": []any{map[string]any{"calls": []any{map[string]any{"name": "clock", "arguments": map[string]any{}}}}, map[string]any{"text": "Done."}},
	}}})
	require.NoError(t, err)
	start := func() (status int, answer string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+c.gatewayAddresses[0]+"/v1/runs", bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("traceparent", trace)
		resp, err := c.api.http.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		var text bytes.Buffer
		_, err = text.ReadFrom(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, text.String()
	}
	require.Eventually(t, func() bool { status, _ := start(); return status == http.StatusCreated }, time.Minute, 100*time.Millisecond)
	got := await(t, traces, "the call")
	require.Equal(t, trace[:36], got[:36], "the trace of the run")
	require.NotEqual(t, trace, got, "the span of the call")

	next := c.serve(c.connect(), "clock", "1.1.0", map[string]string{"description": "new", "pool": "late"}, handle)
	c.tool("clock", func(a *announced) bool { return a != nil && a.Description == "new" })
	other := c.serve(c.connect(), "watch", "1.0.0", map[string]string{"tool": "clock", "pool": "late"}, handle)
	c.tool("clock", func(a *announced) bool { return a != nil && len(a.Services) == 2 })
	require.Eventually(t, func() bool {
		status, answer := start()
		return status == http.StatusUnprocessableEntity && strings.Contains(answer, "ambiguous_tool")
	}, time.Minute, 100*time.Millisecond)
	for _, service := range []micro.Service{old, next, other} {
		require.NoError(t, service.Stop())
	}
	c.tool("clock", gone)
	for _, instance := range []string{"actor-0", "actor-1"} {
		require.Equal(t, 1, strings.Count(c.roles[instance].log.String(), "is in the services"), "one warning")
	}
	c.verifyAll()
}

// TestServiceInTypeScript runs the example in TypeScript, with the library of other makers.
func TestServiceInTypeScript(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../examples/services/clock.ts")
	require.NoError(t, err)
	cmd := nodetest.Command(t, string(text))
	c := startServices(t)
	s := c.stage()
	cmd.Env = c.env()
	p := startProcess(t, "clock.ts", cmd)
	t.Cleanup(func() { p.reap(t) })
	c.tool("day_of_week", there)
	_, view := s.finish(t, s.begin(t, script{asks("a-1", "day_of_week", `{"date":"2026-11-23"}`), asks("a-2", "day_of_week", `{"date":"never"}`), says("Done.")}, "day_of_week"))
	require.Equal(t, "SUCCESS: Monday", view.Memory.History[0].Observation)
	require.Equal(t, "ERROR: that is no date", view.Memory.History[1].Observation)
	c.verifyAll()
	p.kill()
}
