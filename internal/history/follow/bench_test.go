package follow_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/history/follow"
	"github.com/moorebus/moorebus/internal/history/follow/followtest"
	"github.com/moorebus/moorebus/internal/history/store"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

// calls returns an ended run of 3 n + 2 events.
func calls(t T, n int) *reducertest.Run {
	r := reducertest.NewRun(nil)
	r.ID = events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	r.Mem = r.Machine.Initial(r.ID.ID)
	happens := func(origin events.State, p events.Payload) {
		_, _, err := r.Append(origin, p)
		require.NoError(t, err)
	}
	happens(events.Idle, reducertest.StartOf("Find the next bus to the airport, and say when it leaves.", events.ModeTask))
	asked := events.Facts{Asked: &events.Asked{Provider: "openai", Model: "large"}}
	for i := range n {
		id, usage := fmt.Sprint("call_", i), events.Usage{Input: 700, Output: 30, Total: 730}
		call := events.Call{ID: id, Name: "alpha", Arguments: fmt.Sprintf(`{"query": "bus number %d to the airport"}`, i)}
		happens(events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{call}, Confidence: 1, Usage: usage, Facts: asked}})
		happens(events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: id, Success: true, Observation: fmt.Sprintf("Line %d leaves at 7:%02d from the station, and needs half an hour.", i, i)}})
		happens(events.Observing, &events.Continue{})
	}
	happens(events.Planning, &events.LLMFinalAnswer{MessageID: "m", Reply: events.Reply{Content: "Line 7 leaves at 7:07.", Facts: asked}})
	return r
}

// BenchmarkRebuild builds stores of runs of 32 events from their log.
func BenchmarkRebuild(b *testing.B) {
	const runs = 1000
	log := simtest.New(simtest.Options{})
	for range runs {
		put(b, log, calls(b, 10), 0, 0)
	}
	for name, open := range map[string]func() follow.Store{"memory": func() follow.Store { return followtest.New() }, "SQLite": func() follow.Store { return sqlite(b) }} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, follower(log, open(), nil).CatchUp(b.Context()))
			}
			b.ReportMetric(float64(b.N*runs)/b.Elapsed().Seconds(), "runs/s")
		})
	}
}

// BenchmarkLive follows runs of 32 events while they are appended, one event after another.
func BenchmarkLive(b *testing.B) {
	run := make([]*reducertest.Run, 500)
	for i := range run {
		run[i] = calls(b, 10)
	}
	for b.Loop() {
		log, views := simtest.New(simtest.Options{}), sqlite(b)
		f := follower(log, views, nil)
		ctx, stop := context.WithCancel(b.Context())
		var done sync.WaitGroup
		done.Go(func() { f.Run(ctx) })
		last := make([]uint64, len(run))
		for n := range run[0].Records {
			for i, r := range run {
				one := *r
				one.Records = r.Records[:n+1]
				last[i] = put(b, log, &one, n, last[i])
			}
		}
		for f.Wait(ctx).String() != "" {
		}
		stop()
		done.Wait()
	}
	b.ReportMetric(float64(b.N*len(run))/b.Elapsed().Seconds(), "runs/s")
}

func sqlite(b *testing.B) follow.Store {
	s, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "views.db"), slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}
