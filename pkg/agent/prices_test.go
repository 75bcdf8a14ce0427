package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// paid is a caller that is not in this process: what it says costs money.
func paid(context.Context, llm.Request, func(llm.Chunk)) (llm.Response, error) {
	return llm.Text{Content: "It is 42.", Meta: llm.Meta{Model: "house-1", Confidence: 1, Usage: llm.Usage{Input: 1000, Output: 500, Total: 1500}}}, nil
}

func TestBudgetInMoney(t *testing.T) {
	t.Parallel()
	table, err := prices.New(map[string]llm.Price{"house-1": {Input: 2, CachedInput: 1, Output: 10}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		prices llm.Prices
		budget float64
		code   string
	}{
		"enough":     {table, 0.01, ""},
		"too little": {table, 1e-9, "budget_cost"},
		"no price":   {nil, 0.01, "no_price"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := agent.New("What is it?").LLM(llm.CallerFunc(paid)).Model("house-1").Budget(events.Budget{MaxCostUSD: c.budget})
			if c.prices != nil {
				b.Prices(c.prices)
			}
			a, err := b.Build()
			require.NoError(t, err)
			_, err = a.Run(t.Context())
			if c.code == "" {
				require.NoError(t, err)
				require.InDelta(t, 0.007, a.Memory().TotalUsage.Cost, 1e-12)
				require.Equal(t, 1500, a.Memory().TotalUsage.Total)
				return
			}
			var failed *agent.Failed
			require.ErrorAs(t, err, &failed)
			require.Equal(t, c.code, failed.Code)
			require.Zero(t, a.Memory().TotalUsage.Cost)
		})
	}
}
