package e2e

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// notice is what the receiver needs of a notice.
type notice struct {
	Type string `json:"type"`
	Data struct {
		Run string `json:"run_id"`
		N   uint64 `json:"n"`
	} `json:"data"`
}

// user is a receiver that is also the user of the conversations that it is told of.
type user struct {
	t *testing.T

	mu sync.Mutex
	// bodies are those of each id, runs gets the first arrivals of each run.
	bodies map[string]string
	runs   map[string]chan notice
	// arrived counts first arrivals, repeated those that came before.
	arrived, repeated int
	// reached has a channel that is closed at a number of first arrivals.
	reached map[int]chan struct{}
}

func (u *user) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	id := r.Header.Get("webhook-id")
	var n notice
	if err != nil || id == "" || json.Unmarshal(body, &n) != nil {
		return // the gateway was killed meanwhile
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if rand.IntN(20) == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if known := u.bodies[id]; known != "" {
		u.repeated++
		if known != string(body) {
			u.t.Errorf("%s has two bodies:\n%s\n%s", id, known, body)
		}
		return
	}
	u.bodies[id] = string(body)
	u.arrived++
	if reached := u.reached[u.arrived]; reached != nil {
		close(reached)
	}
	if run := u.runs[n.Data.Run]; run != nil {
		run <- n
	} else {
		u.t.Errorf("a notice of a run that nobody started: %s", body)
	}
}

// converse starts a conversation and goes on with it as the notices say. They come in the order of
// its events.
func (u *user) converse(ctx context.Context, c *cluster) error {
	run := newRunID()
	told := make(chan notice, 10)
	u.mu.Lock()
	u.runs[run] = told
	u.mu.Unlock()
	a := agent{Name: "talker", Mode: "chat", LLM: map[string]any{"provider": "scripted", "script": []any{map[string]any{"text": "One."}, map[string]any{"text": "Two."}}}}
	if err := c.api.start(ctx, runRequest{Agent: a, Task: "Talk.", RunID: run}); err != nil {
		return err
	}
	last, goOn := uint64(0), "Go on."
	for turn := 0; ; turn++ {
		var n notice
		select {
		case n = <-told:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if n.Data.N <= last {
			u.t.Errorf("run %s: event %d is told after event %d", run, n.Data.N, last)
		}
		last = n.Data.N
		want, do := "run.waiting_for_user", func() error { return c.api.say(ctx, run, turn, []message{{Role: "user", Content: &goOn}}) }
		switch turn {
		case 1:
			do = func() error { return c.api.closeRun(ctx, run) }
		case 2:
			want, do = "run.ended", func() error { return nil }
		}
		if n.Type != want {
			u.t.Errorf("run %s: %s in the place of %s", run, n.Type, want)
		}
		if err := do(); err != nil || turn == 2 {
			return err
		}
	}
}

// TestWebhooksSurviveGateways kills all gateways (kill -9) at random moments under load: each notice
// arrives, those of a run first arrive in its order, and a repeated one is the same.
func TestWebhooksSurviveGateways(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{gateways: 2, planners: 1, ackWait: quickAckWait, gatewayArgs: []string{"--webhook-retries", "50ms,100ms,1s,1s,1s,1s,1s,1s,1s,1s"}})
	const workers, each, kills = 24, 12, 3
	u := &user{t: t, bodies: map[string]string{}, runs: map[string]chan notice{}, reached: map[int]chan struct{}{}}
	receiver := httptest.NewServer(u)
	defer receiver.Close()
	var moments []chan struct{}
	for i := range kills {
		moment := make(chan struct{})
		u.reached[50+i*workers*each*3/(kills+1)+rand.IntN(50)] = moment
		moments = append(moments, moment)
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	require.NoError(t, c.api.persist(ctx, http.MethodPut, "/v1/webhooks/user", map[string]any{"url": receiver.URL}, nil))
	failed := make(chan error, workers)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range each {
				if err := u.converse(ctx, c); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	for _, moment := range moments {
		await(t, moment, "more notices")
		c.roles[instance("gateway", 0)].kill()
		c.replace("gateway", 1)
		c.start("gateway", 0)
	}
	all.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	require.Equal(t, workers*each*3, u.arrived)
	t.Logf("%d notices, %d of them repeated", u.arrived, u.repeated)
}
