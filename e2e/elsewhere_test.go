package e2e

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestToolsApart: three actors of one pool have one of an agent's two tools each. In
// every run each call is done by an actor that has its tool, and the log is as if all
// actors had both: one that does not have it leaves no event.
func TestToolsApart(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{
		tools: []string{"stock", "price"}, actorTools: [][]string{{"stock"}, {"price"}, {"stock"}},
		toolSettings: map[string]string{"price": "effect: once"},
	})
	s := c.stage()
	for _, tool := range c.setup.tools {
		c.tools.handle(tool, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, tool+" by "+r.Header.Get(actorHeader))
		})
	}
	both := modelReply{calls: append(asks("b-1", "stock", "{}").calls, asks("b-2", "price", "{}").calls...)}
	var runs []string
	for range 12 {
		runs = append(runs, s.begin(t, script{asks("a-1", "stock", "{}"), asks("a-2", "price", "{}"), both, says("Done.")}, "stock", "price"))
	}
	for _, run := range runs {
		end, view := s.finish(t, run)
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		require.Len(t, view.Memory.History, 4)
		for _, call := range view.Memory.History {
			require.True(t, call.Success, call.Observation)
		}
		// Start; three events for a single call, one more where it is a once tool; three
		// and two results for the batch, one more for its once tool; the answer.
		require.EqualValues(t, 1+3+4+6+1, view.N)
	}
	c.verifyAll()
}
