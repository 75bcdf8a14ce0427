package natsbus

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// clusters bounds how many there are at once: servers elect leaders by the clock, and
// many of them on a small machine are never done with that.
var clusters = make(chan struct{}, 3)

// startCluster starts three servers that replicate.
func startCluster(t *testing.T, options func(int) natstest.Options) []*natstest.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: servers take seconds to elect leaders
	}
	clusters <- struct{}{}
	t.Cleanup(func() { <-clusters })
	return natstest.Cluster(t, options)
}

func plain(int) natstest.Options { return natstest.Options{} }

// openCluster starts a cluster and sets it up with three replicas of everything.
func openCluster(t *testing.T, o InitOptions) ([]*natstest.Server, *Bus) {
	t.Helper()
	servers := startCluster(t, plain)
	return servers, setUpCluster(t, servers, o)
}

// setUpCluster connects to servers and sets them up with three replicas of everything.
func setUpCluster(t *testing.T, servers []*natstest.Server, o InitOptions) *Bus {
	t.Helper()
	urls := make([]string, len(servers))
	for i, srv := range servers {
		urls[i] = srv.URL
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	conn, err := natsconn.Connect(ctx, natsconn.ConnectOptions{URL: strings.Join(urls, ","), Logger: quiet})
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
	return bus
}

// TestCluster runs the log's part of the suite on three replicas, where lost races have
// another code and reads can lag. Group commit goes both ways: its first append is alone.
func TestCluster(t *testing.T) {
	t.Parallel()
	of := entrystore.Owner{Namespace: "default", Agent: "keeper"}
	_, bus := openCluster(t, InitOptions{Buckets: entrystore.Buckets(of)})
	grouping := patient(t, bus, GroupCommitOn)
	t.Run("Log", func(t *testing.T) { journaltest.Log(t, func(*testing.T) journal.Log { return grouping }) })
	t.Run("Follow", func(t *testing.T) { journaltest.Follow(t, func(*testing.T) journal.Log { return grouping }) })
	t.Run("Storage", func(t *testing.T) { testStorageOnReplicas(t, patient(t, bus, GroupCommitAuto), of) })
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
	leader.Kill()
	for len(waiting) > 0 {
		d := nextTimer(t, got)
		require.False(t, time.Now().Before(at), "it fired too early")
		delete(waiting, d.Timer.Run.ID)
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

// testStorageOnReplicas: what was just saved is found by its tags and by its value,
// whichever server answers.
func testStorageOnReplicas(t *testing.T, bus *Bus, of entrystore.Owner) {
	for i := range 60 {
		tag, value := fmt.Sprint("t", i), fmt.Sprintf("value %d.", i)
		require.NoError(t, entrystore.New(bus).Save(t.Context(), of, entrystore.Actor, events.Entry{Tags: []string{tag}, Value: value}))
		bucket := entrystore.Bucket(of, entrystore.Actor).Name
		end, err := bus.LeaderEnd(t.Context(), kvStreamPrefix+bucket, kvSubjectPrefix+bucket+".tag.*.*")
		require.NoError(t, err)
		require.Equal(t, uint64(2*i+1), end, "a pointer and an entry each: the read has to come to this pointer")
		for _, q := range []entrystore.Query{{Tags: []string{tag}}, {Value: value}} {
			if q.Value != "" && i%20 > 0 {
				continue // it reads all
			}
			found, err := entrystore.New(bus).Find(t.Context(), of, q)
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
	bus.Replicas = 3 // so that the leader is asked
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
		if _, err := bus.LastOn(t.Context(), events.StreamName(0), run.Filter()); err == nil {
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
