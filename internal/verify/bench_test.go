package verify_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/journal"
)

// BenchmarkVerify verifies a log in memory, all cores together. An operation is an
// event.
func BenchmarkVerify(b *testing.B) {
	log := manyRuns(b, 1, 300)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		report, err := verify.Log(b.Context(), log, machine(), verify.Options{All: true})
		require.NoError(b, err)
		n += int(report.Events)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkScan is the part of BenchmarkVerify that the log takes.
func BenchmarkScan(b *testing.B) {
	log := manyRuns(b, 1, 300)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		for _, err := range log.Scan(b.Context(), 0, journal.Filter{}, 0) {
			require.NoError(b, err)
			n++
		}
	}
}
