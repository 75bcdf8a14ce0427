package prices_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/pkg/llm"
)

func table(t *testing.T, entries map[string]llm.Price) *prices.Table {
	t.Helper()
	made, err := prices.New(entries)
	require.NoError(t, err)
	return made
}

func price(n float64) llm.Price { return llm.Price{Input: n, CachedInput: n, Output: n} }

func TestWhichEntryHolds(t *testing.T) {
	t.Parallel()
	all := map[string]llm.Price{
		"groq/m-2024-08-06": price(1), "m-2024-08-06": price(2), "groq/m": price(3), "m": price(4), "groq/*": price(5), "*": price(6),
		"org/model": price(7),
	}
	prices := table(t, all)
	for name, c := range map[string]struct {
		provider, model string
		want            float64
	}{
		"a provider's release":             {"groq", "m-2024-08-06", 1},
		"a release":                        {"openai", "m-2024-08-06", 2},
		"a provider's model":               {"groq", "m-2025-01-01", 3},
		"a date without dashes":            {"groq", "m-20250101", 3},
		"a model":                          {"openai", "m-2025-01-01", 4},
		"the name itself":                  {"openai", "m", 4},
		"a provider's own goes before all": {"groq", "m", 3},
		"a provider's fallback":            {"groq", "other", 5},
		"the fallback":                     {"openai", "other", 6},
		"a name with a slash":              {"openai", "org/model", 7},
		"no name at all":                   {"openai", "", 6},
		"an addition that is no date":      {"openai", "m-audio", 6},
		"a number that is no date":         {"openai", "m-1106", 6},
		"a date in the middle":             {"openai", "m-2025-01-01-preview", 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := prices.Price(c.provider, c.model)
			require.True(t, ok)
			require.Equal(t, c.want, got.Input)
		})
	}
}

func TestUnknownModel(t *testing.T) {
	t.Parallel()
	_, ok := table(t, map[string]llm.Price{"m": price(1), "groq/*": price(2)}).Price("openai", "x")
	require.False(t, ok)
}

func TestTableIsACopy(t *testing.T) {
	t.Parallel()
	entries := map[string]llm.Price{"m": price(1)}
	made := table(t, entries)
	entries["m"] = price(9)
	over := made.With(table(t, map[string]llm.Price{"m": price(2), "n": price(3)}))
	for model, want := range map[string]float64{"m": 2, "n": 3} {
		got, ok := over.Price("p", model)
		require.True(t, ok)
		require.Equal(t, want, got.Output)
	}
	got, _ := made.Price("p", "m")
	require.Equal(t, 1.0, got.Output)
	_, ok := made.Price("p", "n")
	require.False(t, ok)
}

func TestWrongPrices(t *testing.T) {
	t.Parallel()
	_, err := prices.New(map[string]llm.Price{
		"a": {Input: -1}, "b": {CachedInput: math.NaN()}, "c": {Output: math.Inf(1)}, "": {}, "fine": price(0),
	})
	for _, says := range []string{"a: input: must be a number from 0 to 1000000, is -1", "b: cached_input: ", "c: output: ", "without a model's name"} {
		require.ErrorContains(t, err, says)
	}
	require.NotContains(t, err.Error(), "fine")
}

func TestPricesThatCannotBe(t *testing.T) {
	t.Parallel()
	_, err := prices.New(map[string]llm.Price{
		"m": {Input: 1e308}, "n": {Output: prices.Most * 2}, "*/*/*": {}, " ": {}, "*/m": {}, "gpt-*": {}, "/*": {}, "m ": {}, "a/b/*": {},
		"*": {}, "groq/*": {}, "org/model": {Input: prices.Most},
	})
	for _, says := range []string{
		"m: input: must be a number from 0 to 1000000, is 1e+308", "n: output: ", `"*/*/*": no model`, `" ": no model`, `"*/m": no model`,
		`"gpt-*": no model`, `"/*": no model`, `"m ": no model`, `"a/b/*": no model`,
	} {
		require.ErrorContains(t, err, says)
	}
	for _, fine := range []string{`"*":`, "groq", "org/model"} {
		require.NotContains(t, err.Error(), fine)
	}
}

// What the highest price comes to can be written, for any number of tokens.
func TestHighestPriceIsFinite(t *testing.T) {
	t.Parallel()
	most := price(prices.Most).Cost(llm.Usage{Input: math.MaxInt, Output: math.MaxInt})
	require.False(t, math.IsInf(most*1e12, 1))
}

func TestBuiltin(t *testing.T) {
	t.Parallel()
	builtin := prices.Builtin()
	for model, want := range map[string]llm.Price{
		"gpt-4o":                     {Input: 2.5, CachedInput: 1.25, Output: 10},
		"gpt-4o-2024-08-06":          {Input: 2.5, CachedInput: 1.25, Output: 10},
		"gpt-4o-2024-05-13":          {Input: 5, CachedInput: 5, Output: 15},
		"gpt-4o-mini-2024-07-18":     {Input: 0.15, CachedInput: 0.075, Output: 0.6},
		"claude-sonnet-4-5-20250929": {Input: 3, CachedInput: 0.3, Output: 15},
	} {
		got, ok := builtin.Price("any", model)
		require.True(t, ok, model)
		require.Equal(t, want, got, model)
	}
	_, ok := builtin.Price("openai", "gpt-4o-audio-preview")
	require.False(t, ok)
}
