package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// blocked is a model that answers when until is closed.
type blocked struct {
	script
	until <-chan struct{}
}

func (b blocked) reply(r *chatRequest) (modelReply, error) {
	<-b.until
	return b.script.reply(r)
}

// TestNoActor: a run whose pool lost its actor says so, over HTTP and in commands, also after the
// gateway was started again, and ends with the result of an actor that comes.
func TestNoActor(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{tools: []string{"look"}, gatewayArgs: []string{"--pool-wait", "0"}})
	c.tools.handle("look", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "seen") })
	s, gone := c.stage(), make(chan struct{})
	run1 := s.begin(t, blocked{script{asks("a-1", "look", "{}"), says("Done.")}, gone}, "look")
	require.NoError(t, c.roles["actor-0"].terminate())
	close(gone)

	type listed struct {
		RunID    string `json:"run_id"`
		Updated  time.Time
		WaitsFor *struct {
			Pool  string
			Since time.Time
		} `json:"waits_for"`
	}
	waits := func() (one listed) {
		require.Eventually(t, func() bool {
			return c.api.get(t.Context(), "/v1/runs/"+run1, &one) == nil && one.WaitsFor != nil
		}, startTime, 20*time.Millisecond, "the run does not say what it waits for")
		return one
	}
	require.Equal(t, "default", waits().WaitsFor.Pool)
	c.replace("gateway", 0)
	c.api.awaitReady()
	again := waits()
	require.Equal(t, again.Updated, again.WaitsFor.Since, "the time is that of the log")
	var page struct{ Runs []listed }
	require.NoError(t, c.api.get(t.Context(), "/v1/runs?waiting=actor", &page))
	require.Equal(t, []listed{again}, page.Runs)
	says := "waits for an actor of pool default since "
	for _, where := range [][]string{c.env(), environment(c.home, "MOOREBUS_URL="+c.api.base)} {
		require.Contains(t, run(t, where, "moorebus", "show", run1).stdout, says)
		require.Contains(t, run(t, where, "moorebus", "runs", "--waiting", "actor").stdout, run1+"  acting (waits for pool default)")
	}

	tap := launch(t, "tap", c.env(), "moorebus", "tap", "--run", run1)
	t.Cleanup(func() { tap.reap(t) })
	require.Eventually(t, func() bool { return strings.Contains(tap.log.String(), says) }, startTime, 20*time.Millisecond, "tap does not say it")

	c.start("actor", 0)
	end, view := s.finish(t, run1)
	require.Equal(t, "LlmFinalAnswer", end.Type)
	require.True(t, view.Memory.History[0].Success)
	var ended listed
	require.NoError(t, c.api.get(t.Context(), "/v1/runs/"+run1, &ended))
	require.Nil(t, ended.WaitsFor)
	c.verifyAll()
}
