package toolcall

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

// first is a run's first record as somebody stored it.
func first(t *testing.T, p events.Payload, further map[string]any) (run events.Run, body []byte) {
	t.Helper()
	r := reducertest.NewRun(nil)
	_, e, body, err := r.Draft(events.Idle, reducertest.StartOf("x", events.ModeTask))
	require.NoError(t, err)
	run = events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	var envelope map[string]any
	require.NoError(t, json.Unmarshal(body, &envelope))
	data, err := json.Marshal(p)
	require.NoError(t, err)
	var object map[string]any
	require.NoError(t, json.Unmarshal(data, &object))
	for key, value := range further {
		object[key] = value
	}
	envelope["type"], envelope["subject"], envelope["data"] = events.TypeOf(p), run.ID, object
	envelope["dataschema"] = fmt.Sprintf("moorebus/%s/1", events.TypeOf(p))
	require.NotEmpty(t, e.ID)
	body, err = json.Marshal(envelope)
	require.NoError(t, err)
	return run, body
}

func TestWhatARunPins(t *testing.T) {
	log := simtest.New(simtest.Options{})
	g, err := NewGuard(runlog.New(runlog.Options{Log: log}), nil, nil)
	require.NoError(t, err)
	store := func(p events.Payload, further map[string]any) events.Run {
		run, body := first(t, p, further)
		log.Inject(run.Shard, events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: events.DefaultPool}.String(), body)
		return run
	}
	start := reducertest.StartOf("x", events.ModeTask)
	start.Agent.Approval = &events.Approval{Policy: events.ApproveAbove, Risk: "medium"}
	parent := store(start, nil)
	fork := &events.Forked{Run: parent.ID, At: 1, Hash: "h"}
	bare := store(fork, nil)
	agent := start.Agent
	agent.Approval = &events.Approval{Policy: events.ApproveNever}
	freed := store(fork, map[string]any{"agent": agent})
	retooled := store(fork, map[string]any{"agent": agent, "tools": []events.ToolSpec{{Name: "beta", Risk: "low"}}})
	grandchild := store(&events.Forked{Run: bare.ID, At: 1, Hash: "h"}, nil)
	orphan := store(&events.Forked{Run: runlog.NewID(), At: 1, Hash: "h"}, nil)
	adopted := store(&events.Forked{Run: runlog.NewID(), At: 1, Hash: "h"}, map[string]any{"agent": agent})
	odd := store(&events.Continue{}, nil)
	missing := events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)

	for name, c := range map[string]struct {
		run  events.Run
		want events.ApprovalPolicy
		risk string
	}{
		"a start":                      {parent, events.ApproveAbove, "high"},
		"a fork":                       {bare, events.ApproveAbove, "high"},
		"a fork with an agent":         {freed, events.ApproveNever, ""},
		"a fork with agent and tools":  {retooled, events.ApproveNever, "low"},
		"a fork of a fork":             {grandchild, events.ApproveAbove, "high"},
		"a fork of a run that is gone": {orphan, events.ApproveAlways, ""},
		"with an agent of its own":     {adopted, events.ApproveNever, ""},
		"neither start nor fork":       {odd, events.ApproveAlways, ""},
		"no record at all":             {missing, events.ApproveAlways, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := g.pinned(t.Context(), c.run)
			require.NoError(t, err)
			require.Equal(t, c.want, p.approval.Policy)
			require.Equal(t, c.risk, p.tools["beta"].Risk)
		})
	}
}
