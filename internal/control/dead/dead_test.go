package dead_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// graveyard is a log in which runs end.
type graveyard struct {
	t *testing.T
	*simtest.Journal
	store   *runlog.Store
	control *control.Controller
}

func newGraveyard(t *testing.T) *graveyard {
	j := simtest.New(simtest.Options{Shards: 2})
	c, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: j}), Queue: j, Feed: j, Instance: "test"}, Timers: j, KV: j,
	})
	require.NoError(t, err)
	c.Admission = control.Unbounded{}
	return &graveyard{t, j, runlog.New(runlog.Options{Log: j}), c}
}

func (g *graveyard) run() events.Run { return g.store.Place(events.DefaultNamespace, g.store.NewID()) }

// does appends events out of the run's own state.
func (g *graveyard) does(id events.Run, payloads ...events.Payload) {
	g.t.Helper()
	run := g.store.Acquire(id)
	defer g.store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(g.t, run.Refresh(g.t.Context()))
	for _, p := range payloads {
		_, err := run.Commit(g.t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: mem.State, Payload: p}}, nil
		})
		require.NoError(g.t, err)
	}
}

func (g *graveyard) started() events.Run {
	id := g.run()
	g.does(id, reducertest.StartOf("find it", events.ModeTask))
	return id
}

// ends ends a run that is poisoned, as whoever meets it does.
func (g *graveyard) ends(id events.Run) {
	g.t.Helper()
	run := g.store.Acquire(id)
	run.Lock()
	require.NoError(g.t, run.Refresh(g.t.Context()))
	end := effects.End(run.Memory())
	run.Unlock()
	g.store.Release(run)
	g.does(id, end)
}

func fatal(code string) *events.FatalError {
	return &events.FatalError{Outcome: events.Outcome{Code: code, Message: "because"}}
}

func failedAttempt(key string) *events.LLMAttemptFailed {
	return &events.LLMAttemptFailed{Kind: codes.KindHandler, Message: "no", Key: key}
}

func (g *graveyard) dead(o dead.Options) []dead.Dead {
	g.t.Helper()
	found, err := g.control.Dead(g.t.Context(), "", o)
	require.NoError(g.t, err)
	return found
}

func names(found []dead.Dead) []string {
	all := []string{}
	for _, d := range found {
		all = append(all, d.Run+d.Stray)
	}
	return all
}

// An end whose body does not belong to its subject is none, and of an end that is
// not legal in its run the true one is told, once.
func TestDeadGoByTheirSubjects(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t)
	forge := func(id events.Run, in, from events.State) {
		body, err := g.store.Machine().Codec().Encode(&events.Event{
			ID: runlog.NewID(), Source: "moorebus/actor/mallory", Run: id.ID, N: 2, From: in, To: events.Errored, Prev: events.Hash([]byte("x")), Time: time.Now(),
			Data: fatal(codes.AttemptsExhausted),
		})
		require.NoError(t, err)
		g.Inject(id.Shard, events.Subject{Run: id, From: from, To: events.Errored, Pool: events.DefaultPool}.String(), body)
	}
	elsewhere, ended := g.started(), g.started()
	forge(elsewhere, events.Planning, events.Acting)
	forge(ended, events.Acting, events.Acting)
	require.Equal(t, []string{ended.ID}, names(g.dead(dead.Options{})), "only a fold could tell")
	g.ends(ended)
	found := g.dead(dead.Options{})
	require.Equal(t, []string{ended.ID}, names(found))
	require.Equal(t, codes.Poison, found[0].Code)
}

func TestDead(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t)
	exhausted, auth, poisoned, done := g.started(), g.started(), g.started(), g.started()
	g.does(exhausted, failedAttempt("plan/1"), failedAttempt("plan/1"), fatal(codes.AttemptsExhausted))
	g.does(auth, fatal("auth"))
	g.Inject(poisoned.Shard, events.Subject{Run: poisoned, From: events.Planning, To: events.Acting, Pool: "web"}.String(), []byte("?"))
	g.ends(poisoned)
	g.does(done, &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "It is done."}})
	g.Inject(1, "moore.1.nonsense", []byte("abc"))
	g.Inject(0, events.Subject{Run: done, From: events.Planning, To: events.Errored, Pool: "default"}.String(), []byte("not an event"))

	found := g.dead(dead.Options{})
	require.Len(t, found, 3, "%v", names(found))
	require.Equal(t, []string{exhausted.ID, poisoned.ID}, names(found)[:2])
	require.Equal(t, codes.AttemptsExhausted, found[0].Code)
	require.EqualValues(t, 4, found[0].N)
	require.Equal(t, codes.Poison, found[1].Code)
	require.Contains(t, found[1].Message, "event 2")
	require.Equal(t, dead.CodeStray, found[2].Code)
	require.Contains(t, found[2].Message, "3 bytes on moore.1.nonsense")
	require.Contains(t, names(g.dead(dead.Options{All: true})), auth.ID)

	var table bytes.Buffer
	require.NoError(t, print.WriteDead(&table, print.Table, found))
	require.Contains(t, table.String(), exhausted.ID)
	require.Contains(t, table.String(), found[2].Stray)

	err := g.control.DropDead(t.Context(), "", []string{exhausted.ID, done.ID})
	require.True(t, refusal.Is(err, refusal.CodeNotDead), "%v", err)
	require.Len(t, g.dead(dead.Options{}), 3, "all or none")
	for range 2 {
		require.NoError(t, g.control.DropDead(t.Context(), "", []string{exhausted.ID, found[2].Stray}))
	}
	require.Equal(t, []string{poisoned.ID}, names(g.dead(dead.Options{})))
	require.Len(t, g.dead(dead.Options{Dropped: true}), 3)
	for _, bad := range []string{"", "nonsense", "x:1", "-1:1", "0:0", "0:"} {
		_, err := dead.Key(bad)
		require.Error(t, err, bad)
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t)
	at := func(run events.Run) (uint64, error) {
		fork, err := g.control.Retry(t.Context(), "", run.ID, "")
		return fork.At, err
	}
	is := func(want uint64, run events.Run, why string) {
		t.Helper()
		got, err := at(run)
		require.NoError(t, err)
		require.Equal(t, want, got, why)
	}
	run := g.started()
	_, err := at(run)
	require.ErrorContains(t, err, "did not end by an error")
	g.does(run, fatal("auth"))
	is(1, run, "right before the end")

	run = g.started()
	g.does(run, &events.LLMThought{Reply: events.Reply{Content: "hm"}}, failedAttempt("plan/2"), failedAttempt("plan/2"), fatal(codes.AttemptsExhausted))
	is(2, run, "before the first failure, or it would end at once")

	run = g.started()
	g.does(run, failedAttempt("plan/1"), &events.LLMThought{Reply: events.Reply{Content: "hm"}}, fatal(codes.NoHandler))
	is(3, run, "a failure that was overcome is none of it")

	run = g.started()
	g.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: events.Acting, Pool: "web"}.String(), []byte("?"))
	g.does(run, &events.FatalError{Outcome: events.Outcome{Code: codes.Poison}, Poison: events.Poison{N: 2, Reason: "?"}})
	is(1, run, "before the poison")

	run = g.started()
	g.Inject(run.Shard, "moore.0.default.NO-STATE.planning.default."+run.ID, []byte("{}"))
	g.does(run, &events.LLMThought{Reply: events.Reply{Content: "hm"}}, fatal("auth"))
	is(2, run, "a stray is no event")

	run = g.run()
	_, err = at(run)
	require.ErrorContains(t, err, "there is no run")
	g.Inject(run.Shard, events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: "default"}.String(), []byte("?"))
	g.does(run, &events.FatalError{Outcome: events.Outcome{Code: codes.Poison}, Poison: events.Poison{N: 1, Reason: "?"}})
	_, err = at(run)
	require.ErrorContains(t, err, "start another run")
}
