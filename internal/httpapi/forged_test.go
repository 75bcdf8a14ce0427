package httpapi_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// Streams do not take a forged end for one.
func TestForgedEndInStreams(t *testing.T) {
	r := simulatedRig(t, nil)
	id := r.start("task")
	live, cancelled := r.stream("/v1/runs/"+id+"/events"), r.stream("/v1/events?state=cancelled")
	require.Equal(t, "1", live.next().id)
	controltest.Forge(t, r.Bus, r.At(id), events.Control, &events.CancelledRun{}, events.Acting, events.Nobody)
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
