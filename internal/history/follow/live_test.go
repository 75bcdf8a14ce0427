package follow_test

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/follow/followtest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ended returns a run that has ended, in a log of so many shards. Its one call has the result.
func ended(t T, shards int, result events.ToolOutcome) *reducertest.Run {
	r := reducertest.NewRun(nil)
	r.ID = events.NewRun(events.DefaultNamespace, runlog.NewID(), shards)
	r.Mem = r.Machine.Initial(r.ID.ID)
	result.CallID = "c"
	call := events.ToolCallReply{Calls: []events.Call{{ID: "c", Name: "alpha", Arguments: "{}"}}, Confidence: 1}
	for _, e := range []reducertest.Event{
		{Origin: events.Idle, Payload: reducertest.StartOf("Do it.", events.ModeTask)},
		{Origin: events.Planning, Payload: &events.LLMToolCall{ToolCallReply: call}},
		{Origin: events.Acting, Payload: &events.ToolSuccess{Outcome: &result}},
		{Origin: events.Observing, Payload: &events.Continue{}},
		{Origin: events.Planning, Payload: &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "4"}}},
	} {
		_, _, err := r.Append(e.Origin, e.Payload)
		require.NoError(t, err)
	}
	return r
}

// put appends a run's records from number from on.
func put(t T, log journal.Log, r *reducertest.Run, from int, last uint64) uint64 {
	t.Helper()
	var entries []journal.Entry
	for _, rec := range r.Records[from:] {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		entries = append(entries, journal.Entry{Subject: s, Body: rec.Body})
	}
	last, err := log.Append(t.Context(), r.ID, last, entries...)
	require.NoError(t, err)
	return last
}

// following runs a follower until the test ends.
func following(t *testing.T, f *follow.Follower) {
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
}

// A follower on a real server has what is appended, drops a run that was purged, and has it again when it
// comes back, with what it used counted once.
func TestPurgedRuns(t *testing.T) {
	const shards = 2
	bus := controltest.NATS(t, natsbus.InitOptions{Shards: shards})
	store := followtest.New()
	first := ended(t, shards, events.ToolOutcome{Success: true, Observation: "bus 7"})
	put(t, bus, first, 0, 0)
	swept, purged := make(chan struct{}), make(chan []events.Run)
	f := follower(bus, store, func(o *follow.Options) {
		o.Sweep = time.Millisecond
		o.Purged = func(ctx context.Context) iter.Seq2[events.Run, error] {
			return func(yield func(events.Run, error) bool) {
				select {
				case runs := <-purged:
					for _, run := range runs {
						if !yield(run, nil) {
							return
						}
					}
				case <-ctx.Done():
					return
				}
				select {
				case swept <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}
	})
	following(t, f)
	sweep := func(runs ...events.Run) {
		purged <- runs
		<-swept
		purged <- nil // the sweep before is complete
		<-swept
	}
	require.Empty(t, f.Wait(t.Context()).String())
	second := ended(t, shards, events.ToolOutcome{Success: true, Observation: "bus 8"})
	put(t, bus, second, 0, 0)
	require.Empty(t, f.Wait(t.Context()).String())
	before := store.Content()
	require.Equal(t, built(t, bus), before)
	require.Len(t, before.Runs, 2)
	require.Equal(t, events.Done, before.Runs[first.ID.ID].State)

	sweep(first.ID, second.ID)
	require.Equal(t, before, store.Content(), "both are in the log")
	head, err := bus.Head(t.Context(), first.ID)
	require.NoError(t, err)
	_, err = bus.Purge(t.Context(), first.ID, head.Seq)
	require.NoError(t, err)
	sweep(first.ID)
	after := store.Content()
	require.NotContains(t, after.Runs, first.ID.ID)
	require.NotContains(t, after.Texts, first.ID.ID)
	require.Contains(t, after.Runs, second.ID.ID)
	require.Equal(t, before.Uses, after.Uses)

	// The other run is purged and comes back before anybody has looked.
	head, err = bus.Head(t.Context(), second.ID)
	require.NoError(t, err)
	_, err = bus.Purge(t.Context(), second.ID, head.Seq)
	require.NoError(t, err)
	half := *second
	half.Records = half.Records[:2]
	last := put(t, bus, &half, 0, 0)
	require.Empty(t, f.Wait(t.Context()).String())
	put(t, bus, second, 2, last)
	require.Empty(t, f.Wait(t.Context()).String())
	after = store.Content()
	require.Equal(t, before.Runs[second.ID.ID], after.Runs[second.ID.ID])
	require.Equal(t, before.Texts[second.ID.ID], after.Texts[second.ID.ID])
	require.Equal(t, before.Uses, after.Uses)
	require.Equal(t, before.Periods, after.Periods)
}

// Rates are the means of a minute, as the tally has them.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := simtest.New(simtest.Options{})
		f, l := follower(log, followtest.New(), nil), lister(t, log, time.Now().Add(90*time.Second))
		require.Zero(t, f.Rates(events.DefaultNamespace, time.Now()))
		for range 9 {
			time.Sleep(10 * time.Second)
			put(t, log, ended(t, 1, events.ToolOutcome{Success: true}), 0, 0)
		}
		require.NoError(t, f.CatchUp(t.Context()))
		counts, err := l.Counts(t.Context(), "")
		require.NoError(t, err)
		rates := f.Rates(events.DefaultNamespace, time.Now())
		require.InDelta(t, counts.Rates.Events, rates.Events, 1e-9)
		require.InDelta(t, 6.0/60, rates.Runs, 1e-9)
	})
}

// Who waits learns what the store lacks after two seconds. A follower goes on after an error, and one that does
// not run asks the store.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, store := simtest.New(simtest.Options{}), followtest.New()
		idle := follower(log, store, nil)
		require.Empty(t, idle.Wait(t.Context()).String(), "an empty log")
		r := ended(t, 1, events.ToolOutcome{Success: true})
		last := put(t, log, r, 0, 0)
		began := time.Now()
		require.Equal(t, strconv.FormatUint(last, 10), idle.Wait(t.Context()).String())
		require.Equal(t, follow.WaitAtMost, time.Since(began))

		var alive atomic.Bool
		store.Kill = func(bool) bool { return !alive.Load() }
		following(t, follower(log, store, nil))
		synctest.Wait()
		require.Equal(t, "5", idle.Wait(t.Context()).String())
		alive.Store(true)
		time.Sleep(10 * time.Second)
		require.Empty(t, idle.Wait(t.Context()).String())
		require.Equal(t, built(t, log), store.Content())
	})
}

// A store of another log is built anew, and so is one that is ahead of the log.
func TestOtherLogs(t *testing.T) {
	store := followtest.New()
	for name, stream := range map[string]string{"another stream": "MOORE_0 of yesterday", "a shorter one": "MOORE_0 of this test"} {
		log := simtest.New(simtest.Options{})
		put(t, log, ended(t, 1, events.ToolOutcome{Success: true}), 0, 0)
		require.NoError(t, store.Reset(t.Context()))
		require.NoError(t, store.Apply(t.Context(), history.Batch{Stream: stream, To: 77, Runs: []history.Change{{Run: history.Run{ID: "old"}}}}))
		require.NoError(t, follower(log, store, nil).CatchUp(t.Context()))
		require.Equal(t, built(t, log), store.Content(), name)
	}
	// A batch of another process's position changes nothing.
	before := store.Content()
	require.ErrorIs(t, store.Apply(t.Context(), history.Batch{Stream: "MOORE_0 of this test", From: 3, To: 5}), follow.ErrMoved)
	require.Equal(t, before, store.Content())
}

// What was too large for the log is read. What is gone leaves what the event has.
func TestOffloadedTexts(t *testing.T) {
	log, store := simtest.New(simtest.Options{}), followtest.New()
	ref, err := log.PutBlob(t.Context(), "default", []byte(`{"departs":"7:0\u0030"}`))
	require.NoError(t, err)
	there := ended(t, 1, events.ToolOutcome{Success: true, Observation: "{…", Ref: &ref})
	put(t, log, there, 0, 0)
	lost := ref
	lost.Key, lost.SHA256 = events.Hash(nil), events.Hash(nil)
	gone := ended(t, 1, events.ToolOutcome{Success: true, Observation: "bus…", Ref: &lost})
	put(t, log, gone, 0, 0)
	tries := 0
	f := follower(log, store, func(o *follow.Options) {
		o.Blob = func(ctx context.Context, ref events.Ref) ([]byte, error) {
			if tries++; tries == 1 {
				return nil, errors.New("the bus is away")
			}
			return log.Blob(ctx, ref)
		}
	})
	require.NoError(t, f.CatchUp(t.Context()))
	require.Equal(t, 3, tries)
	for id, want := range map[string]string{there.ID.ID: "departs\n7:00\n", gone.ID.ID: "bus…"} {
		texts := store.Content().Texts[id]
		require.Equal(t, history.Result, texts[2].Kind)
		require.Equal(t, want, texts[2].Text)
		require.Nil(t, texts[2].Ref)
	}
}
