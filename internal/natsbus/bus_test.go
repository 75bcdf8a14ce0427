package natsbus

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(limited); dir != "" {
		serveLimited(dir)
	}
	commandtest.FilesInMemory()
	// Most of these tests wait for a server or a clock and need no processor.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	// A server that is stopped while a batch is coming in forgets the batch's store.
	const forgets = "github.com/nats-io/nats-server/v2/server."
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(forgets+"(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(forgets+"(*msgBlock).flushLoop"), goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}

var quiet = slog.New(slog.DiscardHandler)

const testAckWait = 2 * time.Second

func startServer(t testing.TB, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Logger = quiet
	srv, err := embedded.Start(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(srv.Shutdown)
	return srv
}

func inProcess(t testing.TB, srv *embedded.Server) *nats.Conn {
	t.Helper()
	conn, err := srv.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

func openBus(t testing.TB, conn *nats.Conn, shards int) *Bus {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, Init(ctx, conn, InitOptions{Shards: shards, AckWait: testAckWait, Pools: []string{"web"}}))
	return reopenBus(t, conn, GroupCommitAuto)
}

// reopenBus opens a bus that is set up.
func reopenBus(t testing.TB, conn *nats.Conn, group GroupCommit) *Bus {
	t.Helper()
	bus, err := Open(context.Background(), conn, Options{Logger: quiet, AckWait: testAckWait, GroupCommit: group})
	require.NoError(t, err)
	return bus
}

// patient is another bus on the connection, for which no answer comes too late: its
// server stays, but hundreds may ask it at once on a machine that is busy.
func patient(t testing.TB, bus *Bus, group GroupCommit) *Bus {
	t.Helper()
	bus, err := Open(context.Background(), bus.Conn(), Options{Logger: quiet, AckWait: testAckWait, GroupCommit: group, RequestTimeout: patience})
	require.NoError(t, err)
	return bus
}

// connectTo connects to a server's process.
func connectTo(t testing.TB, srv *natstest.Server) *nats.Conn {
	t.Helper()
	conn, err := natsconn.Connect(context.Background(), natsconn.ConnectOptions{URL: srv.URL, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// newBus is a bus on a server of its own.
func newBus(t testing.TB, shards int) *Bus {
	t.Helper()
	return patient(t, openBus(t, connectTo(t, natstest.Start(t, natstest.Options{})), shards), GroupCommitAuto)
}

// embeddedBus is a bus on a server in this process.
func embeddedBus(t testing.TB, shards int) *Bus {
	t.Helper()
	return patient(t, openBus(t, inProcess(t, startServer(t, embedded.Options{})), shards), GroupCommitAuto)
}

// flushedBus is a bus on a server in this process, which flushes in groups.
func flushedBus(t testing.TB, shards int) *Bus {
	t.Helper()
	bus, _ := groupFlushed(t, shards)
	return bus
}

// joinedBus is a bus of another connection to such a server.
func joinedBus(t testing.TB, shards int) *Bus {
	t.Helper()
	_, srv := groupFlushed(t, shards)
	conn, err := natsconn.Connect(context.Background(), natsconn.ConnectOptions{URL: srv.ClientURL(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	bus := patient(t, reopenBus(t, conn, GroupCommitAuto), GroupCommitAuto)
	require.Nil(t, bus.opts.Flush)
	return bus
}

// onDisk is a directory of a server that flushes in groups. [testing.T.TempDir] may be in memory.
func onDisk(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "moorebus-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func groupFlushed(t testing.TB, shards int) (*Bus, *embedded.Server) {
	t.Helper()
	srv := startServer(t, embedded.Options{Dir: onDisk(t), Listen: "127.0.0.1:0", GroupFlush: true, SyncAlways: true})
	conn := inProcess(t, srv)
	require.NoError(t, Init(context.Background(), conn, InitOptions{Shards: shards, AckWait: testAckWait, Pools: []string{"web"}, Sync: SyncGroup}))
	bus, err := Open(context.Background(), conn, Options{Logger: quiet, AckWait: testAckWait, RequestTimeout: patience, Flush: srv.Flush})
	require.NoError(t, err)
	require.False(t, bus.grouped.Load())
	return bus, srv
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for shards, open := range map[int]func(testing.TB, int) *Bus{1: flushedBus, 2: joinedBus, 3: newBus} {
		t.Run(fmt.Sprint(shards, " shards"), func(t *testing.T) {
			if testing.Short() && shards > 1 {
				t.Skip("-short") // reason: one shard is enough for a first look
			}
			t.Parallel()
			t.Run("Queue", func(t *testing.T) {
				t.Parallel()
				bus := open(t, shards)
				journaltest.Queue(t, func(*testing.T) journaltest.LogQueue { return bus })
			})
			bus := open(t, shards)
			t.Run("Log", func(t *testing.T) { journaltest.Log(t, func(*testing.T) journal.Log { return bus }) })
			t.Run("Follow", func(t *testing.T) { journaltest.Follow(t, func(*testing.T) journal.Log { return bus }) })
			t.Run("Fetcher", func(t *testing.T) { journaltest.Fetcher(t, func(*testing.T) journaltest.LogFetcher { return bus }) })
			t.Run("Feed", func(t *testing.T) { journaltest.Feed(t, func(*testing.T) journaltest.LogFeed { return bus }) })
			t.Run("KV", func(t *testing.T) {
				journaltest.KV(t, func(t *testing.T) (kv.Store, kv.Store) { return bus, patient(t, bus, GroupCommitAuto) })
			})
			t.Run("Blobs", func(t *testing.T) { journaltest.Blobs(t, func(*testing.T) journal.Blobs { return bus }) })
			t.Run("Snapshots", func(t *testing.T) {
				journaltest.Snapshots(t, func(*testing.T) journaltest.LogSnapshots { return bus })
			})
			t.Run("Purger", func(t *testing.T) { journaltest.Purger(t, func(*testing.T) journaltest.LogPurger { return bus }) })
			t.Run("Runless", func(t *testing.T) {
				journaltest.Runless(t, func(*testing.T) (journaltest.LogRunless, func(int, string, string)) {
					return bus, func(_ int, subject, body string) {
						_, err := bus.JS.Publish(t.Context(), subject, []byte(body))
						require.NoError(t, err)
					}
				})
			})
			t.Run("Peers", func(t *testing.T) {
				t.Parallel()
				journaltest.Peers(t, journaltest.InRealTime, func(t *testing.T) (journaltest.LogPeers, journaltest.LogPeers) {
					return bus, patient(t, bus, GroupCommitAuto)
				})
			})
			t.Run("Questions", func(t *testing.T) {
				journaltest.Questions(t, func(t *testing.T) (ports.Questions, ports.Questions) { return bus, patient(t, bus, GroupCommitAuto) })
			})
		})
	}
	t.Run("Timers", func(t *testing.T) {
		t.Parallel()
		journaltest.Timers(t, func(t *testing.T) journaltest.LogTimers { return newBus(t, 3) })
	})
	t.Run("Alarms", func(t *testing.T) {
		t.Parallel()
		journaltest.Alarms(t, func(t *testing.T) journaltest.LogAlarms { return newBus(t, 1) })
	})
}

// TestReadsWithinReads has more readers than there are turns to ask for a page, each
// of which reads again while it takes its records.
func TestReadsWithinReads(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	run := journaltest.NewRun(t, bus)
	journaltest.AppendAll(t, bus, run, "one", "two")
	const readers = 2 * api.PagesAtOnce
	var taking, all sync.WaitGroup
	taking.Add(readers)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range readers {
		all.Go(func() {
			first := true
			for _, err := range bus.Read(ctx, run, 0) {
				if err != nil {
					t.Error(err)
				}
				if !first {
					continue
				}
				first = false
				taking.Done()
				taking.Wait() // all are in the middle of their records
				recs, err := journaltest.Collect(bus.Read(ctx, run, 0))
				if err != nil || len(recs) != 2 {
					t.Errorf("%d records, %v", len(recs), err)
				}
			}
		})
	}
	all.Wait()
}
