package permissions

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// waitingForHuman returns a run whose one call waits for a decision.
func waitingForHuman(t *testing.T) *reducertest.Run {
	t.Helper()
	run := reducertest.NewRun(nil)
	run.ID = events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	run.Mem = run.Machine.Initial(run.ID.ID)
	_, _, err := run.Append(events.Idle, reducertest.StartOf("x", events.ModeTask))
	require.NoError(t, err)
	call := events.Call{ID: "a", Name: "alpha", Arguments: "{}"}
	_, _, err = run.Append(events.Planning, &events.HumanApprovalRequired{
		ToolCallReply: events.ToolCallReply{Calls: []events.Call{call}},
		Requests:      []events.Request{{CallID: "a", Tool: "alpha", Arguments: "{}"}},
	})
	require.NoError(t, err)
	return run
}

// forge stores the run, and then as the actor the body of a legal next event on an edge of the
// actor. On its own subject the same body would be legal, and the bus refuses it there.
func forge(t *testing.T, r *rig, run *reducertest.Run, to events.State, origin events.State, p events.Payload) {
	t.Helper()
	var last uint64
	for _, rec := range run.Records {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		last, err = r.log.Append(t.Context(), run.ID, last, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
	}
	honest, _, body, err := run.Draft(origin, p)
	require.NoError(t, err)
	require.NoError(t, run.Clone().Store(honest.String(), body))
	actor := r.open(t, "actor_web")
	_, err = actor.Append(t.Context(), run.ID, last, journal.Entry{Subject: honest, Body: body})
	require.ErrorIs(t, err, journal.ErrDenied)
	forged := honest
	forged.From, forged.To, forged.Pool = events.Acting, to, events.DefaultPool
	_, err = actor.Append(t.Context(), run.ID, last, journal.Entry{Subject: forged, Body: body})
	require.NoError(t, err, "the bus looks at the subject alone")
}

var humanApproval = &events.HumanApproved{Decision: events.Decision{CallID: "a", Decision: events.DecisionApproved, By: "mallory"}}

// TestBodyBelongsToItsSubject: an approval that an actor publishes on its own edge is not an
// approval to any reader.
func TestBodyBelongsToItsSubject(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, forgery := range map[string]struct {
		origin  events.State
		payload events.Payload
	}{
		"an approval":     {events.WaitingForHuman, humanApproval},
		"a cancellation":  {events.Control, &events.CancelledRun{}},
		"a raised budget": {events.Control, &events.BudgetRaised{}},
	} {
		run := waitingForHuman(t)
		forge(t, r, run, events.Nobody, forgery.origin, forgery.payload)

		store := runlog.New(runlog.Options{Log: r.open(t, Planner)})
		held := store.Acquire(run.ID)
		held.Lock()
		require.NoError(t, held.Refresh(t.Context()), name)
		require.NotNil(t, held.Memory().Control.Poison, name)
		require.Equal(t, events.WaitingForHuman, held.Memory().State, name)
		held.Unlock()
		store.Release(held)

		report, err := verify.Log(t.Context(), r.open(t, Tap), store.Machine(), verify.Options{Runs: []events.Run{run.ID}})
		require.NoError(t, err, name)
		require.Equal(t, 1, report.Outcomes[verify.Poisoned], name)

		requireGatewayEnds(t, r, run.ID)
	}
}

// requireGatewayEnds lets the gateway read the run and expects it to end the run.
func requireGatewayEnds(t *testing.T, r *rig, run events.Run) {
	t.Helper()
	bus := r.open(t, Gateway)
	g, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus, Instance: "g"}, Timers: bus, KV: bus,
	})
	require.NoError(t, err)
	_, err = g.Pause(t.Context(), run.Namespace, run.ID, events.By{})
	require.Error(t, err, "the run has ended instead")
	requirePoison(t, r, run, events.Control)
}

func requirePoison(t *testing.T, r *rig, run events.Run, from events.State) {
	t.Helper()
	recs, err := journaltest.Collect(r.log.Read(t.Context(), run, 0))
	require.NoError(t, err)
	last := recs[len(recs)-1]
	s, err := events.ParseSubject(last.Subject)
	require.NoError(t, err)
	require.Equal(t, from, s.From)
	require.Equal(t, events.Errored, s.To)
	require.Contains(t, string(last.Body), codes.Poison)
}

// TestForgeryEndsItsRun: the worker that a forged event wakes ends the run out of its own
// state, as its permissions allow.
func TestForgeryEndsItsRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := waitingForHuman(t)
	bus := r.open(t, Observer)
	o, err := observer.New(observer.Config{Base: worker.Base{Instance: "o", Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	forge(t, r, run, events.Observing, events.WaitingForHuman, humanApproval)
	require.Eventually(t, func() bool {
		head, err := r.log.Head(t.Context(), run.ID)
		return err == nil && head.Seq > uint64(len(run.Records))+1
	}, patience, time.Millisecond)
	requirePoison(t, r, run.ID, events.Observing)
	stop()
	require.NoError(t, <-ended)
}

// TestForgeryInAnArchive: a forged event stays in an export. The run is reported as poisoned
// before the import and after it.
func TestForgeryInAnArchive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := waitingForHuman(t)
	forge(t, r, run, events.Nobody, events.WaitingForHuman, humanApproval)
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	tap := r.open(t, Tap)
	require.NoError(t, filelog.WriteFile(path, func(w *filelog.Writer) error {
		_, err := transfer.Export(t.Context(), tap, w, transfer.ExportOptions{All: true, Blobs: tap})
		return err
	}))
	file, err := filelog.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	there := simtest.New(simtest.Options{})
	_, err = transfer.Import(t.Context(), file, there, transfer.ImportOptions{Source: "moorebus/gateway/test"})
	require.NoError(t, err)
	machine := reducer.NewMachine(reducer.MachineOptions{})
	for _, log := range []journal.Log{file, there} {
		report, err := verify.Log(t.Context(), log, machine, verify.Options{All: true})
		require.NoError(t, err)
		require.Equal(t, 1, report.Outcomes[verify.Poisoned])
	}
}

// TestUnapprovedCall: a planner that was taken over can neither approve a call nor bypass the
// approval: the actor looks for the approval in the log.
func TestUnapprovedCall(t *testing.T) {
	t.Parallel()
	in := newInstallation(t, layout, 1)
	planner := in.open(t, Planner)
	start := reducertest.StartOf("Pay.", events.ModeTask)
	start.Agent.Approval = &events.Approval{Policy: events.ApproveTools, Tools: []string{"pay"}}
	start.Tools = []events.ToolSpec{{Name: "pay", Schema: json.RawMessage(`{"type":"object"}`), Effect: "once", Pool: "web", Risk: "high"}}
	run := reducertest.NewRun(nil)
	run.ID = events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	run.Mem = run.Machine.Initial(run.ID.ID)
	last := uint64(0)
	publish := func(bus journal.Log, origin events.State, p events.Payload) {
		t.Helper()
		subject, _, err := run.Append(origin, p)
		require.NoError(t, err)
		if origin == events.Idle {
			subject.To = events.Nobody // the honest planner is left out
		}
		last, err = bus.Append(t.Context(), run.ID, last, journal.Entry{Subject: subject, Body: run.Records[len(run.Records)-1].Body})
		require.NoError(t, err)
	}
	publish(in.log, events.Idle, start)
	approved := events.Subject{Run: run.ID, From: events.WaitingForHuman, To: events.Acting, Pool: "web"}
	_, err := planner.Append(t.Context(), run.ID, last, journal.Entry{Subject: approved, Body: []byte("{}")})
	require.ErrorIs(t, err, journal.ErrDenied)
	publish(planner, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
		Calls: []events.Call{{ID: "pay", Name: "pay", Arguments: "{}"}}, Confidence: 1,
	}})
	require.Eventually(t, func() bool {
		head, err := in.tap.Head(t.Context(), run.ID)
		return err == nil && head.Seq > last
	}, patience, 10*time.Millisecond)
	recs, err := journaltest.Collect(in.tap.Read(t.Context(), run.ID, last))
	require.NoError(t, err)
	require.Contains(t, recs[0].Subject, ".acting.observing.")
	require.Contains(t, string(recs[0].Body), codes.NotApproved)
	require.Empty(t, slices.DeleteFunc(in.refusals(), func(s string) bool { return strings.Contains(s, approved.String()) }))
}
