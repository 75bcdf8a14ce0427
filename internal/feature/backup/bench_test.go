package backup_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// benchEvents is how many events of about 800 bytes are backed up.
const benchEvents = 100_000

func benchBus(b *testing.B) *natsbus.Bus {
	conn, err := nats.Connect(natstest.Start(b, natstest.Options{}).URL)
	require.NoError(b, err)
	b.Cleanup(conn.Close)
	require.NoError(b, natsbus.Init(b.Context(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(b.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: transfertest.Patience})
	require.NoError(b, err)
	return bus
}

// BenchmarkBackup measures a full backup of 100,000 events, one with nothing new, a check, and
// a restore: with long runs and with short ones.
func BenchmarkBackup(b *testing.B) {
	for _, length := range []int{50, 8} {
		b.Run(fmt.Sprintf("runs_of_%d", length), func(b *testing.B) { benchBackup(b, length) })
	}
}

func benchBackup(b *testing.B, length int) {
	bus := benchBus(b)
	store := runlog.New(runlog.Options{Log: bus})
	size, value := 0, []byte(`"`+strings.Repeat("word ", 100)+`"`)
	for range benchEvents / length {
		run := store.Acquire(store.Place(events.DefaultNamespace, store.NewID()))
		run.Lock()
		_, err := run.Commit(b.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			drafts := []runlog.Draft{{Origin: events.Idle, Payload: reducertest.StartOf("x", events.ModeTask)}}
			for len(drafts) < length-1 {
				drafts = append(drafts, runlog.Draft{Origin: events.Control, Payload: &events.CustomMemorySet{Key: "k", Value: value}})
			}
			return append(drafts, runlog.Draft{Origin: events.Control, Payload: &events.CancelledRun{}}), nil
		})
		require.NoError(b, err)
		run.Unlock()
		store.Release(run)
	}
	for rec, err := range bus.Scan(b.Context(), 0, journal.Filter{}, 0) {
		require.NoError(b, err)
		size += len(rec.Body)
	}
	dir := filepath.Join(b.TempDir(), "backup")
	step := func(name string, fn func(ctx context.Context)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for range b.N {
				fn(b.Context())
			}
			b.ReportMetric(float64(benchEvents)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
	take := func(incremental bool) func(context.Context) {
		return func(ctx context.Context) {
			taken, err := backup.Take(ctx, bus, dir, backup.Options{Incremental: incremental})
			require.NoError(b, err)
			b.Logf("%d bytes of events: %s", size, taken)
		}
	}
	step("full", take(false))
	step("nothing_new", take(true))
	var a *backup.Archive
	step("check", func(ctx context.Context) {
		var err error
		a, err = backup.Open(ctx, dir, time.Time{})
		require.NoError(b, err)
		_, err = backup.Verify(ctx, a, reducer.NewMachine(reducer.MachineOptions{}))
		require.NoError(b, err)
	})
	step("restore", func(ctx context.Context) {
		done, err := backup.Restore(ctx, a, benchBus(b), source(backup.RestoreOptions{}))
		require.NoError(b, err)
		b.Logf("%+v", done)
	})
}
