package list_test

import (
	"cmp"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/tally"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// BenchmarkList lists 5,000 and 100,000 runs of two events on a real server, which all wait for
// their users: from nothing, with the memory that the index takes; pages, filters and text search,
// also of a text that no run has; and what is counted of the runs. With -short it lists 5,000.
func BenchmarkList(b *testing.B) {
	bus := controltest.NATS(b, natsbus.InitOptions{})
	r := newRig(b, bus)
	var oldest string
	there := 0
	for _, runs := range []int{5_000, 100_000} {
		if testing.Short() && runs > 5_000 {
			return
		}
		for ; there < runs; there += 1000 {
			oldest = fill(r, 1000, oldest)
		}
		b.Run(fmt.Sprint(runs), func(b *testing.B) { benchmarkList(b, r, bus, runs, oldest) })
	}
}

// fill appends runs, and returns the first of all, if it is not known yet. It reads nothing: a
// stream in memory looks through all messages for those of a run.
func fill(r *rig, runs int, oldest string) string {
	r.T.Helper()
	machine := r.Store.Machine()
	start := reducertest.StartOf("What is new in the world of logs, and why does it matter to whoever runs agents?", events.ModeChat)
	start.Agent.Name = "news"
	turn := controltest.TurnDone("Nothing at all, but of that a good deal.")
	for range runs {
		run := r.At(r.Store.NewID())
		fold := runlog.NewFold(r.Bus, machine, run)
		var entries []journal.Entry
		for _, next := range []struct {
			origin  events.State
			payload events.Payload
		}{{events.Idle, start}, {events.Planning, turn}} {
			stamp := reducer.Stamp{ID: r.Store.NewID(), Source: "moorebus/test/1", Time: r.Store.Now()}
			subject, e, err := machine.Draft(fold.Memory(), run, next.origin, next.payload, stamp)
			require.NoError(r.T, err)
			body, err := machine.Codec().Encode(e)
			require.NoError(r.T, err)
			entries = append(entries, journal.Entry{Subject: subject, Body: body})
			_, err = fold.Apply(r.T.Context(), journal.Record{Subject: subject.String(), Seq: uint64(len(entries)), Body: body})
			require.NoError(r.T, err)
		}
		_, err := r.Bus.Append(r.T.Context(), run, 0, entries...)
		require.NoError(r.T, err)
		oldest = cmp.Or(oldest, run.ID)
	}
	return oldest
}

func benchmarkList(b *testing.B, r *rig, bus journal.Bus, runs int, oldest string) {
	page := func(b *testing.B, r *rig, q list.Query, want int) {
		page, err := r.Runs(b.Context(), "", q)
		require.NoError(b, err)
		require.Len(b, page.Runs, want)
	}
	b.Run("build", func(b *testing.B) {
		var before, after runtime.MemStats
		for b.Loop() {
			fresh := newRig(b, bus)
			runtime.GC()
			runtime.ReadMemStats(&before)
			page(b, fresh, list.Query{Filters: list.Filters{"agent": "news"}}, list.DefaultLimit)
			runtime.GC()
			runtime.ReadMemStats(&after)
			runtime.KeepAlive(fresh)
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(runs), "B/run")
	})
	page(b, r, list.Query{Filters: list.Filters{"agent": "news"}}, list.DefaultLimit)
	const none = 0
	for _, c := range []struct {
		name string
		q    list.Query
		want int
	}{
		{"first", list.Query{}, list.DefaultLimit},
		{"thousand", list.Query{Limit: list.MaxLimit}, list.MaxLimit},
		{"state", list.Query{Filters: list.Filters{"state": "waiting_for_user"}}, list.DefaultLimit},
		{"waiting", list.Query{Filters: list.Filters{"waiting": "any"}}, list.DefaultLimit},
		{"agent none", list.Query{Filters: list.Filters{"agent": "olds"}}, none},
		{"cost none", list.Query{Filters: list.Filters{"cost_above": "1"}}, none},
		{"text oldest", list.Query{Filters: list.Filters{"q": oldest}}, 1},
		{"text none", list.Query{Filters: list.Filters{"q": "there is no such thing"}}, none},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				page(b, r, c.q, c.want)
			}
		})
	}
	b.Run("people", func(b *testing.B) {
		for b.Loop() {
			found, _, err := r.ForPeople(b.Context(), "", 0, "")
			require.NoError(b, err)
			require.Len(b, found, list.DefaultLimit)
		}
	})
	b.Run("counts", func(b *testing.B) {
		for b.Loop() {
			counts, err := r.Counts(b.Context(), "")
			require.NoError(b, err)
			require.Equal(b, runs, counts.Runs.Waiting.User)
		}
	})
	b.Run("costs", func(b *testing.B) {
		for b.Loop() {
			_, err := r.Costs(b.Context(), "", tally.ByModel, time.Time{})
			require.NoError(b, err)
		}
	})
}
