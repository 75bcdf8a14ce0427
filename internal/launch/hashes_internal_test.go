package launch

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestHashes(t *testing.T) {
	t.Parallel()
	h, err := newHashes()
	require.NoError(t, err)
	a := events.DefaultAgent()
	a.LLM.Provider = "scripted"
	for i := range hashesKept + 5 {
		a.Name = fmt.Sprint("agent_", i)
		for range 2 {
			require.Equal(t, agentfile.Hash(a), h.of(a))
		}
	}
	require.Equal(t, hashesKept, h.known.Len())
	resolved, err := a.Resolve()
	require.NoError(t, err)
	require.Equal(t, h.of(a), h.of(resolved), "resolved or not")
}
