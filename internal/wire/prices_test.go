package wire_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestPricesOfAFileGoFirst(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	require.NoError(t, os.WriteFile(file, []byte("gpt-4o: {input: 7, output: 8}\nlocal: {input: 1, cached_input: 0.5, output: 2}\n"), 0o600))
	table, err := wire.Prices(file)
	require.NoError(t, err)
	for model, want := range map[string]llm.Price{
		"gpt-4o":            {Input: 7, CachedInput: 7, Output: 8},
		"gpt-4o-2024-08-06": {Input: 7, CachedInput: 7, Output: 8},
		"local":             {Input: 1, CachedInput: 0.5, Output: 2},
		"gpt-4o-mini":       {Input: 0.15, CachedInput: 0.075, Output: 0.6}, // as without a file
	} {
		got, ok := table.Price("openai", model)
		require.True(t, ok, model)
		require.Equal(t, want, got, model)
	}
	_, ok := table.Price("openai", "unknown")
	require.False(t, ok)
}

func TestPricesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.yaml")
	_, err := wire.Prices(missing)
	require.ErrorContains(t, err, "--prices: ")
	require.ErrorContains(t, err, missing)
	var exit *cli.ExitError
	require.ErrorAs(t, wire.BadConfig(err), &exit)
	require.Equal(t, 78, exit.Code)
}

func TestPricesOfTheEnvironment(t *testing.T) {
	t.Setenv("MOOREBUS_PRICES", "own.yaml")
	var file string
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	wire.AddPricesFlag(flags, &file)
	require.Equal(t, "own.yaml", file)
	require.NoError(t, flags.Parse([]string{"--prices", "other.yaml"}))
	require.Equal(t, "other.yaml", file)
}
