package natsbus

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// A state of an application's own has a consumer like any other: one for the state,
// whose command names it where it is missing.
func TestConsumersOfStatesOfOnesOwn(t *testing.T) {
	t.Parallel()
	o := InitOptions{States: []events.State{"reviewing"}}
	var found *durable
	for _, d := range o.durables() {
		if d.name == "reviewing" {
			found = &d
		}
	}
	require.NotNil(t, found)
	require.Equal(t, []string{"moore.0.*.*.reviewing.*.*"}, found.filters(0))
	require.Equal(t, *found, durablesOf(journal.Inbox{States: []events.State{"reviewing"}, Pool: events.DefaultPool})[0])
	require.Equal(t, api.InitCommand+" --states reviewing", createCommand(*found))
	require.Equal(t, api.InitCommand, createCommand(durablesOf(journal.Inbox{States: []events.State{events.Planning}})[0]))
}

// Runs that answer calls may end in a state of their own graph: the pool of agents hears
// of that end as of every other one.
func TestConsumersOfEndsOfOnesOwn(t *testing.T) {
	t.Parallel()
	ends := journal.Inbox{States: append(slices.Clone(endStates), "refused"), Pool: events.AgentsPool}
	o := InitOptions{States: []events.State{"refused"}, Pools: []string{"web", events.AgentsPool}}
	require.Subset(t, o.durables(), durablesOf(ends))
	for _, d := range o.durables() {
		require.NotEqual(t, "refused_web", d.name)
	}
	own := durablesOf(ends)[len(endStates)]
	require.Equal(t, "refused_agents", own.name)
	require.Equal(t, []string{"moore.0.*.*.refused.agents.*"}, own.filters(0))
	require.Equal(t, api.InitCommand+" --pools agents --states refused", createCommand(own))
	require.Equal(t, api.InitCommand+" --pools agents", createCommand(durablesOf(ends)[0]))
	require.Equal(t, api.InitCommand+" --pools web", createCommand(actingDurable("web")))
}

func TestStatesThatCanHaveNoConsumer(t *testing.T) {
	t.Parallel()
	require.NoError(t, checkStates([]events.State{"reviewing", events.Acting, events.ParallelActing}))
	require.ErrorContains(t, checkStates([]events.State{"Reviewing"}), "is not a token")
	require.ErrorContains(t, checkStates([]events.State{"acting_web"}), "pools' consumers")
	_, err := checkInbox(journal.Inbox{States: []events.State{"acting_web"}})
	require.Error(t, err)
}
