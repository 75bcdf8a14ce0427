package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	crowd     = flag.Int("quotas.runs", 400, "how many runs the large tenant of TestFairShare starts")
	places    = flag.Int("quotas.active", 8, "how many runs may work at once in TestFairShare")
	unbounded = flag.Bool("quotas.unbounded", false, "let TestFairShare also measure without quotas, which takes as long as all runs")
)

// inNamespace sends every request in a namespace.
type inNamespace struct {
	http.RoundTripper
	namespace string
}

func (n inNamespace) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Moorebus-Namespace", n.namespace)
	return n.RoundTripper.RoundTrip(r)
}

// tenant is the API of a namespace.
func (a *api) tenant(namespace string) *api {
	return &api{t: a.t, base: a.base, http: &http.Client{Transport: inNamespace{a.http.Transport, namespace}}}
}

// modelTime is how long the model takes to answer: what a place is used for.
const modelTime = 200 * time.Millisecond

// slowModel lets the model take its time, and returns an agent of it.
func (c *cluster) slowModel() map[string]any {
	text := "done"
	c.model.play("slow", playing(func(*chatRequest) modelReply {
		<-time.After(modelTime)
		return modelReply{content: &text}
	}))
	return map[string]any{"name": "slow", "llm": map[string]any{"provider": "openai"}, "models": map[string]any{"default": "slow"}}
}

// startMany starts runs side by side and returns their ids.
func (a *api) startMany(ctx context.Context, agent any, count int) []string {
	a.t.Helper()
	ids, errs, slots := make([]string, count), make([]error, count), make(chan struct{}, 32)
	var all sync.WaitGroup
	for i := range ids {
		slots <- struct{}{}
		all.Go(func() {
			ids[i] = newRunID()
			errs[i] = a.start(ctx, runRequest{Agent: agent, Task: "Do it.", RunID: ids[i]})
			<-slots
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(a.t, err)
	}
	return ids
}

// tenRuns starts ten runs at once and returns how long it takes until all have ended.
func (a *api) tenRuns(ctx context.Context, agent any) time.Duration {
	a.t.Helper()
	began := time.Now()
	for _, id := range a.startMany(ctx, agent, 10) {
		require.Eventually(a.t, func() bool {
			v, err := a.view(ctx, id)
			return err == nil && v.State == "done"
		}, 5*startTime, 2*time.Millisecond)
	}
	return time.Since(began)
}

type quotaView struct {
	Now struct{ Active, Queued int } `json:"now"`
}

// TestFairShare: ten runs of one tenant do not wait for the hundreds that another one has queued.
func TestFairShare(t *testing.T) {
	c := startCluster(t, setup{gateways: 2})
	ctx, agent := t.Context(), c.slowModel()
	small, large := c.api.tenant("small"), c.api.tenant("large")
	small.tenRuns(ctx, agent) // connections are made, and what is pinned is read
	without := small.tenRuns(ctx, agent)
	require.NoError(t, c.api.call(ctx, http.MethodPut, "/v1/quotas/_", map[string]any{"active": *places}, nil))
	stored := time.Now() // each gateway uses it within two seconds
	require.Eventually(t, func() bool {
		return small.tenRuns(ctx, agent) > 0 && c.queue(ctx, "_") != nil && time.Since(stored) > 3*time.Second
	}, startTime, time.Millisecond)
	lone := small.tenRuns(ctx, agent)
	large.startMany(ctx, agent, *crowd)
	var took []time.Duration
	for range 3 {
		one := small.tenRuns(ctx, agent)
		left := c.queue(ctx, "_")
		require.NotNil(t, left)
		t.Logf("ten runs: %s without quotas, %s with, %s beside %d runs of another tenant, of which %d are still queued", without, lone, one, *crowd, left.Now.Queued)
		if left.Now.Queued <= *crowd/10 {
			break // the large tenant has had its turn, so this one shows nothing
		}
		took = append(took, one)
	}
	require.NotEmpty(t, took, "the large tenant has had its turn, so nothing is shown")
	require.Less(t, slices.Min(took), 2*lone+modelTime/2)
	if !*unbounded {
		return
	}
	require.NoError(t, c.api.call(ctx, http.MethodPut, "/v1/quotas/large", map[string]any{"weight": 1}, nil))
	require.NoError(t, c.api.call(ctx, http.MethodDelete, "/v1/quotas/_", nil, nil))
	require.Eventually(t, func() bool { q := c.queue(ctx, "large"); return q != nil && q.Now.Queued == 0 }, 5*startTime, 10*time.Millisecond)
	left := c.queue(ctx, "large")
	t.Logf("ten runs: %s without a bound, beside %d runs at work", small.tenRuns(ctx, agent), left.Now.Active)
}

// queue returns how a quota is used; nil if nobody knows.
func (c *cluster) queue(ctx context.Context, scope string) *quotaView {
	var q quotaView
	if err := c.api.get(ctx, "/v1/quotas/"+scope, &q); err != nil {
		return nil
	}
	return &q
}

// TestKilledAdmission kills the gateway that admits, again and again: every queued run is admitted
// once and ends.
func TestKilledAdmission(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{gateways: 2})
	ctx, agent := t.Context(), c.slowModel()
	require.NoError(t, c.api.call(ctx, http.MethodPut, "/v1/quotas/default", map[string]any{"active": 4}, nil))
	first := c.api.startMany(ctx, agent, 1)[0]
	c.api.awaitState(ctx, first, "done")
	ids := c.api.startMany(ctx, agent, 150)
	for _, at := range []int{20, 70} {
		c.api.awaitState(ctx, ids[at], "done")
		leader := strings.TrimPrefix(c.api.admittedBy(ctx, ids[at]), "moorebus/gateway/")
		for i := range 2 {
			if strings.HasPrefix(leader, instance("gateway", i)) {
				c.replace("gateway", i)
				leader = ""
			}
		}
		require.Empty(t, leader, "nobody was killed")
		c.api.awaitReady()
	}
	for _, id := range ids {
		c.api.awaitState(ctx, id, "done")
		c.api.admittedBy(ctx, id)
	}
	c.verifyAll()
}

// admittedBy returns the source of the one event that admitted a run.
func (a *api) admittedBy(ctx context.Context, id string) (source string) {
	a.t.Helper()
	status, body, err := a.do(ctx, http.MethodGet, "/v1/runs/"+id+"/events", nil)
	require.NoError(a.t, err)
	require.Equal(a.t, http.StatusOK, status)
	found := 0
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		var e struct{ Type, Source string }
		require.NoError(a.t, json.Unmarshal(lines.Bytes(), &e))
		if e.Type == "Admitted" {
			source, found = e.Source, found+1
		}
	}
	require.Equal(a.t, 1, found, string(body))
	return source
}

// TestToolLimit: the calls of a bounded tool that run at once are as many as the bound allows and
// never more, whatever calls a reply has, in whichever shard its run is, and when an actor is killed.
func TestToolLimit(t *testing.T) {
	const bound, runs, calls = 4, 16, 5
	c := startCluster(t, setup{
		planners: 2, actorPools: []string{"payments", "payments"}, ackWait: 3 * time.Second,
		tools: []string{"pay"}, toolSettings: map[string]string{"pay": "effect: idempotent, pool: payments"},
		initArgs: []string{"--shards", "2", "--pool-tools", "payments=pay", "--pool-max-ack-pending", "payments=4"},
	})
	var mu sync.Mutex
	atOnce, most, ended := 0, 0, 0
	full := make(chan struct{})
	c.tools.handle("pay", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if atOnce++; atOnce == bound && most < bound {
			close(full)
		}
		most = max(most, atOnce)
		mu.Unlock()
		select {
		case <-full:
		case <-r.Context().Done():
		}
		select {
		case <-time.After(20 * time.Millisecond): // a payment takes its time
		case <-r.Context().Done():
		}
		mu.Lock()
		defer mu.Unlock()
		atOnce--
		ended++
		_, _ = w.Write([]byte("paid"))
	})
	c.model.play("payer", playing(func(r *chatRequest) modelReply {
		if r.replies() > 0 {
			return says("done")
		}
		var reply modelReply
		for i := range calls {
			reply.calls = append(reply.calls, asks(fmt.Sprint("c", i), "pay", "{}").calls...)
		}
		return reply
	}))
	ids := c.api.startMany(t.Context(), map[string]any{
		"name": "payer", "llm": map[string]any{"provider": "openai"}, "models": map[string]any{"default": "payer"}, "tools": []string{"pay"},
	}, runs)
	await(t, full, "as many calls at once as the bound allows")
	c.replace("actor", 0)
	for _, id := range ids {
		c.api.awaitState(t.Context(), id, "done")
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, bound, most)
	require.GreaterOrEqual(t, ended, runs*calls)
}
