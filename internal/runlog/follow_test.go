package runlog_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Follow calls fn with every record, with the reason for those that are no legal event, and
// returns after the one that ended the run.
func TestFollowToTheEnd(t *testing.T) {
	f := newForks(t)
	run := f.started(1)
	f.log.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: "default"}.String(), []byte("?"))
	f.append(run, nil, events.Control, &events.CancelledRun{})
	var legal []bool
	fold := runlog.NewFold(f.log, forkMachine, run)
	require.NoError(t, fold.Follow(t.Context(), run, func(_ journal.Record, _ *events.Event, refused error) error {
		legal = append(legal, refused == nil)
		return nil
	}))
	require.Equal(t, []bool{true, true, false, true}, legal)
	require.Equal(t, events.Cancelled, fold.Memory().State)

	enough := errors.New("enough")
	err := runlog.NewFold(f.log, forkMachine, run).Follow(t.Context(), run, func(journal.Record, *events.Event, error) error { return enough })
	require.ErrorIs(t, err, enough)
}
