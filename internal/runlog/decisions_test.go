package runlog_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
)

// Each decision about a run is one line, and work as usual is none.
func TestDecisionsAreLogged(t *testing.T) {
	bench, out := workertest.New(t, simtest.Options{}, nil), &strings.Builder{}
	bench.Store = runlog.New(runlog.Options{Log: bench.Journal, Machine: bench.Machine, Logger: slog.New(slog.NewJSONHandler(out, nil))})
	said := func(id events.Run) (all []string) {
		for line := range strings.Lines(out.String()) {
			var l struct{ Level, Msg, Run, Namespace, By, Code string }
			require.NoError(t, json.Unmarshal([]byte(line), &l))
			if l.Run == id.ID {
				require.Equal(t, events.DefaultNamespace, l.Namespace)
				all = append(all, strings.TrimSpace(l.Level+" "+l.Msg+" "+l.By+l.Code))
			}
		}
		return all
	}
	id, by := bench.Start(start()), events.By{By: "kay", Reason: "lunch"}
	bench.Append(id, events.Control, message("1"), &events.Paused{By: by}, &events.Resumed{By: by}, &events.CancelledRun{By: by})
	require.Equal(t, []string{
		"INFO a run started", "INFO a run was paused kay", "INFO a run was resumed kay", "INFO a run was cancelled kay",
	}, said(id))
	stood := bench.Start(start())
	bench.Append(stood, events.Control, &events.Resumed{Redrive: true}, &events.FatalError{Outcome: events.Outcome{Code: codes.Stalled}})
	require.Equal(t, []string{
		"INFO a run started", "WARN a stalled run's work is delivered again", "ERROR a run ended " + codes.Stalled,
	}, said(stood))
}
