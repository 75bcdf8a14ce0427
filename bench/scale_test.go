package main

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/stretchr/testify/require"
)

// testBin is the directory of the commands, which TestMain builds.
var testBin string

// TestMain lets this program be the bare loop's process of one state, as the real one
// is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == bareCommand {
		main()
		return
	}
	flag.Parse()
	tmpfsAllowed = true // the tests measure nothing
	if !testing.Short() {
		var err error
		if testBin, err = commandtest.Build("cmd", "./cmd/...", "github.com/nats-io/nats-server/v2"); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// measures skips a short test.
func measures(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: a benchmark takes seconds, however small it is
	}
}

// values are figures by what they are of, which all are once.
func values(t *testing.T, figures []figure) map[string]figure {
	t.Helper()
	found := map[string]figure{}
	for _, f := range figures {
		require.NotEmpty(t, f.Bench)
		require.NotContains(t, found, f.Case+": "+f.What)
		found[f.Case+": "+f.What] = f
	}
	return found
}

func TestScale(t *testing.T) {
	measures(t)
	s := scaleSettings{
		bin: testBin, calls: 40, hold: 200 * time.Millisecond, together: true, shared: 60, slots: 2, window: time.Second,
	}
	t.Run("calls", func(t *testing.T) {
		t.Parallel()
		figures, err := scaleCalls(t.Context(), s)
		require.NoError(t, err)
		found := values(t, figures)
		require.EqualValues(t, 40, found["40 calls, 1 planner: calls in flight at the peak"].Value)
		require.Greater(t, found["40 calls, 1 planner: memory of the planner at its peak"].Value, 1.0)
		require.GreaterOrEqual(t, found["40 calls, 1 planner: time until all runs were done"].Value, 0.2, "the model takes its time")
	})
	t.Run("share", func(t *testing.T) {
		t.Parallel()
		figures, err := scaleShare(t.Context(), s)
		require.NoError(t, err)
		require.Len(t, values(t, figures), 2)
		for _, f := range figures {
			require.Less(t, f.Value, 100.0, "every planner did something: %v", figures)
		}
	})
	t.Run("actors", func(t *testing.T) {
		t.Parallel()
		figures, err := scaleActors(t.Context(), s)
		require.NoError(t, err)
		require.Len(t, values(t, figures), len(actorSteps))
		// A slot makes 10 calls in a second, and a call is 3 events.
		require.LessOrEqual(t, figures[0].Value, 2*10*3*1.5, "the actors' slots are the bound")
		require.Greater(t, figures[2].Ratio, 0.25, "four actors do more than one: %v", figures)
	})
}

func TestParts(t *testing.T) {
	measures(t)
	t.Parallel()
	_, err := scale(t.Context(), scaleSettings{bin: testBin, only: "nothing"})
	require.ErrorContains(t, err, "calls share actors")
	_, err = scaleCalls(t.Context(), scaleSettings{bin: testBin, calls: 1 << 40, hold: 1})
	require.ErrorContains(t, err, "ulimit -n")
}
