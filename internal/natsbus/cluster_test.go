package natsbus

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/racing"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// oneCluster is held by the test that has a cluster: servers elect leaders by the
// clock, and nine of them on a small machine are never done with that.
var oneCluster sync.Mutex

// clusterOptions are those of three servers that replicate; the ports are free when
// it returns.
func clusterOptions(t *testing.T) []server.Options {
	t.Helper()
	oneCluster.Lock()
	t.Cleanup(oneCluster.Unlock)
	addresses, err := freeport.Addresses(6)
	require.NoError(t, err)
	var routes []*url.URL
	var ports []int
	for _, address := range addresses {
		at, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		ports = append(ports, at.Port)
	}
	for _, address := range addresses[:3] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: address})
	}
	all := make([]server.Options, 3)
	for i := range all {
		all[i] = server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: ports[3+i], NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(), Routes: routes,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]},
		}
	}
	return all
}

// startCluster starts servers and returns when they take connections.
func startCluster(t *testing.T, options []server.Options) []*server.Server {
	t.Helper()
	said := tellElections(t)
	all := make([]*server.Server, len(options))
	for i, o := range options {
		srv, err := server.NewServer(&o)
		require.NoError(t, err)
		srv.SetLoggerV2(said, false, false, false)
		t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
		all[i] = srv
	}
	for _, srv := range all {
		srv.Start()
	}
	for _, srv := range all {
		require.True(t, srv.ReadyForConnections(patience))
	}
	return all
}

// elections keep what servers say of their leaders: an append may be without an answer
// because of one, or because the machine is slow.
type elections struct {
	mu    sync.Mutex
	lines []string
}

// tellElections returns a logger for servers, whose lines are shown if the test fails.
func tellElections(t *testing.T) *elections {
	e := &elections{}
	t.Cleanup(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if t.Failed() {
			t.Log("the servers of the cluster:\n" + strings.Join(e.lines, "\n"))
		}
	})
	return e
}

func (e *elections) note(format string, v ...any) {
	line := fmt.Sprintf(format, v...)
	if !strings.Contains(line, "leader") && !strings.Contains(line, "quorum") {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, time.Now().Format(time.StampMilli)+" "+line)
}

func (e *elections) Noticef(format string, v ...any) { e.note(format, v...) }
func (e *elections) Warnf(format string, v ...any)   { e.note(format, v...) }
func (e *elections) Errorf(format string, v ...any)  { e.note(format, v...) }
func (e *elections) Fatalf(format string, v ...any)  { e.note(format, v...) }
func (e *elections) Debugf(string, ...any)           {}
func (e *elections) Tracef(string, ...any)           {}

// openCluster starts a cluster and sets it up with three replicas of everything.
func openCluster(t *testing.T, o InitOptions) ([]*server.Server, *Bus) {
	t.Helper()
	return setUpCluster(t, startCluster(t, clusterOptions(t)), o)
}

// setUpCluster connects to servers and sets them up with three replicas of everything.
func setUpCluster(t *testing.T, servers []*server.Server, o InitOptions) ([]*server.Server, *Bus) {
	t.Helper()
	urls := make([]string, len(servers))
	for i, srv := range servers {
		urls[i] = srv.ClientURL()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	conn, err := Connect(ctx, ConnectOptions{URL: strings.Join(urls, ","), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	o.Replicas = 3
	wait := time.Second // who asks before there is a leader is not answered
	require.Eventually(t, func() bool {
		wait *= 2
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		return Init(short, conn, o) == nil
	}, 3*time.Minute, 50*time.Millisecond)
	bus, err := Wait(ctx, conn, Options{Logger: quiet})
	require.NoError(t, err)
	return servers, bus
}

// TestCluster runs the log's part of the suite on three replicas, where lost
// races have another code and reads can lag.
func TestCluster(t *testing.T) {
	t.Parallel()
	_, bus := openCluster(t, InitOptions{})
	bus = patient(t, bus, GroupCommitAuto)
	journaltest.Log(t, func(*testing.T) journal.Log { return bus })
	journaltest.Follow(t, func(*testing.T) journal.Log { return bus })
	grouping := patient(t, bus, GroupCommitOn)
	t.Run("group commit", func(t *testing.T) { journaltest.Log(t, func(*testing.T) journal.Log { return grouping }) })
	require.Contains(t, texts(Check(t.Context(), bus.Conn(), Options{Logger: quiet}), Good), "on 3 servers")
	requireReplicas(t, bus.Conn(), 3)
}

// TestTimersOutliveTheirLeader kills the server that keeps the time.
func TestTimersOutliveTheirLeader(t *testing.T) {
	t.Parallel()
	servers, bus := openCluster(t, InitOptions{AckWait: testAckWait})
	at := time.Now().Add(3 * time.Second)
	waiting := map[string]bool{}
	for range 20 {
		run := journaltest.NewRun(t, bus)
		require.NoError(t, bus.SetTimer(t.Context(), run, "run", at, nil))
		waiting[run.ID] = true
	}
	got := consumeTimers(t, bus)
	leader := leaderOf(t.Context(), bus, servers, timerStream)
	require.NotNil(t, leader)
	leader.Shutdown()
	leader.WaitForShutdown()
	for len(waiting) > 0 {
		d := nextTimer(t, got)
		require.False(t, time.Now().Before(at), "it fired too early")
		delete(waiting, d.Timer().Run.ID)
		require.NoError(t, d.Ack())
	}
}

// requireReplicas looks at every stream of the account and at its consumers,
// whatever made them.
func requireReplicas(t *testing.T, conn *nats.Conn, want int) {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	streams, consumers := 0, 0
	infos := js.ListStreams(t.Context())
	for info := range infos.Info() {
		streams++
		require.Equal(t, want, info.Config.Replicas, info.Config.Name)
		stream, err := js.Stream(t.Context(), info.Config.Name)
		require.NoError(t, err)
		list := stream.ListConsumers(t.Context())
		for c := range list.Info() {
			consumers++
			require.Contains(t, []int{0, want}, c.Config.Replicas, "0 is as many as the stream: %s", c.Name)
			require.Len(t, c.Cluster.Replicas, want-1, c.Name)
		}
		require.NoError(t, list.Err())
	}
	require.NoError(t, infos.Err())
	require.Greater(t, streams, 4, "log, agents, providers, tools, results")
	require.Greater(t, consumers, 5)
}

// TestStorageOnReplicas: what was just saved is found by its tags and by its value,
// whichever server answers.
func TestStorageOnReplicas(t *testing.T) {
	t.Parallel()
	of := journal.StorageOf{Namespace: "default", Agent: "keeper"}
	_, bus := openCluster(t, InitOptions{Storage: []journal.StorageOf{of}})
	bus = patient(t, bus, GroupCommitAuto)
	for i := range racing.Size(200, 60) {
		tag, value := fmt.Sprint("t", i), fmt.Sprintf("value %d.", i)
		require.NoError(t, bus.SaveEntry(t.Context(), of, journal.WrittenByActor, events.Entry{Tags: []string{tag}, Value: value}))
		bucket := storageBucket(of, journal.WrittenByActor)
		end, err := bus.endOfKeys(t.Context(), kvStreamPrefix+bucket, kvSubjectPrefix+bucket+"."+tagKey(tag)+"*")
		require.NoError(t, err)
		require.Equal(t, uint64(2*i+1), end, "a pointer and an entry each: the read has to come to this pointer")
		for _, q := range []journal.StorageQuery{{Tags: []string{tag}}, {Value: value}} {
			if q.Value != "" && i%20 > 0 {
				continue // it reads all
			}
			found, err := bus.FindEntries(t.Context(), of, q)
			require.NoError(t, err)
			require.Len(t, found.Entries, 1, "%+v", q)
		}
	}
}

// A run that was purged is nowhere, whoever answers: also a replica that still has
// it. Here that is a mirror, which never removes anything.
func TestPurgedRunsOnAReplicaThatLags(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	bus.replicas = 3 // so that the leader is asked
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	mirror, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "LAGS", Mirror: &jetstream.StreamSource{Name: events.StreamName(0)}, MirrorDirect: true, Storage: jetstream.MemoryStorage,
	})
	require.NoError(t, err)
	run := journaltest.NewRun(t, bus)
	last := journaltest.AppendAll(t, bus, run, "1", "2", "3")
	require.Eventually(t, func() bool {
		info, err := mirror.Info(t.Context())
		return err == nil && info.State.LastSeq == last
	}, patience, time.Millisecond)
	_, err = bus.Purge(t.Context(), run, last)
	require.NoError(t, err)
	stale := 0
	for range 60 {
		if _, err := bus.last(t.Context(), events.StreamName(0), run.Filter()); err == nil {
			stale++
		}
		left, err := journaltest.Collect(bus.Read(t.Context(), run, 0))
		require.NoError(t, err)
		require.Empty(t, left)
		_, err = journaltest.Collect(bus.Read(t.Context(), run, 1))
		require.ErrorIs(t, err, journal.ErrNotFound)
		left, err = journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	require.Positive(t, stale, "the mirror never answered")
}
