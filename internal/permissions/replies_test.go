package permissions

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// ownEdge is an edge that each user may publish on.
var ownEdge = map[string]string{
	Planner: "planning.none.default", Observer: "observing.none.default", Gateway: "control.none.default",
	"actor_default": "acting.none.default", "actor_web": "acting.none.default", "actor_gpu": "acting.none.default",
	subagents: "idle.planning.default",
}

var ownDurable = map[string]string{
	Planner: "planning", Observer: "observing", Gateway: "waiting_for_human",
	"actor_default": "acting_default", "actor_web": "acting_web", "actor_gpu": "acting_gpu",
	subagents: "done_agents",
}

// forger sends requests whose reply subject is one of the log's.
type forger struct {
	t      *testing.T
	rig    *rig
	conn   *nats.Conn
	user   string
	target string
}

// edge returns a new subject on the user's own edge.
func (f *forger) edge() string {
	return "moore.0.default." + ownEdge[f.user] + "." + journaltest.NewRun(f.t, f.rig.log).ID
}

// send sends a request with the forged reply, then the same one with an honest reply. After
// its answer the first request was answered too.
func (f *forger) send(subject string, body string, header nats.Header) {
	f.t.Helper()
	forged := &nats.Msg{Subject: subject, Reply: f.target, Data: []byte(body), Header: header}
	require.NoError(f.t, f.conn.PublishMsg(forged))
	_, err := f.conn.RequestMsg(&nats.Msg{Subject: subject, Data: []byte(body), Header: header}, patience)
	require.NoError(f.t, err, "%s: %s", f.user, subject)
}

// all sends every kind of request of a user, and returns how many events it appended on its
// own edge, which is allowed.
func (f *forger) all() (appended int) {
	log, byRun := "$JS.API.DIRECT.GET.MOORE_0", `"moore.0.>"`
	f.send(log, `{"last_by_subj":`+byRun+`}`, nil)
	f.send(log, `{"seq":1,"next_by_subj":`+byRun+`,"batch":5}`, nil)
	f.send(log, `{"multi_last":[`+byRun+`]}`, nil)
	f.send("$JS.API.STREAM.MSG.GET.MOORE_0", `{"last_by_subj":`+byRun+`}`, nil)
	f.send("$JS.API.STREAM.INFO.MOORE_0", "", nil)
	f.send("$SYS.REQ.USER.INFO", "", nil)
	f.send("$JS.API.DIRECT.GET.OBJ_snapshots", `{"last_by_subj":"$O.snapshots.M.*"}`, nil)
	switch f.user {
	case Tap:
		f.send("$JS.API.STREAM.MSG.GET.KV_purged", `{"last_by_subj":"$KV.purged.>"}`, nil)
		f.send("$JS.API.STREAM.INFO.KV_dropped", "", nil)
		return 0
	case Telemetry:
		f.send("$JS.API.STREAM.MSG.GET.KV_positions_telemetry", `{"last_by_subj":"$KV.positions_telemetry.>"}`, nil)
		f.send("$KV.leases_telemetry.traces", "a lease", nil)
		return 0
	case Backup:
		f.send("$JS.API.STREAM.NAMES", "", nil)
		f.send("$JS.API.STREAM.MSG.GET.MOORE_TIMERS", `{"last_by_subj":"timers.>"}`, nil)
		f.send("$JS.API.DIRECT.GET.KV_agents", `{"last_by_subj":"$KV.agents.>"}`, nil)
		return 0
	case Observer:
		f.send("$JS.API.STREAM.PURGE.OBJ_snapshots", `{"filter":"$O.snapshots.C.x"}`, nil)
		f.send("$O.snapshots.C.x", "a chunk", nil)
	case Gateway:
		f.send("$JS.API.STREAM.MSG.GET.KV_purged", `{"last_by_subj":"$KV.purged.>"}`, nil)
		f.send("$JS.API.STREAM.INFO.MOORE_TIMERS", "", nil)
		f.send("$JS.API.CONSUMER.MSG.NEXT.MOORE_TIMERS.timers", `{"batch":1,"no_wait":true}`, nil)
		f.send("timers.set.default.x.run", "a timer", f.schedule("timers.due.default.x.run"))
	case subagents:
		f.send("$JS.API.STREAM.MSG.GET.KV_purged", `{"last_by_subj":"$KV.purged.>"}`, nil)
		f.send("$JS.API.STREAM.INFO.MOORE_TIMERS", "", nil)
		f.send("$JS.API.DIRECT.GET.KV_agents", `{"last_by_subj":"$KV.agents.>"}`, nil)
		f.send("timers.set.default.y.run", "a timer", f.schedule("timers.due.default.y.run"))
	}
	next := "$JS.API.CONSUMER.MSG.NEXT.MOORE_0." + ownDurable[f.user]
	f.send(next, `{"batch":1,"no_wait":true}`, nil)
	f.send("$JS.API.CONSUMER.INFO.MOORE_0."+ownDurable[f.user], "", nil)
	f.send(f.edge(), "an event", nil)
	f.batch()
	return 2 + 2
}

// schedule are the headers of a timer that fires long after the test.
func (f *forger) schedule(target string) nats.Header {
	return nats.Header{"Nats-Schedule": {"@at " + time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, "Nats-Schedule-Target": {target}}
}

// batch commits an atomic batch of two, first with the forged reply.
func (f *forger) batch() {
	f.t.Helper()
	for _, forge := range []bool{true, false} {
		id, own := journaltest.NewRun(f.t, f.rig.log).ID, f.edge()
		first := &nats.Msg{Subject: own, Data: []byte("1"), Header: nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {"1"}}}
		last := &nats.Msg{Subject: own, Data: []byte("2"), Header: nats.Header{
			"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {"2"}, "Nats-Batch-Commit": {"1"},
		}}
		if forge {
			first.Reply, last.Reply = f.target, f.target
		}
		require.NoError(f.t, f.conn.PublishMsg(first))
		if forge {
			require.NoError(f.t, f.conn.PublishMsg(last))
			continue
		}
		answer, err := f.conn.RequestMsg(last, patience)
		require.NoError(f.t, err)
		require.NotContains(f.t, string(answer.Data), `"error"`)
	}
}

// beside are subjects of what lies beside the log, by the stream that has them. What is
// written there is believed.
func beside(run string) map[string]string {
	return map[string]string{
		"MOORE_TIMERS": "timers.due.default." + run + ".run", "KV_purged": "$KV.purged.default." + run,
		"KV_dropped": "$KV.dropped." + run, "KV_agents": "$KV.agents.default." + run, "KV_providers": "$KV.providers." + run,
		"KV_tools_web": "$KV.tools_web." + run, "OBJ_snapshots": "$O.snapshots.M." + run, "OBJ_results_web": "$O.results_web.M." + run,
	}
}

// TestForgedReplies: a role cannot have the server store an answer, whatever it names as
// reply subject: an edge that it may publish on, one that it may not, a timer, or an entry
// of a bucket.
func TestForgedReplies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	wake(t, r)
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	for _, user := range roles(users) {
		f := forger{t: t, rig: r, conn: r.connect(t, user, nil), user: user}
		for _, edge := range []string{"waiting_for_human.acting.web", "planning.done.default", ownEdge[user]} {
			if edge == "" {
				continue
			}
			f.target = "moore.0.default." + edge + "." + journaltest.NewRun(t, r.log).ID
			before := stored(t, r, "")
			appended := f.all()
			if appended > 0 {
				appended += 2 // the batch with the forged reply is stored as well: it is on the user's own edge
			}
			require.Empty(t, stored(t, r, f.target), "%s had an answer stored on %s", user, f.target)
			require.Len(t, stored(t, r, ""), len(before)+appended, user)
		}
		for stream, target := range beside(journaltest.NewRun(t, r.log).ID) {
			f.target = target
			f.all()
			_, err := js.GetLastMsg(stream, target)
			require.ErrorIs(t, err, nats.ErrMsgNotFound, "%s had an answer stored on %s", user, target)
		}
	}
	for stream, target := range beside(journaltest.NewRun(t, r.log).ID) {
		_, err := r.operator.Request(target, nil, patience)
		require.NoError(t, err)
		_, err = js.GetLastMsg(stream, target)
		require.NoError(t, err, "the subject is one of the stream's")
	}
}

// TestForgedSchedules: only users that start runs may set timers, and the server fires no
// timer into the log or a bucket: the target must be a subject of timers.
func TestForgedSchedules(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	run := journaltest.NewRun(t, r.log).ID
	targets := []string{
		"moore.0.default.waiting_for_human.acting.web." + run, "moore.0.default.control.error.default." + run,
		"$KV.purged.default." + run, "$JS.API.STREAM.DELETE.MOORE_0", "feed.moore.0.default.planning.done.default." + run,
	}
	for _, user := range names(users) {
		var refused refusals
		conn := r.connect(t, user, &refused)
		for i, target := range targets {
			msg := nats.NewMsg(fmt.Sprintf("timers.set.default.%s.k%d", run, i))
			msg.Header = nats.Header{"Nats-Schedule": {"@at " + time.Now().UTC().Format(time.RFC3339Nano)}, "Nats-Schedule-Target": {target}}
			if user != Gateway && user != subagents {
				require.NoError(t, conn.PublishMsg(msg))
				require.Eventually(t, func() bool { return refused.has(msg.Subject) }, patience, time.Millisecond, user)
				continue
			}
			answer, err := conn.RequestMsg(msg, patience)
			require.NoError(t, err)
			require.Contains(t, string(answer.Data), `"error"`, "a timer for %s", target)
		}
	}
	js, err := r.operator.JetStream()
	require.NoError(t, err)
	info, err := js.StreamInfo("MOORE_TIMERS")
	require.NoError(t, err)
	require.Zero(t, info.State.LastSeq, "no timer was stored at all")
	require.Empty(t, stored(t, r, ""))
}

// TestForgedRepliesInOneAccount shows what the second account is for: in the account of the
// log the same requests do store answers there.
func TestForgedRepliesInOneAccount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wake(t, r)
	target := "moore.0.default.waiting_for_human.acting.web." + journaltest.NewRun(t, r.log).ID
	f := forger{t: t, rig: r, conn: r.operator, user: Tap, target: target}
	f.all()
	require.NotEmpty(t, stored(t, r, target))
}

// TestForgedFeed: users of one account can forge the feed and chunks for each other. Nothing is
// stored by that, and followers of the log get the log.
func TestForgedFeed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateway := r.open(t, Gateway)
	users, err := Users(layout)
	require.NoError(t, err)
	wake(t, r)
	for _, user := range roles(users) {
		victim := journaltest.NewRun(t, r.log)
		subject := events.Subject{Run: victim, From: events.Control, To: events.Nobody, Pool: events.DefaultPool}
		first, err := r.log.Append(t.Context(), victim, 0, journal.Entry{Subject: subject, Body: []byte("first")})
		require.NoError(t, err)
		hints, chunks := make(chan journal.Record, 10000), make(chan []byte, 10000)
		stopHints, err := gateway.Watch(journal.Filter{Run: victim.ID}, func(rec journal.Record) { hints <- rec }, nil)
		require.NoError(t, err)
		stopChunks, err := gateway.WatchChunks(victim, func(data []byte) { chunks <- data })
		require.NoError(t, err)
		next, stopFollowing := iter.Pull2(gateway.Follow(t.Context(), 0, journal.Filter{Run: victim.ID}, first-1))
		rec, err, _ := next()
		require.NoError(t, err)
		require.Equal(t, "first", string(rec.Body))

		conn := r.connect(t, user, nil)
		f := forger{t: t, rig: r, conn: conn, user: user, target: events.FeedPrefix + subject.String()}
		if user != Tap && user != Telemetry && user != Backup {
			// The forged record has the number that the follower waits for.
			_, err := conn.Request(f.edge(), []byte("forged"), patience)
			require.NoError(t, err)
		}
		f.send("$JS.API.DIRECT.GET.MOORE_0", fmt.Sprintf(`{"seq":%d,"next_by_subj":"moore.0.>","batch":1}`, first+1), nil)
		f.all()
		f.target = "chunk." + victim.Namespace + "." + victim.ID
		f.all()
		if accountOf(user) == Roles {
			require.Equal(t, subject.String(), (<-hints).Subject, "a hint, if somebody takes it as one")
			require.NotEmpty(t, <-chunks)
		} else {
			require.NoError(t, gateway.Conn().Flush())
			require.Empty(t, chunks, "%s is in another account", user)
		}
		_, err = r.log.Append(t.Context(), victim, first, journal.Entry{Subject: subject, Body: []byte("second")})
		require.NoError(t, err)
		rec, err, _ = next()
		require.NoError(t, err)
		require.Equal(t, "second", string(rec.Body), "%s made a record that the log does not hold", user)
		require.Len(t, stored(t, r, subject.String()), 2, user)
		require.Empty(t, stored(t, r, f.target), user)
		stopFollowing()
		stopHints()
		stopChunks()
	}
}

// wake puts messages into the inbox of every user's durable, so that a pull is answered.
func wake(t *testing.T, r *rig) {
	t.Helper()
	for _, to := range []string{"planning.default", "observing.default", "waiting_for_human.default", "acting.default", "acting.web", "acting.gpu", "done.agents"} {
		for range 10 {
			subject := "moore.0.default.idle." + to + "." + journaltest.NewRun(t, r.log).ID
			_, err := r.operator.Request(subject, []byte(strings.Repeat("x", 10)), patience)
			require.NoError(t, err)
		}
	}
}

// stored returns the log's records on a subject; empty: all.
func stored(t *testing.T, r *rig, subject string) []journal.Record {
	t.Helper()
	recs, err := journaltest.Collect(r.log.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	var found []journal.Record
	for _, rec := range recs {
		if subject == "" || rec.Subject == subject {
			found = append(found, rec)
		}
	}
	return found
}

// TestTap: a tap reads everything and writes nothing.
func TestTap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tap, planner := r.open(t, Tap), r.open(t, Planner)
	run := journaltest.NewRun(t, tap)
	fed, text := make(chan journal.Record, 1), make(chan string, 1)
	stop, err := tap.Watch(journal.Filter{Run: run.ID}, func(rec journal.Record) { fed <- rec }, nil)
	require.NoError(t, err)
	defer stop()
	stopChunks, err := tap.WatchChunks(run, func(data []byte) { text <- string(data) })
	require.NoError(t, err)
	defer stopChunks()
	operators, err := r.log.Conn().SubscribeSync("chunk." + run.Namespace + "." + run.ID)
	require.NoError(t, err)
	require.NoError(t, r.log.Conn().Flush())
	require.NoError(t, tap.Conn().Flush())

	subject := events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: events.DefaultPool}
	_, err = planner.Append(t.Context(), run, 0, journal.Entry{Subject: subject, Body: []byte("{}")})
	require.NoError(t, err)
	require.Equal(t, subject.String(), (<-fed).Subject)
	asked := make(chan events.Run, 10)
	stopAsks, err := planner.WatchAsks(func(run events.Run) { asked <- run })
	require.NoError(t, err)
	defer stopAsks()
	require.NoError(t, planner.Conn().Flush())
	for _, asker := range []interface{ AskCatchUp(events.Run) error }{tap, r.open(t, Gateway), r.log} { // r.log is of the log's account
		require.NoError(t, asker.AskCatchUp(run))
		require.Equal(t, run, <-asked)
	}
	require.NoError(t, planner.PublishChunk(run, []byte("hello")))
	require.Equal(t, "hello", <-text)
	msg, err := operators.NextMsg(patience)
	require.NoError(t, err, "the operator hears chunks as well")
	require.Equal(t, "hello", string(msg.Data))
	recs, err := journaltest.Collect(tap.Read(t.Context(), run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 1)
	_, err = tap.Head(t.Context(), run)
	require.NoError(t, err)

	_, err = tap.Append(t.Context(), run, 1, journal.Entry{Subject: subject, Body: []byte("{}")})
	require.ErrorIs(t, err, journal.ErrDenied)
	require.ErrorContains(t, err, subject.String())
	require.ErrorIs(t, announce.NewDirectory(tap, nil).Announce(t.Context(), "web", "x", nil), journal.ErrDenied)
	require.ErrorIs(t, agentstore.Put(t.Context(), tap, "default", "x", nil), journal.ErrDenied)
	_, err = tap.PutBlob(t.Context(), "web", []byte("x"))
	require.ErrorIs(t, err, journal.ErrDenied)
	for _, s := range tapPublishes(t) {
		if s == "catchup.*.*" || s == "moore_flush.0" { // questions: a catchup is answered to everybody
			continue
		}
		require.Regexp(t, `^\$(JS\.API|SYS\.REQ)\.`, s, "a tap asks and never tells")
		require.Regexp(t, `INFO|GET`, s)
	}
}

func tapPublishes(t *testing.T) []string {
	t.Helper()
	users, err := Users(layout)
	require.NoError(t, err)
	tap := users[slices.IndexFunc(users, func(u User) bool { return u.Name == Tap })]
	return tap.Publish
}
