package permissions

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
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

// A server writes what becomes of a message to the subject that a header names. It does so only
// where the user may publish itself; otherwise the message goes nowhere.
func TestTracesReachNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	for _, user := range []string{Planner, Observer, Gateway, ActorPrefix + "web", subagents} {
		var refused refusals
		conn := r.connect(t, user, &refused)
		run := journaltest.NewRun(t, r.log).ID
		targets := map[string]string{"MOORE_0": "moore.0.default.paging.waiting_for_human.default." + run}
		maps.Copy(targets, beside(run))
		for stream, target := range targets {
			if slices.ContainsFunc(userOf(t, user).Publish, func(filter string) bool { return matches(filter, target) }) {
				continue
			}
			for _, only := range []string{"", "true"} {
				traced := &nats.Msg{Subject: "moore.0.default." + ownEdge[user] + "." + run, Data: []byte("{}"), Header: nats.Header{"Nats-Trace-Dest": {target}}}
				if only != "" {
					traced.Header.Set("Nats-Trace-Only", only)
				}
				require.NoError(t, conn.PublishMsg(traced))
			}
			require.NoError(t, conn.Flush())
			_, err := js.GetLastMsg(stream, target)
			require.ErrorIs(t, err, nats.ErrMsgNotFound, "%s: %s", user, target)
		}
		_, err := js.GetLastMsg("MOORE_0", "moore.0.default."+ownEdge[user]+"."+run)
		require.ErrorIs(t, err, nats.ErrMsgNotFound, user)
	}
}

func userOf(t *testing.T, name string) User {
	t.Helper()
	users, err := Users(layout)
	require.NoError(t, err)
	return users[slices.IndexFunc(users, func(u User) bool { return u.Name == name })]
}

// No header of a stored message hides it, or the ones after it, from those who read the log, and
// none makes the server take the next append of another role for one that it has.
func TestHeadersHideNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	thief, planner := r.connect(t, ActorPrefix+"web", nil), r.open(t, Planner)
	headers := []nats.Header{
		{"Nats-Msg-Id": {"1"}}, {"Nats-Marker-Reason": {"Purge"}}, {"KV-Operation": {"DEL"}}, {"KV-Operation": {"PURGE"}}, {"Nats-Schedule-Rollup": {"sub"}},
		{"Status": {"404"}, "Description": {"Message Not Found"}}, {"Status": {"204"}, "Description": {"EOB"}}, {"Status": {"100"}, "Nats-Last-Consumer": {"9"}},
		{"Nats-Num-Pending": {"0"}, "Nats-Sequence": {"9"}, "Nats-Last-Sequence": {"9"}, "Nats-Subject": {"moore.0.x"}},
	}
	for _, header := range headers {
		for _, body := range []string{"{}", ""} {
			if header.Get("Nats-Msg-Id") != "" {
				header.Set("Nats-Msg-Id", "1"+body) // the same twice is one message
			}
			edge := events.Subject{Run: journaltest.NewRun(t, r.log), From: events.Acting, To: events.Observing, Pool: events.DefaultPool}
			answer, err := thief.RequestMsg(&nats.Msg{Subject: edge.String(), Data: []byte(body), Header: header}, patience)
			require.NoError(t, err, "%v %q", header, body)
			require.NotContains(t, string(answer.Data), `"error"`, "%v", header)
		}
	}
	run := journaltest.NewRun(t, r.log)
	_, err := planner.Append(t.Context(), run, 0, journal.Entry{Subject: events.Subject{Run: run, From: events.Planning, To: events.Done, Pool: events.DefaultPool}, Body: []byte(`{}`)})
	require.NoError(t, err)
	for _, user := range []string{Planner, Observer, Gateway, Tap, Telemetry, Backup} {
		var seen []uint64
		for rec, err := range r.open(t, user).Scan(t.Context(), 0, journal.Filter{}, 0) {
			require.NoError(t, err, user)
			seen = append(seen, rec.Seq)
		}
		require.Len(t, seen, 2*len(headers)+1, user)
	}
}
