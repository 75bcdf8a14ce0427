package agentfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
)

func TestPrices(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"YAML": "gpt-4.1: {input: 2, cached_input: 0.5, output: 8.0}\n\"*\": {input: 1, output: 0}\n",
		"JSON": `{"gpt-4.1": {"input": 2, "cached_input": 5e-1, "output": 8}, "*": {"input": 1, "output": 0}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := agentfile.ParsePrices([]byte(text), agentfile.Auto)
			require.NoError(t, err)
			require.Len(t, p, 2)
			require.Equal(t, 2.0, *p["gpt-4.1"].Input)
			require.Equal(t, 0.5, *p["gpt-4.1"].CachedInput)
			require.Equal(t, 8.0, *p["gpt-4.1"].Output)
			require.Nil(t, p["*"].CachedInput)
			require.Zero(t, *p["*"].Output)
		})
	}
}

func TestWrongPrices(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"a: {input: 1, output: 2}\nm.1: {input: -1, output: 2}": "line 2: m.1: input must not be negative, is -1",
		"m: {input: 1, cached_input: -0.5, output: 2}":          "line 1: m: cached_input must not be negative",
		"m: {input: .nan, output: 2}":                           "line 1: m.input: ",
		"m: {input: .inf, output: 2}":                           "line 1: m.input: ",
		`{"m": {"input": 1e999, "output": 2}}`:                  "line 1: m.input: 1e999 is not a number in range",
		"m: {input: cheap, output: 2}":                          "line 1: m.input: is a string, want a number",
		"m: {input: 1}":                                         "line 1: m: output is missing",
		"m: {output: 1, input: }":                               "line 1: m: input is missing",
		"m: {input: 1, output: 2, currency: EUR}":               "line 1: m.currency: unknown key",
		"m: 5": "line 1: m: is a number, want a mapping",
		"m: {input: 1, output: 1}\nm: {input: 2, output: 2}": "line 2",
		"- m": "is a list, want a mapping from models to prices",
		"5":   "is a number, want a mapping from models to prices",
	} {
		_, err := agentfile.ParsePrices([]byte(text), agentfile.Auto)
		require.ErrorContains(t, err, says, text)
	}
}

func TestPriceFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "prices.yaml")
	_, err := agentfile.ReadPrices(missing)
	require.ErrorContains(t, err, missing)
	require.NoError(t, os.WriteFile(missing, []byte("m: {input: 1}"), 0o600))
	_, err = agentfile.ReadPrices(missing)
	require.ErrorContains(t, err, missing+": line 1: m: output is missing")
}
