package permissions

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The states of a graph of one's own have a user, who may publish out of them and
// out of nothing else.
func TestStatesOfOnesOwn(t *testing.T) {
	spec := reducer.DefaultSpec()
	spec.Rows = append(spec.Rows,
		reducer.Row{From: events.Planning, Event: "ReviewNeeded", To: "reviewing"},
		reducer.Row{From: "reviewing", Event: "Reviewed", To: events.Done})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	users, err := Users(Layout{Table: table})
	require.NoError(t, err)
	last := users[len(users)-1]
	require.Equal(t, Custom, last.Name)
	require.Contains(t, last.Publish, "moore.*.*.reviewing.done.default.*")
	for _, subject := range last.Publish {
		require.NotContains(t, subject, ".planning.acting.")
		require.NotContains(t, subject, ".control.")
	}
	planner := users[0]
	require.Contains(t, planner.Publish, "moore.*.*.planning.reviewing.default.*")
	plain, err := Users(Layout{})
	require.NoError(t, err)
	require.Len(t, plain, len(users)-1)
}

// An end of one's own graph is heard of by the actor of agents, and looked at by the
// gateway, as every end is.
func TestEndsOfOnesOwn(t *testing.T) {
	spec := reducer.DefaultSpec()
	spec.Terminal = append(spec.Terminal, "refused")
	spec.Rows = append(spec.Rows, reducer.Row{From: events.Planning, Event: "Refused", To: "refused"})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	users, err := Users(Layout{Table: table, Pools: []string{events.AgentsPool}})
	require.NoError(t, err)
	publishes := map[string][]string{}
	for _, u := range users {
		publishes[u.Name] = u.Publish
	}
	require.NotContains(t, publishes, Custom, "nobody works there")
	require.Contains(t, publishes[ActorPrefix+events.AgentsPool], "$JS.API.CONSUMER.MSG.NEXT.MOORE_0.refused_agents")
	require.Contains(t, publishes[Gateway], "$JS.API.CONSUMER.INFO.MOORE_0.refused_agents")
	require.Contains(t, publishes[Planner], "moore.*.*.planning.refused.agents.*")
}
