package runlog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A kept delivery covers what follows only while it is responsible for the state.
func TestKept(t *testing.T) {
	j := simtest.New(simtest.Options{})
	id := events.NewRun(events.DefaultNamespace, "00000000-0000-7000-8000-000000000001", 1)
	open := func() *runlog.Run { return runlog.New(runlog.Options{Log: j}).Acquire(id) }
	add := func(r *runlog.Run, origin events.State, p events.Payload) {
		t.Helper()
		r.Lock()
		defer r.Unlock()
		require.NoError(t, r.Refresh(t.Context()))
		appended, err := r.Commit(t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: origin, Payload: p, Followed: origin == events.Acting}}, nil
		})
		require.NoError(t, err)
		require.True(t, appended)
	}
	calls := 0
	// step is a call and its result; it returns the result's number and whom it wakes.
	step := func(r *runlog.Run) (seq uint64, woken events.State) {
		t.Helper()
		calls++
		call := string(rune('a' + calls))
		add(r, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
			Confidence: 1, Calls: []events.Call{{ID: call, Name: "beta", Arguments: "{}"}},
		}})
		add(r, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: call, Success: true, Code: "ok"}})
		rec, err := j.Head(t.Context(), id)
		require.NoError(t, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		add(r, events.Observing, &events.Continue{})
		return rec.Seq, s.To
	}
	keep := func(r *runlog.Run, seq uint64) *runlog.Kept {
		r.Lock()
		defer r.Unlock()
		k, _, _ := r.Keep(seq, time.Minute, func() bool { return true })
		return k
	}
	one, other := open(), open()
	add(one, events.Idle, reducertest.StartOf("find it", events.ModeTask))

	first, woken := step(one)
	require.Equal(t, events.Observing, woken)
	require.Nil(t, keep(other, first), "who did not append it cannot know how old it is")
	k := keep(one, first)
	require.NotNil(t, k)
	require.Nil(t, keep(one, first), "it is kept already")
	_, woken = step(one)
	require.Equal(t, events.Nobody, woken)

	_, woken = step(other)
	require.Equal(t, events.Observing, woken, "another process does not keep it")
	_, woken = step(one)
	require.Equal(t, events.Observing, woken, "a newer delivery is responsible")

	one.Lock()
	defer one.Unlock()
	require.False(t, one.LetGo(k))
}
