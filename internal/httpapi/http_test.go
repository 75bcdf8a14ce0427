package httpapi_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestRouter(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for _, path := range []string{"/nowhere", "/v1", "/v1/runs/", "/v1/runs/x/y", "/v1/runs/" + runlog.NewID() + "/view"} {
		r.fails(404, "not_found", r.do("GET", path, ""))
	}
	for path, method := range map[string]string{
		"/v1/runs": "DELETE", "/v1/events": "POST", "/v1/agents": "PUT", "/v1/agents/a": "DELETE", "/v1/tools": "POST",
		"/healthz": "POST", "/v1/runs/x/cancel": "GET", "/": "POST",
	} {
		a := r.fails(405, "method_not_allowed", r.do(method, path, ""))
		require.NotEmpty(t, a.header.Get("Allow"))
	}
}

func TestHeadOfStreams(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	for _, path := range []string{"/v1/events", "/v1/runs/" + id + "/events"} {
		a := r.do("HEAD", path, "", "Accept", "text/event-stream")
		require.Equal(t, 200, a.status)
		require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.http.Token = "s3cret" })
	for _, path := range []string{"/v1/runs", "/v1/events", "/v1/tools", "/v1/agents", "/metrics"} {
		for _, header := range []string{"", "Bearer", "Bearer wrong", "Basic s3cret", "s3cret"} {
			a := r.fails(401, "unauthorized", r.do("GET", path, "", "Authorization", header))
			require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
		}
	}
	r.fails(401, "unauthorized", r.do("POST", "/v1/runs", startBody("task")))
	require.Equal(t, 201, r.do("POST", "/v1/runs", startBody("task"), "Authorization", "Bearer s3cret").status)
	require.Equal(t, 200, r.do("GET", "/v1/runs", "", "Authorization", "bearer s3cret").status)
	for _, path := range []string{"/", "/healthz", "/readyz"} {
		require.Equal(t, 200, r.do("GET", path, "").status, "%s needs no token", path)
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for _, ns := range []string{"A", "a.b", "*", "ä"} {
		for _, path := range []string{"/v1/runs", "/v1/agents", "/v1/events", "/v1/runs/" + runlog.NewID()} {
			r.fails(400, "bad_namespace", r.do("GET", path, "", "Moorebus-Namespace", ns))
		}
		r.fails(400, "bad_namespace", r.do("POST", "/v1/runs", startBody("task"), "Moorebus-Namespace", ns))
	}
	a := r.do("POST", "/v1/runs", startBody("task"), "Moorebus-Namespace", "team")
	require.Equal(t, 201, a.status)
	require.JSONEq(t, `{"runs":[]}`, r.do("GET", "/v1/runs", "").body)
	require.Contains(t, r.do("GET", "/v1/runs", "", "Moorebus-Namespace", "team").body, a.text(t, "run_id"))
}

// Requests as browsers send them for pages. The answers of those that are refused say nothing, not even
// whether there is such a run.
func TestPagesOfOtherSites(t *testing.T) {
	r := simulatedRig(t, func(c *config) { c.http.Hosts = []string{"agents.internal"} })
	id := r.start("task")
	own := strings.TrimPrefix(r.url, "http://")
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json", ""} {
		for _, from := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			{"Origin", "https://evil.example"}, {"Origin", "null"}, {"Origin", "file://"}, {"Origin", "http://localhost:9"}, {"Origin", "http://" + own + ".evil.example"}, {"Origin", "http://" + own + "@evil.example"},
		} {
			for _, path := range []string{"/v1/runs", "/v1/runs/" + id + "/cancel", "/v1/runs/" + id + "/inputs", "/v1/a2a/a/rpc", "/v1/ag-ui/a"} {
				r.fails(403, "forbidden", r.do("POST", path, startBody("task"), append(from, "Content-Type", media)...))
			}
		}
	}
	for _, site := range []string{"cross-site", "same-site"} {
		for _, mode := range [][]string{{"no-cors", "object"}, {"no-cors", "image"}, {"no-cors", "script"}, {"cors", "empty"}, {"navigate", "iframe"}, {"navigate", "object"}} {
			from := []string{"Sec-Fetch-Site", site, "Sec-Fetch-Mode", mode[0], "Sec-Fetch-Dest", mode[1]}
			for _, path := range []string{"/v1/runs/" + id, "/v1/runs/none", "/v1/events", "/v1/runs/" + id + "/events", "/openapi.json", "/", "/metrics", "/nowhere"} {
				r.fails(403, "forbidden", r.do("GET", path, "", from...))
			}
		}
		for _, path := range []string{"/", "/openapi.json"} {
			require.Equal(t, 200, r.do("GET", path, "", "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document").status, "a link to %s", path)
		}
	}
	preflight := r.do("OPTIONS", "/v1/runs", "", "Origin", "https://evil.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type")
	require.GreaterOrEqual(t, preflight.status, 400)
	for key := range preflight.header {
		require.NotContains(t, key, "Access-Control", "no page of another site reads an answer")
	}
	for _, host := range []string{"evil.example:8080", "localhost.", "localhost.evil.example", "127.0.0.1.", "127.1"} {
		r.fails(403, "forbidden", r.do("GET", "/v1/runs", "", "Host", host))
	}
	for _, host := range []string{"localhost:8080", "127.0.0.1", "[::1]:80", "agents.internal"} {
		require.Equal(t, 200, r.do("GET", "/v1/runs", "", "Host", host).status, host)
	}
	for _, site := range []string{"same-origin", "none"} {
		require.Equal(t, 201, r.do("POST", "/v1/runs", startBody("task"), "Sec-Fetch-Site", site).status)
	}
	require.Equal(t, []string{"Start"}, r.Types(id), "nothing came of it")
}

// A page of another site has no token to send, so a program of another origin that has one may read.
func TestPagesOfOtherSitesWithAToken(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.http.Token = "s3cret" })
	from := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}
	r.fails(401, "unauthorized", r.do("GET", "/v1/runs", "", from...))
	require.Equal(t, 200, r.do("GET", "/v1/runs", "", append(from, "Authorization", "Bearer s3cret")...).status)
	r.fails(403, "forbidden", r.do("POST", "/v1/runs", startBody("task"), append(from, "Authorization", "Bearer s3cret")...))
}

func TestHealth(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 2, func(t *testing.T, r *rig) {
		require.Equal(t, 200, r.do("GET", "/healthz", "").status)
		a := r.do("GET", "/readyz", "")
		require.Equal(t, 200, a.status, a.body)
		require.NoError(t, r.stop())
		r.fails(503, "unavailable", r.do("GET", "/readyz", ""))
	})
	r := simulatedRig(t, func(c *config) {
		c.Ready = func(context.Context) error { return errors.New("the moon is wrong") }
	})
	a := r.fails(503, "unavailable", r.do("GET", "/readyz", ""))
	require.Contains(t, a.text(t, "message"), "the moon is wrong")
}

func TestBusAway(t *testing.T) {
	t.Parallel()
	j := simtest.New(simtest.Options{})
	p := j.NewProcess()
	r := newRig(t, j, func(c *config) {
		c.Store, c.KV = runlog.New(runlog.Options{Log: p}), p
	})
	id := r.start("task")
	p.Kill()
	for path, method := range map[string]string{
		"/v1/runs": "GET", "/v1/runs/" + id: "GET", "/v1/runs/" + id + "/events": "GET", "/v1/events": "GET",
		"/readyz": "GET", "/v1/agents": "GET", "/v1/agents/a": "GET", "/v1/runs/" + id + "/cancel": "POST",
	} {
		r.fails(503, "unavailable", r.do(method, path, ""))
	}
	require.Equal(t, 200, r.do("GET", "/healthz", "").status)
	r.fails(503, "unavailable", r.do("POST", "/v1/runs", startBody("task")))
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	r.do("POST", "/v1/runs/"+id+"/cancel", "")
	r.do("GET", "/nowhere", "")
	a := r.do("GET", "/metrics", "")
	require.Equal(t, 200, a.status)
	require.Contains(t, a.header.Get("Content-Type"), "text/plain; version=0.0.4")
	require.Contains(t, a.body, "moorebus_gateway_runs_started_total 1\n")
	require.Contains(t, a.body, "moorebus_gateway_events_appended_total 2\n")
	require.Contains(t, a.body, `moorebus_gateway_http_requests_total{code="201"} 1`)
	require.Contains(t, a.body, `moorebus_gateway_http_requests_total{code="404"} 1`)
}

func TestPage(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	a := r.do("GET", "/", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, "text/html; charset=utf-8", a.header.Get("Content-Type"))
	require.NotEmpty(t, a.header.Get("Content-Security-Policy"))
	require.Contains(t, a.body, `<html lang="en">`)
	require.NotContains(t, a.body, "://", "nothing is loaded from elsewhere")
}

func TestTools(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	require.JSONEq(t, `[{"name":"search","description":"Searches.","schema":{"type":"object"},"effect":"pure","pool":"default","risk":"low"}]`,
		r.do("GET", "/v1/tools", "").body)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := control.New(control.Config{})
	require.ErrorContains(t, err, "required")
	b := simtest.New(simtest.Options{})
	full := control.Config{Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b}, Timers: b, KV: b}
	_, err = control.New(full)
	require.ErrorContains(t, err, "Instance")
	full.Instance, full.DefaultNamespace = "x", "No"
	_, err = control.New(full)
	require.ErrorContains(t, err, "namespace")
}

func TestServiceForCommands(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	ctx := t.Context()
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "own", "openai"
	result, err := r.control.Start(ctx, "", control.StartRequest{Agent: &a, Task: "x"})
	require.NoError(t, err)
	state, err := r.control.State(ctx, "", result.RunID, 0)
	require.NoError(t, err)
	require.Equal(t, events.Planning, state.State)
	_, err = r.control.Start(ctx, "", control.StartRequest{Agent: &a, Task: "x\xff"})
	var failed *refusal.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, refusal.Invalid, failed.Kind)
	_, err = r.control.Start(ctx, "", control.StartRequest{Agent: &a, AgentName: "b", Task: "x"})
	require.ErrorAs(t, err, &failed)
}

// A client that never saw the answer asks again, also after the run has ended.
func TestRepeatedInputsAfterTheEnd(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("chat")
	message := `{"type":"user-message","message_id":"m1","content":"hello?"}`
	require.Equal(t, 200, r.inputs(id, "["+message+"]").status)
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
	a := r.inputs(id, "["+message+"]")
	require.Equal(t, 200, a.status, a.body)
	require.JSONEq(t, `{"accepted":1,"n":3}`, a.body)
	r.fails(409, "run_ended", r.inputs(id, "["+message+`,{"type":"user-message","message_id":"m2","content":"new"}]`))
	require.Equal(t, []string{"Start", "UserMessage", "Cancelled"}, r.Types(id))
}

// The log says by how much the window grew, not that it was left to the agent.
func TestExpandedWindowIsWrittenOut(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("chat")
	require.Equal(t, 200, r.inputs(id, `[{"type":"expand-context-window"}]`).status)
	require.Contains(t, string(r.Records(id)[1].Body), `"increment":10`)
}

func TestPathsAreNotCleaned(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for _, path := range []string{"//v1/runs", "/v1/../v1/runs", "/v1/runs/", "/v1//runs"} {
		r.fails(404, "not_found", r.do("GET", path, ""))
	}
}

func TestBrokenApprovalExpressionIsRefused(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.CheckApproval = approval.New().Check })
	bad := `{"name":"a","llm":{"provider":"openai"},"approval":{"policy":"expr","expr":"((("}}`
	r.fails(422, "bad_approval", r.do("POST", "/v1/runs", `{"agent":`+bad+`,"task":"x"}`))
	r.fails(422, "bad_approval", r.do("PUT", "/v1/agents/a", bad, "Content-Type", "application/json"))
	good := `{"name":"a","llm":{"provider":"openai"},"approval":{"policy":"expr","expr":"risk == 'high'"}}`
	require.Equal(t, 200, r.do("PUT", "/v1/agents/a", good, "Content-Type", "application/json").status)
}
