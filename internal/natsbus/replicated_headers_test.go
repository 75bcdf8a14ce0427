package natsbus

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// publishHeaders are the headers by which a publisher tells JetStream what to do, as
// nats-server 2.15.2 knows them, with values that a stream may refuse.
var publishHeaders = []map[string]string{
	{"Nats-Msg-Id": "x"}, {"Nats-Msg-Id": ""}, {"Nats-Expected-Stream": "OTHER"},
	{"Nats-Expected-Last-Sequence": "77777"}, {"Nats-Expected-Last-Sequence": "x"}, {"Nats-Expected-Last-Sequence": "-1"},
	{"Nats-Expected-Last-Subject-Sequence": "77777"}, {"Nats-Expected-Last-Subject-Sequence": "x"},
	{"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Expected-Last-Subject-Sequence-Subject": ">"},
	{"Nats-Expected-Last-Subject-Sequence-Subject": "a b"},
	{"Nats-Rollup": "sub"}, {"Nats-Rollup": "x"}, {"Nats-Rollup": "all"},
	{"Nats-TTL": "1s"}, {"Nats-TTL": "never"}, {"Nats-TTL": "x"}, {"Nats-TTL": "-5"}, {"Nats-TTL": "0"},
	{"Nats-Incr": "1"}, {"Nats-Incr": "x"}, {"Nats-Counter-Sources": "{}"}, {"Nats-Counter-Sources": "x"},
	{"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}, {"Nats-Batch-Id": "c", "Nats-Batch-Sequence": "7"},
	{"Nats-Batch-Id": "d", "Nats-Batch-Sequence": "x"}, {"Nats-Batch-Sequence": "1"}, {"Nats-Batch-Commit": "1"}, {"Nats-Batch-Commit": "eob"},
	{"Nats-Batch-Id": "e", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1", "Nats-Expected-Last-Msg-Id": "nope"},
	{"Nats-Schedule": "@at 2009-11-10T23:00:00Z", "Nats-Schedule-Target": "moore.0.x"}, {"Nats-Schedule": "x"},
	{"Nats-Schedule-TTL": "x"}, {"Nats-Schedule-Target": ">"}, {"Nats-Schedule-Source": ">"}, {"Nats-Schedule-Rollup": "all"}, {"Nats-Schedule-Time-Zone": "x"},
	{"Nats-Scheduler": "moore.0.x"}, {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "moore.0.x"}, {"Nats-Schedule-Next": "x"},
	{"Nats-Stream-Source": "OTHER 1 > > x"}, {"Nats-Last-Consumer": "x"}, {"Nats-Last-Stream": "x"}, {"Nats-Consumer-Stalled": "x"},
	{"Nats-Msg-Size": "x"}, {"Nats-Response-Type": "x"}, {"Nats-Marker-Reason": "MaxAge"}, {"Nats-Marker-Reason": "Purge"},
	{"Nats-Stream": "x"}, {"Nats-Sequence": "x"}, {"Nats-Time-Stamp": "x"}, {"Nats-Subject": "x"}, {"Nats-Last-Sequence": "x"},
	{"Nats-Num-Pending": "x"}, {"Nats-UpTo-Sequence": "x"}, {"Nats-Trace-Dest": "moore.0.x"},
	{"Nats-Request-Info": "{}"}, {"Nats-Required-Api-Level": "99"}, {"KV-Operation": "PURGE"}, {"KV-Operation": "DEL"}, {"Status": "100"},
}

// send publishes a message with headers, as a role may, and returns the answer; the
// error says that there is none.
func send(t *testing.T, conn *nats.Conn, subject string, headers map[string]string) (string, error) {
	t.Helper()
	msg := natsMsg(subject, "x")
	for key, value := range headers {
		msg.Header.Set(key, value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	answer, err := conn.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return "", err
	}
	return string(answer.Data), nil
}

// stores reports whether the subject's stream stores what is published there.
func stores(t *testing.T, conn *nats.Conn, subject string) bool {
	t.Helper()
	answer, err := send(t, conn, subject, nil)
	return err == nil && strings.Contains(answer, `"seq"`) && !strings.Contains(answer, `"error"`)
}

// TestHeaderStopsReplicas holds what docs/upstream-expected-last-msg-id.md and
// docs/operations.md say: of all headers one stops a stream that has replicas, also
// across restarts, and what mends it loses nothing that was acknowledged, also where a
// replica lags. Where the header does no harm any more, the server has it mended: say
// so in those pages and in the doctor.
func TestHeaderStopsReplicas(t *testing.T) {
	t.Parallel()
	options := clusterOptions(t)
	servers, bus := setUpCluster(t, startCluster(t, options), InitOptions{})
	conn, run := bus.Conn(), journaltest.NewRun(t, bus)
	subjects := []string{entryTo(run, events.Acting, "web", nil).Subject.String(), "$KV.agents.default.x"}
	for _, headers := range publishHeaders {
		for _, subject := range subjects {
			_, err := send(t, conn, subject, headers)
			require.NoError(t, err, "%v", headers)
			require.True(t, stores(t, conn, subject), "%s after %v", subject, headers)
		}
	}
	servers[2].Shutdown() // it lags behind
	servers[2].WaitForShutdown()
	kept := journaltest.NewRun(t, bus)
	var last uint64
	for _, body := range []string{"1", "2", "3"} {
		var err error
		last, err = persist(t.Context(), bus, kept, last, entryTo(kept, events.Acting, "web", []byte(body)))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return stores(t, conn, subjects[1]) }, patience, 10*time.Millisecond)
	for _, subject := range subjects {
		require.Eventually(t, func() bool {
			answer, err := send(t, conn, subject, map[string]string{"Nats-Expected-Last-Msg-Id": "nope"})
			return err == nil && strings.Contains(answer, "wrong last msg ID")
		}, patience, 10*time.Millisecond)
	}
	stopped := func() bool { return !stores(t, conn, subjects[0]) && !stores(t, conn, subjects[1]) }
	require.True(t, stopped(), "nats-server has it mended")
	for _, srv := range servers {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
	servers = startCluster(t, options)
	require.Eventually(t, func() bool {
		_, err := send(t, conn, "$JS.API.STREAM.INFO.MOORE_0", nil)
		return err == nil
	}, patience, 10*time.Millisecond)
	require.True(t, stopped(), "nats-server has it mended")
	require.Contains(t, texts(Check(t.Context(), conn, Options{Logger: quiet, RequestTimeout: time.Second}), Bad), "has no leader")

	var broken []replica
	for _, stream := range []string{"MOORE_0", "KV_agents"} {
		broken = append(broken, replicaOf(t, servers, stream))
	}
	for _, srv := range servers {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
	for _, r := range broken {
		r.mend(t, options)
	}
	startCluster(t, options)
	for _, subject := range subjects {
		require.Eventually(t, func() bool { return stores(t, conn, subject) }, patience, 10*time.Millisecond)
	}
	require.Len(t, placesOf(t, bus, kept), 3, "what was acknowledged is there")
}

// replica is a stream that has replicas, its raft group, and the server that has most
// of it.
type replica struct {
	stream, group string
	best          int
}

// replicaOf asks the servers' monitoring, as docs/operations.md does.
func replicaOf(t *testing.T, servers []*server.Server, stream string) replica {
	t.Helper()
	found, most := replica{stream: stream}, uint64(0)
	for i, srv := range servers {
		info, err := srv.Jsz(&server.JSzOptions{Streams: true, RaftGroups: true})
		require.NoError(t, err)
		for _, account := range info.AccountDetails {
			for _, s := range account.Streams {
				if s.Name == stream && s.State.LastSeq >= most {
					found.group, found.best, most = s.RaftGroup, i, s.State.LastSeq
				}
			}
		}
	}
	require.NotEmpty(t, found.group, stream)
	return found
}

// mend does what docs/operations.md says while all servers are down: it copies the
// messages from the server that has most of them to the others, and removes the
// stream's raft group everywhere.
func (r replica) mend(t *testing.T, options []server.Options) {
	t.Helper()
	messages := func(i int) string {
		return filepath.Join(options[i].StoreDir, "jetstream", "$G", "streams", r.stream, "msgs")
	}
	for i, o := range options {
		require.NoError(t, os.RemoveAll(filepath.Join(o.StoreDir, "jetstream", "$SYS", "_js_", r.group)))
		if i != r.best {
			require.NoError(t, os.RemoveAll(messages(i)))
			require.NoError(t, os.CopyFS(messages(i), os.DirFS(messages(r.best))))
		}
	}
}
