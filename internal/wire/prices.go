package wire

import (
	"fmt"
	"os"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/spf13/pflag"
)

// AddPricesFlag adds --prices, for processes with a planner.
func AddPricesFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "prices", os.Getenv("MOOREBUS_PRICES"),
		"`file` of models' prices (YAML or JSON), for budgets in money; overrides the built-in prices (MOOREBUS_PRICES)")
}

// Prices returns the built-in prices, overridden by those of the file, which may be
// empty.
func Prices(file string) (llm.Prices, error) {
	builtin := prices.Builtin()
	if file == "" {
		return builtin, nil
	}
	read, err := agentfile.ReadPrices(file)
	if err != nil {
		return nil, fmt.Errorf("--prices: %w", err)
	}
	entries := make(map[string]llm.Price, len(read))
	for name, e := range read {
		price := llm.Price{Input: *e.Input, CachedInput: *e.Input, Output: *e.Output}
		if e.CachedInput != nil {
			price.CachedInput = *e.CachedInput
		}
		entries[name] = price
	}
	own, err := prices.New(entries)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", file, err)
	}
	return builtin.With(own), nil
}
