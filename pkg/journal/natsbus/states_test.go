package natsbus

import (
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Equal(t, initCommand+" --states reviewing", createCommand(*found))
	require.Equal(t, initCommand, createCommand(durablesOf(journal.Inbox{States: []events.State{events.Planning}})[0]))
}

func TestStatesThatCanHaveNoConsumer(t *testing.T) {
	t.Parallel()
	require.NoError(t, checkStates([]events.State{"reviewing", events.Acting, events.ParallelActing}))
	require.ErrorContains(t, checkStates([]events.State{"Reviewing"}), "is not a token")
	require.ErrorContains(t, checkStates([]events.State{"acting_web"}), "pools' consumers")
	_, err := checkInbox(journal.Inbox{States: []events.State{"acting_web"}})
	require.Error(t, err)
}
