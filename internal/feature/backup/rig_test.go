package backup_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.DiscardHandler)

// world is a server with a log whose host has the tool pay, of class once.
type world struct {
	*transfertest.World
	// paid counts the calls of pay.
	paid atomic.Int32
}

func newWorld(t *testing.T, shards int) *world {
	t.Helper()
	w := &world{}
	w.World = transfertest.NewWorld(t, shards, withWebhooks(), w.pay(t))
	return w
}

func openWorld(t *testing.T, conn *nats.Conn, o natsbus.InitOptions) *world {
	t.Helper()
	w := &world{}
	w.World = transfertest.OpenWorld(t, conn, o, withWebhooks(), w.pay(t))
	return w
}

func withWebhooks() host.Options {
	return host.Options{Features: all.Features().With("webhooks", webhooks.Made(webhooks.Settings{Allowed: webhooks.Loopback(), Retries: []time.Duration{time.Hour}}))}
}

func (w *world) pay(t *testing.T) tool.Tool {
	pay, err := typed.New(tool.Definition{Name: "pay", Description: "pay", Effect: tool.Once},
		func(context.Context, struct{}) (string, error) { w.paid.Add(1); return "paid", nil })
	require.NoError(t, err)
	return pay
}

func (w *world) work() *world {
	w.Work()
	return w
}

// agent says or calls what its script has.
func agent(script string) *events.Agent { return transfertest.Agent("", script, "pay", "repeat") }

const (
	callPay    = `{"calls":[{"name":"pay","arguments":{}}]}`
	callRepeat = `{"calls":[{"name":"repeat","arguments":{"text":"large "}}]}`
	answer     = transfertest.Answer
)

// outcome waits until the run is done, and returns the code of its last call.
func (w *world) outcome(run events.Run) (code string) {
	w.T.Helper()
	w.Await(run, events.Done)
	for _, body := range w.Bodies(run) {
		e, err := new(events.Codec).Decode(body)
		require.NoError(w.T, err)
		switch p := e.Data.(type) {
		case *events.ToolSuccess:
			code = p.Outcome.Code
		case *events.ToolFailure:
			code = p.Outcome.Code
		}
	}
	return code
}

func (w *world) take(dir string, incremental bool) backup.Taken {
	w.T.Helper()
	taken, err := backup.Take(w.T.Context(), w.Bus, dir, backup.Options{Incremental: incremental, Build: "test"})
	require.NoError(w.T, err)
	return taken
}

func openArchive(t testing.TB, dir string, until time.Time) *backup.Archive {
	t.Helper()
	a, err := backup.Open(t.Context(), dir, until)
	require.NoError(t, err)
	return a
}

func (w *world) restore(dir string, until time.Time, o backup.RestoreOptions) backup.Restored {
	w.T.Helper()
	done, err := backup.Restore(w.T.Context(), openArchive(w.T, dir, until), w.Bus, source(o))
	require.NoError(w.T, err)
	return done
}

func source(o backup.RestoreOptions) backup.RestoreOptions {
	o.Source = "moorebus/gateway/restore"
	return o
}

// files returns the paths of a backup's files of one kind.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	return found
}

// flip changes a byte of a file.
func flip(t *testing.T, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[(at+len(data))%len(data)] ^= 0x10
	require.NoError(t, os.WriteFile(path, data, 0o600))
}
