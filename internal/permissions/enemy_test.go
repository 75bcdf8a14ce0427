package permissions

import (
	"fmt"
	"testing"

	"github.com/nats-io/nuid"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The log shows every role the ids of the batches of others. They say nothing of the next one's:
// who knew it could close a batch that another role has begun.
func TestBatchesOfOthersCannotBeGuessed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	planner := r.open(t, Planner)
	var ids []string
	for range 3 {
		run := journaltest.NewRun(t, r.log)
		first := events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: events.DefaultPool}
		last := events.Subject{Run: run, From: events.Planning, To: events.Planning, Pool: events.DefaultPool}
		_, err := planner.Append(t.Context(), run, 0, journal.Entry{Subject: first, Body: []byte(`{}`)}, journal.Entry{Subject: last, Body: []byte(`{}`)})
		require.NoError(t, err)
		js, err := r.operator.JetStream()
		require.NoError(t, err)
		msg, err := js.GetLastMsg("MOORE_0", last.String())
		require.NoError(t, err)
		ids = append(ids, msg.Header.Get("Nats-Batch-Id"))
	}
	require.NotEmpty(t, ids[0])
	require.NotEqual(t, ids[0][:12], ids[1][:12])
	require.NotEqual(t, ids[1][:12], ids[2][:12])
}

// What a process writes where others read shows none of the ids of which nats.go makes inboxes:
// they are consecutive, and a server delivers the answer to a request wherever it is told to.
func TestWhatIsWrittenShowsNoInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	actor := r.open(t, "actor_web")
	ref, err := actor.PutBlob(t.Context(), "web", []byte("a picture"))
	require.NoError(t, err)
	run := journaltest.NewRun(t, r.log)
	edge := events.Subject{Run: run, From: events.Acting, To: events.Nobody, Pool: events.DefaultPool}
	_, err = actor.Append(t.Context(), run, 0, journal.Entry{Subject: edge, Body: []byte(`{}`)}, journal.Entry{Subject: edge, Body: []byte(`{}`)})
	require.NoError(t, err)
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	info, err := js.GetLastMsg("OBJ_"+ref.Bucket, "$O."+ref.Bucket+".M.>")
	require.NoError(t, err)
	event, err := js.GetLastMsg("MOORE_0", edge.String())
	require.NoError(t, err)
	consecutive := nuid.Next()[:12] // of this process, as all of its inboxes
	require.Contains(t, r.operator.NewInbox(), consecutive)
	for _, written := range []string{string(info.Data), fmt.Sprint(event.Header), string(event.Data)} {
		require.NotContains(t, written, consecutive)
	}
}
