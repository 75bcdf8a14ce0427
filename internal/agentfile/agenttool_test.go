package agentfile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
)

func TestAgentsAsTools(t *testing.T) {
	f, err := agentfile.ParseTools([]byte("tools:\n- {agent: helper, timeout: 5m}\n- {handoff: heir}\n- {builtin: calculator}\n"), agentfile.Auto)
	require.NoError(t, err)
	require.Equal(t, "helper", f.Tools[0].Name)
	require.Equal(t, "transfer_to_heir", f.Tools[1].Name)
	require.True(t, f.Tools[0].OfAgent() && f.Tools[1].OfAgent() && !f.Tools[2].OfAgent())
	for entry, want := range map[string]string{
		"{agent: a, handoff: b}":              "exactly one of http, exec, builtin, agent and handoff",
		"{agent: No Name}":                    `.agent: "No Name" is not an agent's name`,
		"{agent: a, pool: web}":               `.pool: agents are called in the pool "agents" alone`,
		"{agent: a, retries: 2}":              ".retries: does not belong to this kind of tool",
		"{agent: a, timeout: 0s}":             "line 2: tools[0].timeout: is 0, which no call could meet; leave it out",
		"{agent: a, timeout: 0m}":             "leave it out",
		"{handoff: a, timeout: 5s}":           ".timeout: does not belong to this kind of tool",
		"{builtin: calculator, pool: agents}": `.pool: "agents" is reserved`,
	} {
		_, err := agentfile.ParseTools([]byte("tools:\n- "+entry+"\n"), agentfile.Auto)
		require.ErrorContains(t, err, want, entry)
	}
}
