package runstart_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// rig is a launcher on a log of its own, with one provider and the tool fetch.
type rig struct {
	*runstart.Launcher
	process *simtest.Process
	store   *runlog.Store
}

func newRig(t *testing.T, timers func(*simtest.Process) journal.Timers) *rig {
	t.Helper()
	p := simtest.New(simtest.Options{}).NewProcess()
	require.NoError(t, announce.NewDirectory(p, nil).AnnounceProviders(t.Context(), "i", []string{"scripted"}))
	require.NoError(t, announce.NewDirectory(p, nil).Announce(t.Context(), "web", "i", []events.ToolSpec{{Name: "fetch", Schema: []byte(`{"type":"object"}`), Effect: "pure", Pool: "web"}}))
	r := &rig{process: p, store: runlog.New(runlog.Options{Log: p})}
	o := runstart.Config{
		Store: r.store, Source: "test/launch", KV: p, Timers: p, Tombstones: p, FirstCheck: time.Minute,
		Validator: schema.New(schema.Options{}),
		CheckApproval: func(a *events.Approval) error {
			if a != nil && a.Policy == events.ApproveAlways {
				return errors.New("approval: not here")
			}
			return nil
		},
		CheckEstimator: func(name string) error {
			if name == "bad" {
				return errors.New("token_estimator: is bad")
			}
			return nil
		},
	}
	if timers != nil {
		o.Timers = timers(p)
	}
	var err error
	r.Launcher, err = runstart.New(o)
	require.NoError(t, err)
	return r
}

func definition(change func(*events.Agent)) events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.Tools = "helper", "scripted", []string{"fetch"}
	if change != nil {
		change(&a)
	}
	return a
}

func (r *rig) place() events.Run { return r.store.Place(events.DefaultNamespace, runlog.NewID()) }

func requireRefusal(t *testing.T, err error, kind refusal.Kind, code string) {
	t.Helper()
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, kind, refused.Kind)
	require.Equal(t, code, refused.Code)
	require.NotEmpty(t, refused.Message)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for code, c := range map[string]struct {
		kind   refusal.Kind
		change func(*events.Agent)
	}{
		refusal.CodeBadAgent:        {refusal.Invalid, func(a *events.Agent) { a.Config.MaxSteps = -1 }},
		refusal.CodeUnknownProvider: {refusal.Unprocessable, func(a *events.Agent) { a.LLM.Provider = "nobody" }},
		refusal.CodeUnknownTool:     {refusal.Unprocessable, func(a *events.Agent) { a.Tools = []string{"nothing"} }},
		refusal.CodeBadApproval:     {refusal.Unprocessable, func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} }},
		refusal.CodeBadEstimator:    {refusal.Unprocessable, func(a *events.Agent) { a.Config.TokenEstimator = "bad" }},
		refusal.CodeBadOutputSchema: {refusal.Unprocessable, func(a *events.Agent) { a.OutputSchema = []byte(`{"type":"nothing"}`) }},
	} {
		t.Run(code, func(t *testing.T) {
			_, err := r.Pin(t.Context(), definition(c.change), runstart.Task{Text: "x", Mode: events.ModeTask})
			requireRefusal(t, err, c.kind, code)
		})
	}
	_, _, err := r.Definition(t.Context(), events.DefaultNamespace, "helper")
	requireRefusal(t, err, refusal.NotFound, refusal.CodeAgentNotFound)
	_, _, err = r.Definition(t.Context(), events.DefaultNamespace, "No Name")
	requireRefusal(t, err, refusal.NotFound, refusal.CodeAgentNotFound)
	require.NoError(t, agentstore.Put(t.Context(), r.process, events.DefaultNamespace, "helper", []byte(`{"name":7}`)))
	_, _, err = r.Definition(t.Context(), events.DefaultNamespace, "helper")
	requireRefusal(t, err, refusal.Unprocessable, refusal.CodeBadAgent)
	require.NoError(t, agentstore.Put(t.Context(), r.process, events.DefaultNamespace, "helper", agentfile.Marshal(definition(nil))))
	a, _, err := r.Definition(t.Context(), events.DefaultNamespace, "helper")
	require.NoError(t, err)
	require.Equal(t, []string{"fetch"}, a.Tools)

	_, err = runstart.New(runstart.Config{})
	require.ErrorContains(t, err, "required")
}

// pinned is the Start of a run.
func (r *rig) pinned(t *testing.T, text string) *events.Start {
	t.Helper()
	start, err := r.Pin(t.Context(), definition(nil), runstart.Task{Text: text, Mode: events.ModeTask})
	require.NoError(t, err)
	return start
}

func TestOpenConflicts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	start := r.pinned(t, "x")
	require.Equal(t, runstart.DefaultTaskType, start.TaskType)
	require.Equal(t, "fetch", start.Tools[0].Name)
	errTaken := errors.New("taken")
	o := runstart.Opening{First: start, Check: func(mem *reducer.Memory) error {
		if mem.N > 0 {
			return errTaken
		}
		return nil
	}}
	at := r.place()
	state, n, err := r.Open(t.Context(), at, o)
	require.NoError(t, err)
	require.Equal(t, events.Planning, state)
	require.EqualValues(t, 1, n)
	_, _, err = r.Open(t.Context(), at, o)
	require.ErrorIs(t, err, errTaken, "there is one run, however often it is opened")
	head, err := r.process.Head(t.Context(), at)
	require.NoError(t, err)
	s, err := events.ParseSubject(head.Subject)
	require.NoError(t, err)
	require.Equal(t, events.Idle, s.From, "and nothing was appended to it")

	_, _, err = r.Open(t.Context(), r.place(), runstart.Opening{First: r.pinned(t, strings.Repeat("x", journal.MaxBody+1))})
	requireRefusal(t, err, refusal.TooLarge, refusal.CodeTooLarge)
	require.ErrorIs(t, err, journal.ErrTooLarge)
}

func TestTombstones(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	at := r.place()
	stone, err := r.Tombstone(t.Context(), at)
	require.NoError(t, err)
	require.Nil(t, stone)
	require.NoError(t, tombstones.Put(t.Context(), r.process, at, tombstones.Tombstone{}))
	stone, err = r.Tombstone(t.Context(), at)
	require.NoError(t, err)
	require.NotNil(t, stone)
}

// watched are timers that say whether the run was there when its timer was set.
type watched struct {
	*simtest.Process
	at     []time.Duration
	fails  []error
	opened bool
}

func (w *watched) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	_, err := w.Head(ctx, run)
	w.opened = w.opened || !errors.Is(err, journal.ErrNotFound)
	w.at = append(w.at, time.Until(at).Round(time.Second))
	if len(w.fails) > 0 {
		err, w.fails = w.fails[0], w.fails[1:]
		return err
	}
	return w.Process.SetTimer(ctx, run, kind, at, data)
}

// A run's first timer is set before its first event, so that none is without one.
func TestFirstTimer(t *testing.T) {
	t.Parallel()
	var timers *watched
	r := newRig(t, func(p *simtest.Process) journal.Timers {
		timers = &watched{Process: p}
		return timers
	})
	start := r.pinned(t, "x")
	_, _, err := r.Open(t.Context(), r.place(), runstart.Opening{First: start})
	require.NoError(t, err)
	_, _, err = r.Open(t.Context(), r.place(), runstart.Opening{First: start, Budget: &events.Budget{MaxWallTime: events.Duration(10 * time.Second)}})
	require.NoError(t, err)
	require.False(t, timers.opened)
	require.Equal(t, []time.Duration{time.Minute, 10 * time.Second}, timers.at, "no later than its time is up")

	timers.fails = []error{journal.ErrUnknownOutcome, journal.ErrUnknownOutcome}
	_, _, err = r.Open(t.Context(), r.place(), runstart.Opening{First: start})
	require.NoError(t, err, "what may not be stored is set again")
	require.Len(t, timers.at, 5)

	timers.fails = []error{journal.ErrDenied}
	at := r.place()
	_, _, err = r.Open(t.Context(), at, runstart.Opening{First: start})
	require.ErrorIs(t, err, journal.ErrDenied)
	_, err = r.process.Head(t.Context(), at)
	require.ErrorIs(t, err, journal.ErrNotFound, "no timer, no run")
}
