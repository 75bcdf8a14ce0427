package httpapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestResumeOfARunThatIsNotPaused(t *testing.T) {
	r := simulatedRig(t, nil)
	id := r.start("task")
	for range 5 {
		a := r.fails(409, "not_paused", r.do("POST", "/v1/runs/"+id+"/resume", ""))
		require.Equal(t, "planning", a.text(t, "state"))
	}
	require.Equal(t, []string{"Start"}, r.types(id))
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/pause", "").status)
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/resume", "").status)
	r.fails(409, "not_paused", r.do("POST", "/v1/runs/"+id+"/resume", ""))
	r.happens(id, events.Planning, answered("2"))
	r.fails(409, "run_ended", r.do("POST", "/v1/runs/"+id+"/resume", ""))
}
