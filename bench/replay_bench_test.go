package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/bench/foldbench"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal"
)

// BenchmarkLog reads, folds and verifies a log on a server of its own in this
// process, each by itself, so that a profile shows one of them. An operation is an
// event.
func BenchmarkLog(b *testing.B) {
	ctx := b.Context()
	at, err := openSite(ctx, embedded.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	defer at.close()
	m, err := at.recast(ctx, 10)
	require.NoError(b, err)
	const runs = 3_000
	require.NoError(b, m.pour(ctx, at.conn, at.bus, runs, nil))
	for _, way := range []struct {
		name string
		pass func(b *testing.B) (events int, took time.Duration)
	}{
		{"bare", func(b *testing.B) (int, time.Duration) {
			began := time.Now()
			_, err := readBare(ctx, at)
			require.NoError(b, err)
			return runs * len(m.steps), time.Since(began)
		}},
		{"read", func(b *testing.B) (int, time.Duration) {
			n, began := 0, time.Now()
			for _, err := range at.bus.Scan(ctx, 0, journal.Filter{}, 0) {
				require.NoError(b, err)
				n++
			}
			return n, time.Since(began)
		}},
		{"fold", func(b *testing.B) (int, time.Duration) {
			// It also reads, which counts here for ns/op and allocations alone.
			measures, err := foldbench.Run(ctx, at.bus, m.machine, foldbench.Options{MaxBytes: 64 << 10, Least: time.Nanosecond})
			require.NoError(b, err)
			require.Equal(b, foldbench.FoldLog, measures[1].What)
			return int(measures[1].Events), measures[1].Elapsed
		}},
		{"verify", func(b *testing.B) (int, time.Duration) {
			report, err := verify.Log(ctx, at.bus, m.machine, verify.Options{All: true, Strict: true, Snapshots: at.bus})
			require.NoError(b, err)
			require.True(b, report.Clean())
			return int(report.Events), report.Elapsed
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			events, took := 0, time.Duration(0)
			before, err := cpuTime(os.Getpid())
			require.NoError(b, err)
			for events < b.N {
				n, d := way.pass(b)
				events, took = events+n, took+d
			}
			after, err := cpuTime(os.Getpid())
			require.NoError(b, err)
			b.ReportMetric(float64(after-before)/float64(events), "cpu-ns/op")
			b.ReportMetric(float64(events)/took.Seconds(), "events/s")
		})
	}
}
