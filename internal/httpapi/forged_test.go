package httpapi_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// forge stores the body of a legal next event of the run on a subject of somebody
// else's.
func forge(t *testing.T, log journal.Log, run events.Run, origin events.State, p events.Payload, from, to events.State) {
	t.Helper()
	machine := reducer.NewMachine(reducer.MachineOptions{})
	fold, seq := runlog.NewFold(log, machine, run), uint64(0)
	for rec, err := range log.Read(t.Context(), run, 0) {
		require.NoError(t, err)
		_, err = fold.Apply(t.Context(), rec)
		require.NoError(t, err)
		seq = rec.Seq
	}
	_, e, err := machine.Draft(fold.Memory(), run, origin, p, reducer.Stamp{ID: runlog.NewID(), Source: "moorebus/test/1", Time: time.Now()})
	require.NoError(t, err)
	body, err := machine.Codec().Encode(e)
	require.NoError(t, err)
	subject := events.Subject{Run: run, From: from, To: to, Pool: events.DefaultPool}
	_, err = log.Append(t.Context(), run, seq, journal.Entry{Subject: subject, Body: body})
	require.NoError(t, err)
}

// Streams do not take a forged end for one.
func TestForgedEndInStreams(t *testing.T) {
	r := simulatedRig(t, nil)
	id := r.start("task")
	live, cancelled := r.stream("/v1/runs/"+id+"/events"), r.stream("/v1/events?state=cancelled")
	require.Equal(t, "1", live.next().id)
	forge(t, r.bus, r.others.Place("default", id), events.Control, &events.CancelledRun{}, events.Acting, events.Nobody)
	require.Equal(t, "2", live.next().id)
	second := r.start("task")
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+second+"/cancel", "").status)
	require.Contains(t, cancelled.next().data, second)
	_, err := r.control.Pause(context.Background(), "default", id, events.By{})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refusal.CodeRunEnded, refused.Code, "it is poisoned, and is ended by whoever meets it")
	end := live.next()
	require.Equal(t, "3", end.id)
	require.Equal(t, "FatalError", end.event)
	live.ends()
	again := r.stream("/v1/runs/" + id + "/events")
	for _, want := range []string{"1", "2", "3"} {
		require.Equal(t, want, again.next().id)
	}
}
