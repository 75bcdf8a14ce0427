package backup_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// with is agent with other tools.
func with(script string, tools ...string) *events.Agent {
	a := agent(script)
	a.Tools = tools
	return a
}

// subjects are those of a run's records.
func (w *world) subjects(run events.Run) (all []string) {
	w.T.Helper()
	for rec, err := range w.Bus.Read(w.T.Context(), w.Here(run), 0) {
		require.NoError(w.T, err)
		all = append(all, rec.Subject)
	}
	return all
}

// A run that may repeat calls of class once comes back paused, from the first moment on, and says
// so. Nothing of it happens until it is released, and a run that somebody paused stays paused.
func TestHold(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	planning := one.Start(agent("[" + callPay + "," + answer + "]"))
	about := callOnce(one, agent("["+callPay+","+answer+"]"))
	pure := one.Start(with("["+callRepeat+","+answer+"]", "repeat"))
	before := one.Start(agent("[" + callPay + "," + answer + "]"))
	one.Append(before, events.Control, &events.Paused{By: events.By{Reason: "lunch"}})
	ended := one.Open()
	one.Append(ended, events.Control, &events.CancelledRun{})
	one.take(dir, false)
	one.work()
	one.Await(planning, events.Done) // it pays behind the end of the backup

	two := newWorld(t, 1).work()
	done := two.restore(dir, time.Time{}, backup.RestoreOptions{Hold: backup.HoldOnce})
	held := []backup.HeldRun{{Run: planning.ID, Namespace: "default"}, {Run: about.ID, Namespace: "default"}}
	require.ElementsMatch(t, held, done.Held)
	two.Await(pure, events.Done)
	gateway := two.Host.Gateway()
	for _, run := range []events.Run{planning, about} {
		state, err := gateway.State(t.Context(), "", run.ID, 0)
		require.NoError(t, err)
		require.True(t, state.Paused)
		require.Equal(t, "restored", state.PauseReason)
	}
	require.Len(t, two.Bodies(planning), 2, "its Start and the pause")
	page, err := gateway.Runs(t.Context(), "", list.Query{Filters: list.Filters{"paused": "restored"}})
	require.NoError(t, err)
	require.Len(t, page.Runs, 2)
	require.True(t, page.Runs[0].Paused && page.Runs[0].PauseReason == "restored")
	page, err = gateway.Runs(t.Context(), "", list.Query{Filters: list.Filters{"paused": "any"}})
	require.NoError(t, err)
	require.Len(t, page.Runs, 3)

	_, err = gateway.Release(t.Context(), "", before.ID, events.By{})
	require.True(t, refusal.Is(err, refusal.CodeNotPaused), "%v: it was paused before", err)
	_, err = gateway.Release(t.Context(), "", planning.ID, events.By{})
	require.NoError(t, err)
	two.Await(planning, events.Done)
	require.EqualValues(t, 1, two.paid.Load())
	_, err = gateway.Pause(t.Context(), "", about.ID, events.By{Reason: "let me see"})
	require.NoError(t, err)
	_, err = gateway.Release(t.Context(), "", about.ID, events.By{})
	require.True(t, refusal.Is(err, refusal.CodeNotPaused), "%v: somebody paused it since", err)
	page, err = gateway.Runs(t.Context(), "", list.Query{Filters: list.Filters{"paused": "restored"}})
	require.NoError(t, err)
	require.Empty(t, page.Runs)
	two.Verified()
}

// Each run of a cut-off restore is held or not there. All runs are held if that is asked for, those
// that wait for a human too, and every event keeps its subject.
func TestHoldAll(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1).work()
	dir := filepath.Join(t.TempDir(), "backup")
	a := agent("[" + callPay + "," + answer + "]")
	a.Approval = &events.Approval{Policy: events.ApproveAlways}
	var runs []events.Run
	for range 9 {
		runs = append(runs, one.Start(a))
	}
	for _, run := range runs {
		one.Await(run, events.WaitingForHuman)
	}
	one.take(dir, false)

	two := newWorld(t, 1).work()
	archive := openArchive(t, dir, time.Time{})
	var done backup.Restored
	for left := int32(3); ; left += 3 {
		b := &breaking{Target: two.Bus}
		b.left.Store(left)
		var err error
		if done, err = backup.Restore(t.Context(), archive, b, source(backup.RestoreOptions{Hold: backup.HoldAll})); err == nil {
			break
		}
		require.ErrorIs(t, err, errBroken)
		_, err = backup.Restore(t.Context(), archive, b, source(backup.RestoreOptions{Hold: backup.HoldNone}))
		require.ErrorIs(t, err, backup.ErrNotEmpty, "another restore")
	}
	require.Len(t, done.Held, len(runs))
	for _, run := range runs {
		was := one.subjects(run)
		is := two.subjects(run)
		require.Len(t, is, len(was)+1)
		require.Equal(t, was, is[:len(was)])
	}
	gateway := two.Host.Gateway()
	waiting, err := gateway.Waiting(t.Context(), "", 0, "")
	require.NoError(t, err)
	require.Len(t, waiting.Runs, len(runs))
	require.Equal(t, "restored", waiting.Runs[0].PauseReason)
	two.Verified()
}

// Agents that a run may call count with their tools. So does an agent of which nothing is known.
func TestHoldForAgents(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	dir := filepath.Join(t.TempDir(), "backup")
	start := func(name string, tools ...events.ToolSpec) string {
		run := one.Store.Place(events.DefaultNamespace, one.Store.NewID())
		p := reducertest.StartOf(name, events.ModeTask)
		p.Agent.Name, p.Agent.Tools, p.Tools = name, nil, tools
		for _, spec := range tools {
			p.Agent.Tools = append(p.Agent.Tools, spec.Name)
		}
		one.Append(run, events.Idle, p)
		return run.ID
	}
	pure := events.ToolSpec{Name: "look", Effect: "pure", Pool: "default", Schema: []byte(`{}`)}
	once := events.ToolSpec{Name: "pay", Effect: "once", Pool: "default", Schema: []byte(`{}`)}
	calls := func(name string) events.ToolSpec {
		return events.ToolSpec{Name: name, Effect: "idempotent", Pool: events.AgentsPool, Schema: []byte(`{}`)}
	}
	start("harmless", pure)
	payer := start("payer", once)
	between := start("between", pure, calls("payer"))
	start("caller", calls("harmless"))
	indirect := start("manager", calls("between"))
	hands := start("desk", calls("transfer_to_payer"))
	unknown := start("asker", calls("stranger"))
	one.take(dir, false)

	two := newWorld(t, 1)
	var held []string
	for _, run := range two.restore(dir, time.Time{}, backup.RestoreOptions{Hold: backup.HoldOnce}).Held {
		held = append(held, run.Run)
	}
	require.ElementsMatch(t, []string{payer, between, indirect, hands, unknown}, held)
	two.Verified()
}
