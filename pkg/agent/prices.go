package agent

import "github.com/moorebus/moorebus/pkg/llm"

// Prices says what the models cost, for a budget in money. Default: the prices
// of prices.Builtin.
func (b *Builder) Prices(p llm.Prices) *Builder { b.prices = p; return b }
