package agui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
)

// TestState: the snapshot of a turn, with the deltas that follow, is the memory that the run has.
func TestState(t *testing.T) {
	w := newWorld(t)
	for turn := range 2 { // one answers, one calls the client's tool
		status, run, stream := w.post("chat", said("states", fmt.Sprint("r", turn), "x"))
		require.Equal(t, http.StatusOK, status, stream)
		var state []byte
		deltas := 0
		for line := range strings.SplitSeq(stream, "\n") {
			data, _ := strings.CutPrefix(line, "data: ")
			switch {
			case strings.Contains(data, `"type":"STATE_SNAPSHOT"`):
				var e struct{ Snapshot json.RawMessage }
				require.NoError(t, json.Unmarshal([]byte(data), &e))
				state = e.Snapshot
			case strings.Contains(data, `"type":"STATE_DELTA"`):
				var e struct{ Delta jsonpatch.Patch }
				require.NoError(t, json.Unmarshal([]byte(data), &e))
				var err error
				state, err = e.Delta.Apply(state)
				require.NoError(t, err, data)
				deltas++
			}
		}
		require.Positive(t, deltas)
		var shown struct{ N int }
		require.NoError(t, json.Unmarshal(state, &shown))
		var want struct{ Memory map[string]any }
		require.NoError(t, json.Unmarshal([]byte(w.run(fmt.Sprintf("%s?at=%d", run, shown.N))), &want))
		for _, hidden := range []string{"system_prompt", "tools", "config", "blacklist", "control"} {
			require.Contains(t, want.Memory, hidden)
			delete(want.Memory, hidden)
		}
		memory, err := json.Marshal(want.Memory)
		require.NoError(t, err)
		require.JSONEq(t, string(memory), string(state))
	}
}
