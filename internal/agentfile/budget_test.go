package agentfile_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
)

func TestBudgetOfZero(t *testing.T) {
	t.Parallel()
	for limits, says := range map[string]string{
		"{max_total_tokens: 0}":                   "line 3: budget.max_total_tokens: is 0, which would allow nothing; leave it out for no limit",
		"{max_input_tokens: 0}":                   "budget.max_input_tokens: is 0",
		"{max_output_tokens: -0}":                 "budget.max_output_tokens: is 0",
		"{max_cost_usd: 0.0}":                     "budget.max_cost_usd: is 0",
		"{max_wall_time: 0s}":                     "budget.max_wall_time: is 0",
		"{max_wall_time: 0h0m}":                   "budget.max_wall_time: is 0",
		"{max_cost_usd: 2, max_wall_time: \"0\"}": "budget.max_wall_time: is 0",
	} {
		text := "name: a\nllm: {provider: openai}\nbudget: " + limits
		_, err := agentfile.ParseAgent([]byte(text), agentfile.YAML, agentfile.Options{})
		require.ErrorContains(t, err, says, limits)
	}
	for _, limits := range []string{"", "{}", "{max_total_tokens: }", "{max_cost_usd: 0.001}", "{max_wall_time: 1ns}"} {
		_, err := agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}\nbudget: "+limits), agentfile.YAML, agentfile.Options{})
		require.NoError(t, err, limits)
	}
}

func TestSchemaThatIsNone(t *testing.T) {
	t.Parallel()
	options := agentfile.Options{CheckSchema: func(schema json.RawMessage) error {
		if string(schema) == `{"type":"wrong"}` {
			return errors.New("no such type")
		}
		return nil
	}}
	_, err := agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}\noutput_schema: {type: wrong}"), agentfile.YAML, options)
	require.EqualError(t, err, "line 3: output_schema: no such type")
	_, err = agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}\noutput_schema: {type: object}"), agentfile.YAML, options)
	require.NoError(t, err)
	_, err = agentfile.ParseAgent([]byte("name: a\nllm: {provider: openai}"), agentfile.YAML, options)
	require.NoError(t, err)
}
