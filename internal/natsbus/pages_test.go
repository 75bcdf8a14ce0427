package natsbus

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// interleave stores n records of each run in turn, and waits for them.
func interleave(t *testing.T, bus *Bus, n int, runs ...events.Run) {
	t.Helper()
	for i := range n {
		for _, run := range runs {
			msg := nats.NewMsg(events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: fmt.Sprint("p", i%3)}.String())
			msg.Data = []byte(strconv.Itoa(i))
			require.NoError(t, bus.NC.PublishMsg(msg))
		}
		if i%100 == 0 {
			_, err := bus.Last(t.Context(), 0) // no more than the server's queue holds
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool {
		last, err := bus.Last(t.Context(), 0)
		return err == nil && last == uint64(n*len(runs))
	}, patience, time.Millisecond)
}

// A run is read whole and in order from wherever the reader stands, whether that
// takes one request or several pages.
func TestReadFromAnywhere(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	const n = api.PageRecords + 500
	one, other := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	interleave(t, bus, n, one, other)
	for _, skip := range []int{0, 1, 2, n / 2, n - api.FewRecords - 1, n - api.FewRecords, n - 2, n - 1, n} {
		var after uint64
		if skip > 0 {
			after = uint64(2*skip - 1) // the number of the run's record skip
		}
		recs, err := journaltest.Collect(bus.Read(t.Context(), one, after))
		require.NoError(t, err)
		require.Len(t, recs, n-skip, "after %d records", skip)
		for i, rec := range recs {
			require.Equal(t, strconv.Itoa(skip+i), string(rec.Body))
		}
	}
	recs, err := journaltest.Collect(bus.Read(t.Context(), journaltest.NewRun(t, bus), 0))
	require.NoError(t, err)
	require.Empty(t, recs)
	for rec, err := range bus.Read(t.Context(), one, 3) { // who wants no more is left alone
		require.NoError(t, err)
		require.Equal(t, "2", string(rec.Body))
		break
	}
}

// Scans that match much and little give the same records as Match chooses.
func TestScanChoosesByFilter(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	runs := []events.Run{journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)}
	rare := events.NewRun("rare", runs[0].ID, 1)
	interleave(t, bus, 900, append(slices.Repeat([]events.Run{runs[0]}, 9), rare)...)
	require.NoError(t, bus.NC.Publish("moore.0.stray", nil))
	all, err := journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	require.Len(t, all, 9000, "what is no event's subject is not there")
	for _, f := range []journal.Filter{
		{Namespace: "rare"}, {Namespace: events.DefaultNamespace}, {Pool: "p1"}, {From: events.Planning}, {From: events.Acting}, {Run: rare.ID}, {Namespace: "none"},
	} {
		for _, after := range []uint64{0, 10, 5000, 8999, 9000} {
			want := slices.DeleteFunc(slices.Clone(all), func(rec journal.Record) bool { return rec.Seq <= after || !f.Match(rec.Subject) })
			got, err := journaltest.Collect(bus.Scan(t.Context(), 0, f, after))
			require.NoError(t, err)
			require.Equal(t, len(want), len(got), "%+v after %d", f, after)
			for i := range want {
				require.Equal(t, want[i].Seq, got[i].Seq)
			}
		}
	}
}
