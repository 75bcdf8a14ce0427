package events_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestBudgetErrorsNameTheKey(t *testing.T) {
	t.Parallel()
	for says, b := range map[string]events.Budget{
		"max_input_tokens: must be a whole number above 0, is -1":  {MaxInputTokens: -1},
		"max_output_tokens: must be a whole number above 0, is -2": {MaxOutputTokens: -2},
		"max_total_tokens: must be a whole number above 0, is -3":  {MaxTotalTokens: -3},
		"max_cost_usd: must be a number of US dollars above 0, is -0.5": {
			MaxCostUSD: -0.5,
		},
		"max_cost_usd: must be a number of US dollars above 0, is NaN":  {MaxCostUSD: math.NaN()},
		"max_cost_usd: must be a number of US dollars above 0, is +Inf": {MaxCostUSD: math.Inf(1)},
		"max_wall_time: must be a time above 0 such as 10m, is -1m0s":   {MaxWallTime: -events.Duration(time.Minute)},
	} {
		require.ErrorContains(t, b.Check(), says)
		a := events.DefaultAgent()
		a.Name, a.LLM.Provider, a.Budget = "a", "openai", &b
		_, err := a.Resolve()
		require.ErrorContains(t, err, "budget."+says)
	}
	require.NoError(t, (&events.Budget{MaxCostUSD: 1}).Check())
}

func TestNullOutputSchemaIsNone(t *testing.T) {
	t.Parallel()
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.OutputSchema = "a", "openai", json.RawMessage("null")
	resolved, err := a.Resolve()
	require.NoError(t, err)
	require.Empty(t, resolved.OutputSchema)
}
