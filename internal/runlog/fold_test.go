package runlog_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

var forkMachine = reducer.NewMachine(reducer.MachineOptions{})

// forks is a journal with runs that stand on one another.
type forks struct {
	t     *testing.T
	log   *simtest.Journal
	store *runlog.Store
}

func newForks(t *testing.T) *forks {
	log := simtest.New(simtest.Options{Shards: 3})
	return &forks{t, log, runlog.New(runlog.Options{Log: log})}
}

// started is a run with a Start and n thoughts.
func (f *forks) started(n int) events.Run {
	run := f.store.Place("default", f.store.NewID())
	f.append(run, nil, events.Idle, reducertest.StartOf("count", events.ModeTask))
	for range n {
		f.append(run, nil, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "hm"}})
	}
	return run
}

func (f *forks) append(run events.Run, parent *runlog.Fold, origin events.State, p events.Payload) {
	f.t.Helper()
	r := f.store.Acquire(run)
	defer f.store.Release(r)
	r.Lock()
	defer r.Unlock()
	if parent != nil {
		r.Adopt(parent)
	}
	_, err := r.Commit(f.t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		return []runlog.Draft{{Origin: origin, Payload: p}}, nil
	})
	require.NoError(f.t, err)
}

func (f *forks) at(run events.Run, n uint64) *runlog.Fold {
	f.t.Helper()
	fold, err := runlog.FoldAt(f.t.Context(), f.log, forkMachine, run, n)
	require.NoError(f.t, err)
	return fold
}

func (f *forks) fork(parent events.Run, n uint64) events.Run {
	f.t.Helper()
	run := f.store.Place("default", f.store.NewID())
	fold := f.at(parent, n)
	f.append(run, fold, events.Idle, &events.Forked{Run: parent.ID, At: n, Hash: fold.Memory().Control.Head})
	return run
}

// inject stores a fork's first event as anyone could publish it.
func (f *forks) inject(id string, p events.Forked) events.Run {
	run := f.store.Place("default", id)
	body, err := forkMachine.Codec().Encode(&events.Event{
		ID: f.store.NewID(), Source: "moorebus/test/1", Run: id, Time: f.store.Now().UTC(), N: 1,
		From: events.Idle, To: events.Planning, Data: &p,
	})
	require.NoError(f.t, err)
	f.log.Inject(run.Shard, events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: "default"}.String(), body)
	return run
}

// refresh reads a run as a worker that has nothing in memory does.
func (f *forks) refresh(run events.Run) (*reducer.Memory, error) {
	store := runlog.New(runlog.Options{Log: f.log})
	r := store.Acquire(run)
	defer store.Release(r)
	r.Lock()
	defer r.Unlock()
	err := r.Refresh(f.t.Context())
	return r.Memory(), err
}

func TestForksStandOnForksInOtherShards(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	run, shards := f.started(3), map[int]bool{}
	for depth := 1; depth <= 5 || len(shards) < 2; depth++ { // until the parents lie in several shards
		shards[run.Shard] = true
		n := f.at(run, 100).Memory().N
		run = f.fork(run, n)
		f.append(run, nil, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "hm"}})
		mem, err := f.refresh(run)
		require.NoError(t, err)
		require.Equal(t, depth, mem.Control.ForkedFrom.Depth)
		require.Equal(t, 3+depth, mem.Step)
		require.Equal(t, uint64(2), mem.N)
		held := f.store.Acquire(run)
		require.Equal(t, reducertest.Canonical(held.Memory()), reducertest.Canonical(mem), "the writer's memory is the reader's")
		f.store.Release(held)
	}
}

func TestExtendByAForksFirstEvent(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	run := f.fork(f.started(1), 2)
	store := runlog.New(runlog.Options{Log: f.log})
	r := store.Acquire(run)
	r.Lock()
	defer r.Unlock()
	rec, err := f.log.Head(t.Context(), run)
	require.NoError(t, err)
	e, err := r.Extend(t.Context(), rec)
	require.NoError(t, err)
	require.Equal(t, events.TypeForked, e.Type())
	require.Len(t, r.Effects(), 1)
	require.Equal(t, uint64(1), r.Effects()[0].Wake)
}

func TestAForkWithoutItsParentIsAnErrorAndNoPoison(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	gone := f.store.NewID()
	run := f.inject(f.store.NewID(), events.Forked{Run: gone, At: 3, Hash: "h"})
	mem, err := f.refresh(run)
	var orphan *runlog.ParentGoneError
	require.ErrorAs(t, err, &orphan)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Equal(t, "run "+run.ID+" was forked from "+gone+", which is gone", orphan.Error())
	require.Zero(t, mem.N)

	rec, err := f.log.Head(t.Context(), run)
	require.NoError(t, err)
	e, err := runlog.NewFold(f.log, forkMachine, run).Apply(t.Context(), rec)
	require.ErrorAs(t, err, &orphan)
	require.Nil(t, e, "nothing was folded")

	parent := f.started(1)
	run = f.inject(f.store.NewID(), events.Forked{Run: parent.ID, At: 9, Hash: "h"})
	_, err = f.refresh(run)
	require.ErrorAs(t, err, &orphan)
	require.Contains(t, err.Error(), "only 2 are there")
}

func TestForksThatAreNotLegal(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	parent := f.started(1)
	run := f.inject(f.store.NewID(), events.Forked{Run: parent.ID, At: 2, Hash: "h"})
	mem, err := f.refresh(run)
	require.NoError(t, err)
	require.Contains(t, mem.Control.Poison.Reason, "the hashes differ")

	a, b := f.store.NewID(), f.store.NewID()
	f.inject(a, events.Forked{Run: b, At: 1, Hash: "h"})
	f.inject(b, events.Forked{Run: a, At: 1, Hash: "h"})
	mem, err = f.refresh(f.store.Place("default", a))
	require.NoError(t, err, "a circle ends")
	require.NotNil(t, mem.Control.Poison)
}

func TestNoMoreForksThanMayStandOnOneAnother(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	run := f.started(1)
	for range reducer.MaxForks {
		n := uint64(1)
		run = f.fork(run, n)
	}
	mem, err := f.refresh(run)
	require.NoError(t, err)
	require.Equal(t, reducer.MaxForks, mem.Control.ForkedFrom.Depth)
	one := f.inject(f.store.NewID(), events.Forked{Run: run.ID, At: 1, Hash: mem.Control.Head})
	mem, err = f.refresh(one)
	require.NoError(t, err)
	require.Contains(t, mem.Control.Poison.Reason, "no more may")
}

// A fork weighs what it has in memory, its parent's events too, so that a store's
// bound holds.
func TestAForkWeighsWhatItInherited(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	parent := f.started(1)
	f.append(parent, nil, events.Planning, &events.LLMThought{Reply: events.Reply{Content: strings.Repeat("x", 1<<19)}})
	run := f.fork(parent, 3)
	for maxBytes, kept := range map[int64]bool{1 << 18: false, 1 << 20: true} {
		store := runlog.New(runlog.Options{Log: f.log, MaxBytes: maxBytes})
		r := store.Acquire(run)
		r.Lock()
		require.NoError(t, r.Refresh(t.Context()))
		r.Unlock()
		store.Release(r)
		again := store.Acquire(run)
		require.Equal(t, kept, again == r, "with room for %d bytes", maxBytes)
		store.Release(again)
	}
}

func TestRetraceBeginsWithTheAncestors(t *testing.T) {
	t.Parallel()
	f := newForks(t)
	first := f.started(3)
	second := f.fork(first, 2)
	f.append(second, nil, events.Control, &events.Paused{})
	third := f.fork(second, 1)
	f.append(third, nil, events.Control, &events.CancelledRun{})
	var seen []string
	mem, err := runlog.Retrace(t.Context(), f.log, forkMachine, third, func(rec journal.Record, e *events.Event) {
		require.Contains(t, rec.Subject, e.Run)
		seen = append(seen, string(e.Type()))
	})
	require.NoError(t, err)
	require.Equal(t, []string{"Start", "LlmThought", "Forked", "Forked", "Cancelled"}, seen)
	require.Equal(t, events.Cancelled, mem.State)
	require.Equal(t, uint64(2), mem.N)

	var orphan *runlog.ParentGoneError
	gone := f.inject(f.store.NewID(), events.Forked{Run: f.store.NewID(), At: 1, Hash: "h"})
	_, err = runlog.Retrace(t.Context(), f.log, forkMachine, gone, func(journal.Record, *events.Event) { t.Error("nothing can be read") })
	require.ErrorAs(t, err, &orphan)
}

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
