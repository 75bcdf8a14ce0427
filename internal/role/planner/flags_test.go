package planner_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/role/planner"
)

func TestWarnOpenFiles(t *testing.T) {
	limit, known := cli.OpenFiles()
	if !known {
		t.Skip("the limit is not known on this system") // reason: only Unix has it
	}
	for name, c := range map[string]struct {
		concurrency, connections int
		warned                   bool
	}{
		"usual":        {0, 0, limit < 320},
		"too many":     {int(min(limit, 1<<40)), 0, true},
		"with a bound": {int(min(limit, 1<<40)), 100, false},
	} {
		var b bytes.Buffer
		planner.WarnOpenFiles(c.concurrency, c.connections, slog.New(slog.NewTextHandler(&b, nil)))
		require.Equal(t, c.warned && limit <= 1<<40, b.Len() > 0, "%s: %s", name, b.String())
		if b.Len() > 0 {
			require.Contains(t, b.String(), "--connections")
		}
	}
	var n int
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	planner.AddConnectionsFlag(flags, &n)
	require.Error(t, flags.Set("connections", "-1"))
	require.NoError(t, flags.Set("connections", "0"))
}

func TestPricesOfTheEnvironment(t *testing.T) {
	t.Setenv("MOOREBUS_PRICES", "own.yaml")
	var file string
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	planner.AddPricesFlag(flags, &file)
	require.Equal(t, "own.yaml", file)
	require.NoError(t, flags.Parse([]string{"--prices", "other.yaml"}))
	require.Equal(t, "other.yaml", file)
}
