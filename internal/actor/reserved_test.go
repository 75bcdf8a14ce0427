package actor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestThePoolOfAgentsIsReserved(t *testing.T) {
	j := simulated.New(simulated.Options{})
	registry, err := tool.NewRegistry(pure("x", events.AgentsPool, says("x")))
	require.NoError(t, err)
	_, err = actor.New(actor.Config{Instance: "1", Store: runlog.New(runlog.Options{Log: j}), Queue: j, Feed: j, Directory: j, Tools: registry})
	require.ErrorContains(t, err, `the pool "agents" is reserved`)
}
