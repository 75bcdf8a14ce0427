package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/planner"
)

// A planner that does not have a run's provider leaves the run to one that has it,
// however often that takes.
func TestProvidersOfOtherPlanners(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		const runs = 20
		var replies []any
		for range runs {
			replies = append(replies, say("It is 42, says the special one."))
		}
		o := r.config(scripted.NewMock(replies...))
		o.Instance, o.Providers = "special", map[string]llm.Caller{"special": o.Providers["scripted"]}
		special, err := planner.New(o)
		require.NoError(t, err)
		require.NoError(t, special.Announce(t.Context()))
		r.Go(special.Run)
		for range runs {
			run := r.begin(func(s *events.Start) { s.Agent.LLM.Provider = "special" })
			mem := r.AwaitEnd(run)
			require.Equal(t, events.Done, mem.State)
		}
	})
}

// Where no planner that lives has it, the run ends.
func TestProviderThatNobodyHas(t *testing.T) {
	bubble(t, nil, func(t *testing.T, r *rig) {
		mem := r.AwaitEnd(r.begin(func(s *events.Start) { s.Agent.LLM.Provider = "nobody" }))
		require.Equal(t, events.Errored, mem.State)
		require.Contains(t, mem.Error.Message, `no provider "nobody"`)
	})
}
