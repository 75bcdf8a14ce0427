package transfer_test

import (
	"flag"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server and need no processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func newWorld(t *testing.T, shards int) *transfertest.World {
	t.Helper()
	return transfertest.NewWorld(t, shards, host.Options{})
}

// purge purges runs, and returns their archive.
func purge(w *transfertest.World, o retention.PurgeOptions) *filelog.File {
	w.T.Helper()
	path := filepath.Join(w.T.TempDir(), "purged.jsonl")
	o.Grace = time.Millisecond
	o.Archive = func(write func(transfer.Sink) error) error {
		return filelog.WriteFile(path, func(to *filelog.Writer) error { return write(to) })
	}
	_, err := retention.Purge(w.T.Context(), w.Bus, o)
	require.NoError(w.T, err)
	return transfertest.OpenFile(w.T, path)
}
