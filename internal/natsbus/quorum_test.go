package natsbus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	webhooks "github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answersWithin is how soon Quorum and Ready answer, whatever has happened to the servers, on a
// machine that does other things as well.
const answersWithin = 2 * quorumTimeout

func TestQuorum(t *testing.T) {
	t.Parallel()
	servers, bus := openCluster(t, InitOptions{Shards: 2})
	quorum := func(want bool, check func(context.Context) error) string {
		t.Helper()
		var last error
		require.Eventually(t, func() bool {
			began := time.Now()
			last = check(t.Context())
			require.Less(t, time.Since(began), answersWithin, "it answers in time: %v", last)
			return (last == nil) == want
		}, time.Minute, 10*time.Millisecond)
		if last == nil {
			return ""
		}
		return last.Error()
	}
	quorum(true, bus.Quorum)
	quorum(true, bus.Ready)
	for round, away := range [][]*natstest.Server{servers[:2], servers[1:]} {
		for _, s := range away {
			s.Kill()
		}
		require.Regexp(t, `MOORE_\d|the bus is away`, quorum(false, bus.Quorum), "round %d", round)
		require.Eventually(t, func() bool {
			err := bus.Quorum(t.Context())
			if err == nil {
				return false // the leader has not missed the others yet, to which the bus has just connected
			}
			require.NotEmpty(t, quorum(false, bus.Ready))
			leads := strings.Contains(err.Error(), "servers are there")
			return !leads && bus.Conn().IsConnected()
		}, time.Minute, 10*time.Millisecond, "while the last leader believes that it leads, and after that")
		natstest.StartAll(away)
		quorum(true, bus.Quorum)
		quorum(true, bus.Ready)
	}
	servers[0].Kill()
	require.Eventually(t, func() bool { return bus.Quorum(t.Context()) == nil }, time.Minute, 10*time.Millisecond, "two of three servers are enough")
}

// The leader does not know that two servers hang: their connections stay. A write that waits for
// them is no rival of the next one.
func TestQuorumOfServersThatHang(t *testing.T) {
	t.Parallel()
	servers, bus := openCluster(t, InitOptions{})
	var leader *natstest.Server
	require.Eventually(t, func() bool {
		leader = leaderOf(t.Context(), bus, servers, events.StreamName(0))
		return leader != nil
	}, time.Minute, 10*time.Millisecond)
	const key = "hook.default.one"
	revision, err := bus.Update(t.Context(), webhooks.Bucket, kv.Item{Key: key, Value: []byte("0")})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		if leaderOf(t.Context(), bus, servers, kvStreamPrefix+webhooks.Bucket.Name) == leader {
			return true
		}
		_, _ = bus.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+kvStreamPrefix+webhooks.Bucket.Name, []byte(`{"placement":{"preferred":"`+leader.Name+`"}}`), time.Second)
		return false
	}, time.Minute, 100*time.Millisecond)
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: leader.URL, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	near, err := Open(t.Context(), conn, Options{Logger: quiet, RequestTimeout: time.Second})
	require.NoError(t, err)
	for _, s := range servers {
		if s != leader {
			s.Pause()
		}
	}
	began := time.Now()
	require.Eventually(t, func() bool { return bus.Quorum(t.Context()) != nil }, time.Minute, 10*time.Millisecond)
	t.Logf("it is known after %s", time.Since(began).Round(100*time.Millisecond))
	asked := time.Now()
	require.Error(t, bus.Ready(t.Context()))
	require.Less(t, time.Since(asked), answersWithin)
	for _, value := range []string{"1", "2", "3"} {
		_, err = near.Update(t.Context(), webhooks.Bucket, kv.Item{Key: key, Value: []byte(value), Revision: revision})
		require.Error(t, err)
		require.NotErrorIs(t, err, journal.ErrConflict)
	}
	for _, s := range servers {
		if s != leader {
			s.Resume()
		}
	}
	require.Eventually(t, func() bool { return bus.Quorum(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err = bus.Update(t.Context(), webhooks.Bucket, kv.Item{Key: key, Value: []byte("4"), Revision: revision})
		return err == nil || errors.Is(err, journal.ErrConflict)
	}, time.Minute, 10*time.Millisecond, "the first write was stored, or given up")
}

// However many ask, the servers answer about once a second.
func TestQuorumIsAskedOnceForAll(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	var asked atomic.Int64
	_, err := bus.Conn().Subscribe("$JS.API.STREAM.INFO."+events.StreamName(0), func(*nats.Msg) { asked.Add(1) })
	require.NoError(t, err)
	require.NoError(t, bus.Conn().Flush())
	began := time.Now()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				assert.NoError(t, bus.Quorum(t.Context()))
			}
		})
	}
	all.Wait()
	require.NoError(t, bus.Conn().Flush())
	most := 1 + int64(time.Since(began)/quorumFresh)
	require.LessOrEqual(t, asked.Load(), most)
	require.Positive(t, asked.Load(), "the test sees the questions")
}

// A user who may not ask is not ready, and reads what is missing. The end of one who asks is
// nobody else's.
func TestQuorumThatMayNotBeAsked(t *testing.T) {
	t.Parallel()
	operator, worker := guardedServer(t, "$JS.API.STREAM.INFO.>")
	require.NoError(t, Init(t.Context(), operator, InitOptions{}))
	bus, err := Open(t.Context(), worker, Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.ErrorIs(t, bus.Quorum(gone), context.Canceled)
	require.NoError(t, bus.Quorum(t.Context()))

	operator, worker = guardedServer(t, "nothing")
	require.NoError(t, Init(t.Context(), operator, InitOptions{}))
	client, _, err := api.New(worker, time.Minute, quiet)
	require.NoError(t, err)
	refused := &Bus{Client: client, shards: 1}
	for _, check := range []func(context.Context) error{refused.Quorum, refused.Ready} {
		err = check(t.Context())
		require.ErrorIs(t, err, journal.ErrDenied)
		require.ErrorContains(t, err, "$JS.API.STREAM.INFO.MOORE_0")
	}
}

func TestCheckQuorum(t *testing.T) {
	t.Parallel()
	peer := func(offline bool, silent time.Duration) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Offline: offline, Active: silent}
	}
	here, away, silent := peer(false, time.Second), peer(true, 0), peer(false, silentAfter+1)
	for name, c := range map[string]struct {
		cluster *jetstream.ClusterInfo
		want    string
	}{
		"a server alone":           {nil, ""},
		"one replica in a cluster": {&jetstream.ClusterInfo{Leader: "a"}, ""},
		"all are there":            {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{here, here}}, ""},
		"one is away":              {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{here, away}}, ""},
		"two are away":             {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{away, away}}, "1 of its 3 servers are up, and it needs 2"},
		"two are silent":           {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{silent, silent}}, "1 of its 3"},
		"half are there":           {&jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{here, away, away}}, "2 of its 4 servers are up, and it needs 3"},
		"no leader":                {&jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{here, here}}, "no leader"},
	} {
		err := checkQuorum(&jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "MOORE_0"}, Cluster: c.cluster})
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, "MOORE_0", name)
	}
}
