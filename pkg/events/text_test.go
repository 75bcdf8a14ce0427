package events_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestTextAgents(t *testing.T) {
	plain, err := agent(func(*events.Agent) {}).Resolve()
	require.NoError(t, err)
	require.Nil(t, plain.Config.MaxInvalidReplies, "only who speaks the text protocol has the bound")

	a, err := agent(func(a *events.Agent) { a.LLM.Text = true }).Resolve()
	require.NoError(t, err)
	require.Equal(t, 5, a.Config.InvalidReplies())
	require.Equal(t, []int{1000, 0}, []int{a.Config.MaxIterations, plain.Config.MaxIterations}, "iterations are the text protocol's")
	require.NotNil(t, a.Config.MaxInvalidReplies, "what a run is started with does not follow a later default")

	zero := 0
	a, err = agent(func(a *events.Agent) { a.LLM.Text, a.Config.MaxInvalidReplies = true, &zero }).Resolve()
	require.NoError(t, err)
	require.Zero(t, a.Config.InvalidReplies(), "0 is off")

	a, err = agent(func(a *events.Agent) {
		a.LLM.Text, a.LLM.StatePrompts = true, map[string]string{"base": "b", "thinking": "t", "executing": "e"}
	}).Resolve()
	require.NoError(t, err)
	require.Len(t, a.LLM.StatePrompts, 3)
}

func TestTextAgentChecks(t *testing.T) {
	negative := -1
	for reason, change := range map[string]func(*events.Agent){
		`llm.state_prompts: "paging" is not a state; use base, thinking or executing`: func(a *events.Agent) {
			a.LLM.Text, a.LLM.StatePrompts = true, map[string]string{"paging": "?"}
		},
		"llm.state_prompts: is for the text protocol; write text: true as well": func(a *events.Agent) {
			a.LLM.StatePrompts = map[string]string{"base": "b"}
		},
		"config.max_invalid_replies: must not be negative, is -1": func(a *events.Agent) {
			a.LLM.Text, a.Config.MaxInvalidReplies = true, &negative
		},
	} {
		_, err := agent(change).Resolve()
		require.EqualError(t, err, reason)
	}
}
