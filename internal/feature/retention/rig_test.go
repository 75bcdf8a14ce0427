package retention_test

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server or a clock and need no processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const (
	tick = 10 * time.Millisecond
	// noGrace is for tests in which nobody else starts runs.
	noGrace = time.Millisecond
)

func newWorld(t *testing.T, shards int) *transfertest.World {
	t.Helper()
	return transfertest.NewWorld(t, shards, host.Options{SnapshotEvery: 10})
}

func purge(w *transfertest.World, o retention.PurgeOptions) (retention.Purged, error) {
	o.Grace = noGrace
	return retention.Purge(w.T.Context(), w.Bus, o)
}
