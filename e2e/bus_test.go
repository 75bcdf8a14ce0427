package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBusRestart stops the bus in the middle of conversations, once as asked and
// once by kill -9, and starts it again on the same data.
func TestBusRestart(t *testing.T) {
	t.Parallel()
	all := conversations(t)
	c := startCluster(t, setup{ackWait: quickAckWait, tools: toolNames(all)})
	s := c.stage()
	s.limit = 30 * time.Second
	for _, way := range []struct {
		name string
		stop func()
	}{
		{"SIGTERM", func() { require.NoError(t, c.bus.terminate()) }},
		{"kill -9", func() { c.bus.kill() }},
	} {
		t.Run(way.name, func(t *testing.T) {
			middle := s.milestone(t, 60)
			s.play(t, all, func() {
				await(t, middle, "some events")
				way.stop()
				c.startServer()
			})
		})
	}
	c.verifyAll()
}

// TestBusAway checks what everything says and does while there is no bus.
func TestBusAway(t *testing.T) {
	t.Parallel()
	env := environment(t.TempDir(), "NATS_URL=nats://"+freeAddress(t), "OPENAI_API_KEY=none")
	t.Run("the gateway lives and is not ready", func(t *testing.T) {
		address := freeAddress(t)
		gateway := launch(t, "gateway", env, "gateway", "--listen", address)
		t.Cleanup(func() { gateway.reap(t) })
		client := newAPI(t, "http://"+address)
		require.Eventually(t, func() bool {
			status, _, err := client.do(t.Context(), http.MethodGet, "/healthz", nil)
			return err == nil && status == http.StatusOK
		}, startTime, 10*time.Millisecond, "it lives")
		status, answer, err := client.do(t.Context(), http.MethodGet, "/readyz", nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, status, string(answer))
		require.NoError(t, gateway.terminate())
	})
	t.Run("a role waits until it is asked to end", func(t *testing.T) {
		observer := launch(t, "observer", env, "observer")
		t.Cleanup(func() { observer.reap(t) })
		require.NoError(t, observer.terminate(), "also at once after its start")
		require.Regexp(t, `level=INFO msg=stopping role=observer instance=\S+ reason="ended by signal: terminated"`, observer.log.String())
	})
	t.Run("commands say that it is away", func(t *testing.T) {
		for _, command := range [][]string{{"replay", "verify", "--all"}, {"moorebus", "init"}, {"moorebus", "runs"}} {
			out := run(t, env, command[0], command[1:]...)
			require.Equal(t, 75, out.code, "%v: %s", command, out.stderr)
			require.NotEmpty(t, out.stderr)
		}
	})
}
