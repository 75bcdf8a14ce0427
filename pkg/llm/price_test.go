package llm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

func TestCost(t *testing.T) {
	t.Parallel()
	price := llm.Price{Input: 2, CachedInput: 0.5, Output: 8}
	for name, c := range map[string]struct {
		usage llm.Usage
		want  float64
	}{
		"nothing":                 {llm.Usage{}, 0},
		"input and output":        {llm.Usage{Input: 1_000_000, Output: 500_000}, 6},
		"a part from the cache":   {llm.Usage{Input: 1_000_000, Cached: 400_000}, 1.4},
		"more cached than read":   {llm.Usage{Input: 1_000_000, Cached: 2_000_000}, 0.5},
		"a negative part of that": {llm.Usage{Input: 1_000_000, Cached: -5}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.InDelta(t, c.want, price.Cost(c.usage), 1e-12)
		})
	}
}
