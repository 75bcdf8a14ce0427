package natsbus

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func limitsOf(t *testing.T, conn *nats.Conn, shards int) (all []int64) {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	for shard := range shards {
		stream, err := js.Stream(t.Context(), events.StreamName(shard))
		require.NoError(t, err)
		all = append(all, stream.CachedInfo().Config.MaxBytes)
	}
	return all
}

// The log gets two thirds of what may be stored, anew with each init, until somebody
// sets a limit; and never less than it holds.
func TestLimits(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	init := func(o InitOptions) []int64 {
		o.Shards = 2
		require.NoError(t, Init(ctx, conn, o))
		return limitsOf(t, conn, 2)
	}
	require.Equal(t, []int64{-1, -1}, init(InitOptions{}), "nothing is known")
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Warning), "has no max_bytes")
	require.Equal(t, []int64{20 << 20, 20 << 20}, init(InitOptions{Storable: 60 << 20}))
	require.Equal(t, []int64{20 << 20, 20 << 20}, init(InitOptions{}), "what was chosen stays")
	require.Equal(t, []int64{10 << 20, 10 << 20}, init(InitOptions{Storable: 60 << 20, Reserved: 70 << 20}), "others than the log have 30 MiB")
	require.Equal(t, []int64{10 << 20, 10 << 20}, init(InitOptions{Storable: 60 << 20, Reserved: 200 << 20}), "nothing is left to choose from")
	require.Equal(t, []int64{10 << 20, 10 << 20}, init(InitOptions{Storable: 30 << 20}))
	require.NotContains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Warning), "max_bytes")

	bus := reopenBus(t, conn, GroupCommitOff)
	run := journaltest.NewRun(t, bus)
	for run.Shard != 0 {
		run = journaltest.NewRun(t, bus)
	}
	var last uint64
	for range 10 {
		var err error
		last, err = bus.Append(ctx, run, last, entryTo(run, events.Acting, "web", make([]byte, 500<<10)))
		require.NoError(t, err)
	}
	require.ErrorContains(t, Init(ctx, conn, InitOptions{MaxBytes: 1 << 20}), "it holds")
	got := init(InitOptions{Storable: 6 << 20})
	require.Equal(t, int64(2<<20), got[1])
	require.Greater(t, got[0], int64(4<<20), "it is not below what is there")
	require.ErrorIs(t, bus.Ready(ctx), journal.ErrFull)
	require.NotErrorIs(t, bus.Ready(ctx), journal.ErrDiskFull)
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad), "is full")
	require.Equal(t, []int64{40 << 20, 40 << 20}, init(InitOptions{MaxBytes: 40 << 20, Storable: 6 << 20}))
	require.Equal(t, []int64{40 << 20, 40 << 20}, init(InitOptions{Storable: 6 << 20}), "what was set stays")
	require.NoError(t, bus.Ready(ctx))
}

// bounded is a server whose streams may have so many bytes.
func bounded(t *testing.T, dir string, room int64) (conn *nats.Conn, stop func()) {
	t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir, JetStreamMaxStore: room})
	require.NoError(t, err)
	srv.Start()
	require.True(t, srv.ReadyForConnections(patience))
	conn, err = nats.Connect("", nats.InProcessServer(srv))
	require.NoError(t, err)
	return conn, func() { conn.Close(); srv.Shutdown(); srv.WaitForShutdown() }
}

// A server that has less room after a restart still has its log, with the limit of before.
func TestLimitsOfASmallerServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, room := range []int64{300 << 20, 30 << 20} {
		conn, stop := bounded(t, dir, room)
		said := ""
		require.NoError(t, Init(t.Context(), conn, InitOptions{Storable: room, Say: func(line string) { said += line }}))
		require.Equal(t, i == 1, strings.Contains(said, "stream MOORE_0 keeps its limit of 209715200 bytes"), said)
		require.Equal(t, []int64{200 << 20}, limitsOf(t, conn, 1))
		bus := reopenBus(t, conn, GroupCommitOff)
		journaltest.AppendAll(t, bus, journaltest.NewRun(t, bus), "1", "2")
		stop()
	}
}

// What others have reserved cannot be the log's: a limit that is asked for is refused, and
// one that init chose gives way.
func TestLimitsBesideOthers(t *testing.T) {
	t.Parallel()
	conn, stop := bounded(t, t.TempDir(), 100<<20)
	t.Cleanup(stop)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "other", Subjects: []string{"other"}, MaxBytes: 50 << 20})
	require.NoError(t, err)
	init := func(o InitOptions) (limit int64, said string) {
		o.Say = func(line string) { said += line + "\n" }
		require.NoError(t, Init(t.Context(), conn, o))
		return limitsOf(t, conn, 1)[0], said
	}
	err = Init(t.Context(), conn, InitOptions{MaxBytes: 80 << 20})
	require.ErrorContains(t, err, "stream MOORE_0 with max bytes 83886080")
	require.ErrorContains(t, err, "choose a smaller --max-bytes")
	require.NotErrorIs(t, err, journal.ErrFull)

	limit, said := init(InitOptions{})
	require.EqualValues(t, -1, limit)
	require.Contains(t, said, "MOORE_0 has no limit and may fill the disk: set one with --max-bytes")
	limit, said = init(InitOptions{Storable: 100 << 20})
	require.EqualValues(t, -1, limit)
	require.Contains(t, said, "MOORE_0 has no limit: ")
	limit, said = init(InitOptions{Storable: 99 << 20, Reserved: 50 << 20})
	require.InDelta(t, 49<<20*2/3, limit, 8)
	require.Empty(t, said)
	again, said := init(InitOptions{Storable: 200 << 20})
	require.Equal(t, limit, again)
	require.Contains(t, said, "MOORE_0 keeps its limit of ")
}

// A server of the same cluster says how much there is room for, but not how this one
// flushes. Where others have less room, the limit that follows from it gives way.
func TestMonitorOfACluster(t *testing.T) {
	t.Parallel()
	servers := startCluster(t, func(i int) natstest.Options {
		return natstest.Options{JetStream: "max_file_store: " + []string{"50M", "123M", "50M"}[i]}
	})
	conn, err := nats.Connect(servers[0].URL)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	var said natsconn.Monitored
	require.Eventually(t, func() bool {
		said, err = natsconn.Monitor(t.Context(), conn, servers[1].Monitor)
		return err == nil
	}, patience, 20*time.Millisecond, "a cluster that has formed")
	require.Equal(t, natsconn.Monitored{Storable: 123_000_000}, said)
	var notes atomic.Pointer[string]
	o := InitOptions{Storable: said.Storable, Say: func(line string) { notes.Store(&line) }}
	bus := setUpCluster(t, servers, o)
	require.Equal(t, []int64{-1}, limitsOf(t, bus.Conn(), 1))
	require.Contains(t, *notes.Load(), "MOORE_0 has no limit")
	o.Replicas = 3
	require.NoError(t, Init(t.Context(), bus.Conn(), o))
	require.Equal(t, []int64{-1}, limitsOf(t, bus.Conn(), 1), "again")
}

// What the server's monitoring says of flushing is believed, if it is that server's.
func TestMonitor(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{true, false} {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: server.RANDOM_PORT,
			NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 123 << 20, SyncAlways: always,
		})
		require.NoError(t, err)
		srv.Start()
		t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
		require.True(t, srv.ReadyForConnections(patience))
		conn, err := nats.Connect(srv.ClientURL())
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		require.NoError(t, Init(t.Context(), conn, InitOptions{}))
		at := "http://" + srv.MonitorAddr().String()
		said, err := natsconn.Monitor(t.Context(), conn, at)
		require.NoError(t, err)
		require.Equal(t, natsconn.Monitored{Own: true, SyncAlways: always, Storable: 123 << 20}, said)
		findings := Check(t.Context(), conn, Options{Logger: quiet, Monitor: at})
		if always {
			require.Contains(t, texts(findings, Good), "which flushes every message")
			require.NotContains(t, texts(findings, Warning), "sync_interval")
		} else {
			require.Contains(t, texts(findings, Warning), "does not flush every message")
		}
		require.Contains(t, texts(findings, Warning), `the log says "unknown" of how its server flushes`)
		require.NoError(t, Init(t.Context(), conn, InitOptions{Sync: SyncOf(said.SyncAlways)}))
		require.NotContains(t, texts(Check(t.Context(), conn, Options{Logger: quiet, Monitor: at}), Warning), "how its server flushes")
		require.Equal(t, always, reopenBus(t, conn, GroupCommitAuto).grouped.Load())
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"server_id":"X","config":{"sync_always":true}}`))
		}))
		t.Cleanup(elsewhere.Close)
		_, err = natsconn.Monitor(t.Context(), conn, elsewhere.URL)
		require.ErrorIs(t, err, natsconn.ErrNoMonitoring)
		require.NotContains(t, texts(Check(t.Context(), conn, Options{Logger: quiet, Monitor: elsewhere.URL}), Good), "flushes")
	}
}
