package natsbus

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// publishHeaders are headers of each kind by which a publisher tells JetStream what to
// do, with values that a stream may refuse.
var publishHeaders = []map[string]string{
	{"Nats-Msg-Id": "x"}, {"Nats-Expected-Stream": "OTHER"}, {"Nats-Expected-Last-Sequence": "77777"},
	{"Nats-Expected-Last-Subject-Sequence": "77777"}, {"Nats-Expected-Last-Subject-Sequence-Subject": "a b"},
	{"Nats-Rollup": "x"}, {"Nats-TTL": "x"}, {"Nats-Incr": "x"}, {"Nats-Schedule": "x"}, {"Nats-Required-Api-Level": "99"},
	{"Nats-Batch-Id": "c", "Nats-Batch-Sequence": "7"},
	{"Nats-Batch-Id": "e", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1", "Nats-Expected-Last-Msg-Id": "nope"},
}

// send publishes a message with headers, as a role may, and returns the answer; the
// error says that there is none within that time.
func send(t *testing.T, conn *nats.Conn, within time.Duration, subject string, headers map[string]string) (string, error) {
	t.Helper()
	msg := natsMsg(subject, "x")
	for key, value := range headers {
		msg.Header.Set(key, value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
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
	answer, err := send(t, conn, 500*time.Millisecond, subject, nil)
	return err == nil && strings.Contains(answer, `"seq"`) && !strings.Contains(answer, `"error"`)
}

// TestHeaderStopsReplicas holds what docs/upstream-expected-last-msg-id.md and
// docs/operations.md say: of all headers one stops a stream that has replicas, also
// across restarts, and what mends it loses nothing that was acknowledged, also where a
// replica lags. Where the header does no harm any more, the server has it mended: say
// so in those pages and in the doctor.
func TestHeaderStopsReplicas(t *testing.T) {
	t.Parallel()
	servers, bus := openCluster(t, InitOptions{})
	conn, run := bus.Conn(), journaltest.NewRun(t, bus)
	subjects := []string{entryTo(run, events.Acting, "web", nil).Subject.String(), "$KV.agents.default.x"}
	for _, headers := range publishHeaders {
		for _, subject := range subjects {
			_, err := send(t, conn, patience, subject, headers)
			require.NoError(t, err, "%v", headers)
			require.Eventually(t, func() bool { return stores(t, conn, subject) }, patience, 10*time.Millisecond, "%s after %v", subject, headers)
		}
	}
	servers[2].Kill() // it lags behind
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
			answer, err := send(t, conn, patience, subject, map[string]string{"Nats-Expected-Last-Msg-Id": "nope"})
			return err == nil && strings.Contains(answer, "wrong last msg ID")
		}, patience, 10*time.Millisecond)
	}
	stopped := func() bool { return !stores(t, conn, subjects[0]) && !stores(t, conn, subjects[1]) }
	require.True(t, stopped(), "nats-server has it mended")
	stopAll(servers[:2])
	natstest.StartAll(servers)
	require.Eventually(t, func() bool {
		_, err := send(t, conn, time.Second, "$JS.API.STREAM.INFO.MOORE_0", nil)
		return err == nil
	}, patience, 10*time.Millisecond)
	require.True(t, stopped(), "nats-server has it mended")
	require.Contains(t, texts(Check(t.Context(), conn, Options{Logger: quiet, RequestTimeout: time.Second}), Bad), "has no leader")

	var broken []replica
	for _, stream := range []string{"MOORE_0", "KV_agents"} {
		broken = append(broken, replicaOf(t, servers, stream))
	}
	stopAll(servers)
	for _, r := range broken {
		r.mend(t, servers)
	}
	natstest.StartAll(servers)
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
func replicaOf(t *testing.T, servers []*natstest.Server, stream string) replica {
	t.Helper()
	found, most := replica{stream: stream}, uint64(0)
	for i, srv := range servers {
		for _, account := range jsz(t, srv).AccountDetails {
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

func jsz(t *testing.T, srv *natstest.Server) (info server.JSInfo) {
	t.Helper()
	answer, err := http.Get(srv.Monitor + "/jsz?streams=true&config=true&raft=true")
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&info))
	return info
}

// mend does what docs/operations.md says while all servers are down: it copies the
// messages from the server that has most of them to the others, and removes the
// stream's raft group everywhere.
func (r replica) mend(t *testing.T, servers []*natstest.Server) {
	t.Helper()
	messages := func(srv *natstest.Server) string {
		return filepath.Join(srv.Dir, "jetstream", "$G", "streams", r.stream, "msgs")
	}
	for i, srv := range servers {
		require.NoError(t, os.RemoveAll(filepath.Join(srv.Dir, "jetstream", "$SYS", "_js_", r.group)))
		if i != r.best {
			require.NoError(t, os.RemoveAll(messages(srv)))
			require.NoError(t, os.CopyFS(messages(srv), os.DirFS(messages(servers[r.best]))))
		}
	}
}

func stopAll(servers []*natstest.Server) {
	for _, srv := range servers {
		srv.Stop()
	}
}
