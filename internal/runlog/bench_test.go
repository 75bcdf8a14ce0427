package runlog_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// onNATS is a log on files, on an embedded server.
func onNATS(tb testing.TB) *natsbus.Bus {
	tb.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: tb.TempDir(), Logger: quiet})
	require.NoError(tb, err)
	tb.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(tb, err)
	tb.Cleanup(conn.Close)
	require.NoError(tb, natsbus.Init(context.Background(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(context.Background(), conn, natsbus.Options{Logger: quiet})
	require.NoError(tb, err)
	return bus
}

// acting appends a run of about n events that calls tools, and leaves its snapshot
// three events behind its end.
func acting(tb testing.TB, bus *natsbus.Bus, n int) events.Run {
	tb.Helper()
	store := runlog.New(runlog.Options{Log: bus})
	run := store.Acquire(store.Place(events.DefaultNamespace, store.NewID()))
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	add := func(origin events.State, p events.Payload) {
		_, err := run.Commit(context.Background(), stamp, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: origin, Payload: p}}, nil
		})
		require.NoError(tb, err)
	}
	begin := reducertest.StartOf("find it", events.ModeTask)
	begin.Agent.Config.MaxSteps = n
	add(events.Idle, begin)
	for i := 0; 3*i < n; i++ {
		if 3*i+3 >= n {
			s, err := run.Snapshot()
			require.NoError(tb, err)
			require.NoError(tb, bus.PutSnapshot(context.Background(), run.ID, s))
		}
		id := fmt.Sprint("c", i)
		reply := events.ToolCallReply{Confidence: 1}
		reply.Calls = []events.Call{{ID: id, Name: "alpha", Arguments: `{"q":"` + id + `"}`}}
		add(events.Planning, &events.LLMToolCall{ToolCallReply: reply})
		add(events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{
			CallID: id, Success: true, Observation: strings.Repeat("result ", 70), Code: "ok",
		}})
		add(events.Observing, &events.Continue{})
	}
	return run.ID
}

// On a real log a snapshot gives the same memory, from the tail alone.
func TestSnapshotOnARealLog(t *testing.T) {
	t.Parallel()
	bus := onNATS(t)
	id := acting(t, bus, 1000)
	refresh := func(r *runlog.Run) error { return r.Refresh(t.Context()) }
	want, all, _ := load(t, bus, nil, id, refresh)
	got, few, said := load(t, bus, bus, id, refresh)
	require.Equal(t, want, got)
	require.Empty(t, said)
	require.Greater(t, all, 1000)
	require.Equal(t, 4, few)
}

// BenchmarkLoad reads a run that is in no memory, with and without its snapshot.
func BenchmarkLoad(b *testing.B) {
	bus := onNATS(b)
	for _, n := range []int{100, 1000, 5000} {
		id := acting(b, bus, n)
		for name, snapshots := range map[string]ports.Snapshots{"log": nil, "snapshot": bus} {
			b.Run(fmt.Sprintf("%d events/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					store := runlog.New(runlog.Options{Log: bus, Snapshots: snapshots})
					run := store.Acquire(id)
					run.Lock()
					require.NoError(b, run.Refresh(b.Context()))
					run.Unlock()
					store.Release(run)
				}
			})
		}
	}
}
