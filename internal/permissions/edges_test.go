package permissions

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// TestEveryStateHasOneOwner: every state of the table has one role that publishes out of it.
func TestEveryStateHasOneOwner(t *testing.T) {
	t.Parallel()
	table := reducer.DefaultTable()
	for _, state := range append(table.States(), events.Control) {
		owners := 0
		for _, states := range owned {
			if slices.Contains(states, state) {
				owners++
			}
		}
		if table.Terminal(state) {
			require.Zero(t, owners, "%s: nothing is published out of a state that ends a run", state)
		} else {
			require.Equal(t, 1, owners, state)
		}
	}
}

// owns reports whether a user may publish on an edge, independently of the generator: the edge
// is in the table, the state is its role's, and edges of tools are of its own pool.
func owns(user string, from, to events.State, pool string) bool {
	role, own, isActor := user, "", strings.HasPrefix(user, ActorPrefix)
	if isActor {
		role, own = ActorPrefix, strings.TrimPrefix(user, ActorPrefix)
	}
	if own == events.AgentsPool && from == events.Idle {
		return to == events.Planning && pool == events.DefaultPool
	}
	if to == events.Nobody && pool == events.AgentsPool && own != events.AgentsPool {
		return false
	}
	return slices.Contains(owned[role], from) && slices.ContainsFunc(reducer.Edges(reducer.DefaultTable()), func(e reducer.Edge) bool {
		if e.From != from || e.To != to {
			return false
		}
		return e.Pool == pool || e.Pool == events.Wildcard && (!isActor || pool == own)
	})
}

// TestEveryEdge publishes as every user on every conceivable edge: from each state and
// control, to each state and none, in each kind of pool. The user's own edges are stored, and
// all others are refused by name.
func TestEveryEdge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	states := reducer.DefaultTable().States()
	users, err := Users(layout)
	require.NoError(t, err)
	var want []string
	for _, user := range names(users) {
		var refused refusals
		conn := r.connect(t, user, &refused)
		run := journaltest.NewRun(t, r.log)
		var forbidden []string
		for _, from := range append(slices.Clone(states), events.Control) {
			for _, to := range append(slices.Clone(states), events.Nobody) {
				for _, pool := range []string{events.DefaultPool, "web", "gpu", events.AgentsPool, events.ClientPool} {
					subject := events.Subject{Run: run, From: from, To: to, Pool: pool}.String()
					require.NoError(t, conn.Publish(subject, []byte(user)))
					if owns(user, from, to, pool) {
						want = append(want, subject)
					} else {
						forbidden = append(forbidden, subject)
					}
				}
			}
		}
		require.NoError(t, conn.Flush())
		require.Eventually(t, func() bool { return refused.count() >= len(forbidden) }, patience, time.Millisecond, user)
		for _, subject := range forbidden {
			require.True(t, refused.has(subject), "%s may publish on %s", user, subject)
		}
		require.Equal(t, len(forbidden), refused.count(), "%s is refused what it owns", user)
		require.Empty(t, refused.other)
	}
	require.Greater(t, len(want), 60)
	require.Eventually(t, func() bool {
		last, err := r.log.Last(t.Context(), 0)
		return err == nil && last >= uint64(len(want))
	}, patience, time.Millisecond)
	recs, err := journaltest.Collect(r.log.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	var stored []string
	for _, rec := range recs {
		stored = append(stored, rec.Subject)
	}
	require.ElementsMatch(t, want, stored)
}

// TestForksAndStandIns checks edges that no row of the table has: a fork leaves idle for its
// parent's state, and the calls of unserved pools are answered out of control. Only the
// gateway may use them.
func TestForksAndStandIns(t *testing.T) {
	t.Parallel()
	table := reducer.DefaultTable()
	edges := []string{"control.none.default", "control.observing.default", "control.parallel_acting.*"}
	for _, at := range table.States() {
		if pool := events.DefaultPool; !table.Terminal(at) && at != table.Initial() {
			if at == events.Acting || at == events.ParallelActing {
				pool = events.Wildcard
			}
			edges = append(edges, "idle."+string(at)+"."+pool)
		}
	}
	require.Len(t, edges, 3+8)
	for _, u := range users(t, layout) {
		for _, edge := range edges {
			may := u.Name == Gateway || u.Name == subagents && edge == "idle.planning.default"
			require.Equal(t, may, slices.Contains(u.Publish, "moore.*.*."+edge+".*"), "%s: %s", u.Name, edge)
		}
	}
}

// TestDeniedAtOnce: the bus names the refused subject long before a request times out.
func TestDeniedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	for _, user := range roles(users) {
		bus := r.open(t, user)
		run := journaltest.NewRun(t, bus)
		subject := events.Subject{Run: run, From: events.Done, To: events.Planning, Pool: events.DefaultPool}
		began := time.Now()
		_, err := bus.Append(t.Context(), run, 0, journal.Entry{Subject: subject, Body: []byte("{}")})
		require.ErrorIs(t, err, journal.ErrDenied)
		require.ErrorContains(t, err, subject.String())
		require.Less(t, time.Since(began), patience/4, user)
	}
}

// TestWrongInbox: a connection without the inbox prefix of its user gets an error that says
// so.
func TestWrongInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: r.url, NKey: KeyFile(r.keys, Planner), Logger: quiet})
	require.NoError(t, err)
	defer conn.Close()
	_, err = natsbus.Wait(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience})
	require.ErrorIs(t, err, journal.ErrDenied)
	require.ErrorContains(t, err, "NATS_INBOX_PREFIX")
}

// subagents is the actor of the pool of agents.
const subagents = ActorPrefix + events.AgentsPool

// forbidden are the subjects that no user of the account ROLES may publish on.
func forbidden(user string) []string {
	subjects := []string{
		"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.CONSUMER.LIST.MOORE_0", "$JS.API.CONSUMER.NAMES.MOORE_0",
		"$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.UPDATE.MOORE_0", "$JS.API.STREAM.DELETE.MOORE_0", "$JS.API.STREAM.PURGE.MOORE_0",
		"$JS.API.STREAM.MSG.DELETE.MOORE_0", "$JS.API.STREAM.SNAPSHOT.MOORE_0", "$JS.API.STREAM.RESTORE.MOORE_0",
		"$JS.API.STREAM.PURGE.KV_agents", "$JS.API.STREAM.DELETE.KV_purged", "$JS.API.STREAM.DELETE.OBJ_snapshots",
		"$JS.API.STREAM.LEADER.STEPDOWN.MOORE_0", "$JS.API.STREAM.PEER.REMOVE.MOORE_0", "$JS.API.META.LEADER.STEPDOWN",
		"$JS.API.CONSUMER.CREATE.MOORE_0", "$JS.API.CONSUMER.CREATE.MOORE_0.x", "$JS.API.CONSUMER.CREATE.MOORE_0.x.moore.0.>",
		"$JS.API.CONSUMER.DURABLE.CREATE.MOORE_0.x", "$JS.API.CONSUMER.DURABLE.CREATE.MOORE_0.acting_web",
		"$JS.API.CONSUMER.DELETE.MOORE_0.acting_web", "$JS.API.CONSUMER.DELETE.MOORE_0.planning",
		"$JS.API.CONSUMER.PAUSE.MOORE_0.planning", "$JS.API.CONSUMER.RESET.MOORE_0.planning", "$JS.API.CONSUMER.UNPIN.MOORE_0.planning",
		"$JS.API.CONSUMER.LEADER.STEPDOWN.MOORE_0.planning", "$JS.API.SERVER.REMOVE", "$JS.API.ACCOUNT.PURGE.LOG",
		"$JS.FC.MOORE_0.x.y", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.LOG.CONNZ", "$SRV.PING",
		"$KV.purged.default.x", "$KV.other.x", "$O.other.C.x", "timers.due.default.x.run", "timers.x",
		"$JS.API.STREAM.PURGE.MOORE_TIMERS", "$JS.API.STREAM.PURGE.KV_purged", "$JS.API.STREAM.PURGE.OBJ_results_web",
		"$JS.API.STREAM.MSG.GET.MOORE_TIMERS", "$JS.API.DIRECT.GET.MOORE_TIMERS", "$JS.API.STREAM.MSG.DELETE.OBJ_snapshots",
		"$JS.API.CONSUMER.CREATE.MOORE_TIMERS.timers.timers.due.>", "$JS.API.CONSUMER.DELETE.MOORE_TIMERS.timers",
		"feed.moore.0.default.acting.observing.default.x", "_INBOX_somebody.x", "_R_.x", "anything",
		"moore.0", "moore.0.default.acting.observing.default", "moore.0.default.acting.observing.default.x.y",
	}
	limited := map[string][]string{
		"$KV.agents.default.x":                             {Gateway},
		"$KV.providers.x":                                  {Planner},
		"$KV.leases_telemetry.traces":                      {Telemetry},
		"$KV.positions_telemetry.traces":                   {Telemetry},
		"$JS.API.DIRECT.GET.KV_positions_telemetry":        {Telemetry},
		"$KV.offers.known":                                 {Gateway},
		"$JS.API.DIRECT.GET.KV_offers":                     {Gateway, subagents},
		"$KV.threads.default.a.x":                          {Gateway},
		"$JS.API.STREAM.MSG.GET.KV_threads":                {Gateway},
		"$JS.API.DIRECT.GET.KV_threads":                    {Gateway},
		"$KV.notes.labels.default.x":                       {Gateway},
		"$JS.API.STREAM.MSG.GET.KV_notes":                  {Gateway},
		"$JS.API.DIRECT.GET.KV_notes":                      {Gateway},
		"$KV.webhooks.hook.default.x":                      {Gateway},
		"$JS.API.DIRECT.GET.KV_webhooks":                   {Gateway},
		"$JS.API.STREAM.MSG.GET.KV_webhooks":               {Gateway},
		"$KV.leases_gateway.webhooks":                      {Gateway},
		"$KV.leases_gateway.threads":                       {Gateway},
		"$KV.tools_web.x":                                  {"actor_web"},
		"$KV.tools_gpu.x":                                  {"actor_gpu"},
		"$O.results_web.C.x":                               {"actor_web"},
		"$O.results_web.M.x":                               {"actor_web"},
		"$O.snapshots.M.x":                                 {Observer},
		"timers.set.default.x.run":                         {Gateway, subagents},
		"timers.cancel.default.x.run":                      {Gateway},
		"$JS.API.STREAM.PURGE.OBJ_snapshots":               {Observer},
		"$O.snapshots.C.x":                                 {Observer},
		"$KV.storage_default_A_keeper.x":                   {"actor_default", "actor_web", "actor_gpu", Gateway},
		"$KV.paged_default_A_keeper.tag.x.y":               {Observer, Gateway},
		"$JS.API.DIRECT.GET.KV_storage_default_A_keeper":   {"actor_default", "actor_web", "actor_gpu", Observer, Gateway},
		"$JS.API.STREAM.MSG.GET.KV_paged_default_A_keeper": {"actor_default", "actor_web", "actor_gpu", Observer, Gateway},
		"$JS.API.STREAM.INFO.MOORE_TIMERS":                 {Gateway, subagents, Planner},
		"$JS.ACK.MOORE_TIMERS.timers.1.1.1.1.1":            {Gateway},
		"$JS.API.STREAM.MSG.GET.KV_purged":                 {Gateway, Tap, subagents},
		"$JS.API.STREAM.INFO.KV_dropped":                   {Gateway, Tap},
		"$KV.dropped.x":                                    {Gateway},
		"chunk.default.x":                                  {Planner, Gateway},
		"question.ask.client":                              {Gateway},
		"question.ask.request-openai":                      {Gateway},
		"question.answer.x":                                {Planner},
		"timers.set.default.x.model":                       {Gateway, subagents, Planner},
		"catchup.default.x":                                {Gateway, Tap, Planner},
		"$JS.API.STREAM.NAMES":                             {Gateway, subagents},
		"$JS.API.DIRECT.GET.KV_agents":                     {Gateway, subagents},
		"$JS.API.DIRECT.GET.KV_purged":                     {Gateway, Tap, subagents},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_0.planning":       {Planner},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_0.observing":      {Observer},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_0.acting_gpu":     {"actor_gpu", Gateway},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_0.acting_client":  {Gateway},
		"$JS.API.CONSUMER.INFO.MOORE_0.acting_client":      {Gateway},
		"$JS.ACK.MOORE_0.acting_client.1.1.1.1.1":          {Gateway},
		"timers.set.default.x.client":                      {Gateway, subagents},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_TIMERS.timers":    {Gateway},
		"$JS.ACK.MOORE_0.planning.1.1.1.1.1":               {Planner},
		"$JS.ACK.MOORE_0.acting_web.1.1.1.1.1":             {"actor_web", Gateway},
		"$JS.ACK.MOORE_0.waiting_for_human.1.1.1.1.1":      {Gateway},
		"$JS.API.CONSUMER.INFO.MOORE_0.reflecting":         {Planner, Gateway},
		"$JS.API.CONSUMER.INFO.MOORE_0.paging":             {Observer, Gateway},
		"$JS.API.CONSUMER.INFO.MOORE_0.acting_default":     {"actor_default", Gateway},
		"$JS.API.STREAM.INFO.KV_tools_web":                 {"actor_web", Gateway, subagents},
		"loan.web.ask.search":                              {"actor_web"},
		"loan.web.answer.x":                                {"actor_web"},
		"loan.gpu.ask.render":                              {"actor_gpu"},
		"$JS.API.DIRECT.GET.OBJ_results_web":               {"actor_web", Planner, Gateway, Tap},
		"$O.results_default.M.x":                           {"actor_default", Planner, Gateway},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_0.acting_default": {"actor_default", Gateway},
		"$JS.API.CONSUMER.MSG.NEXT.MOORE_0.done_agents":    {subagents},
		"$JS.ACK.MOORE_0.cancelled_agents.1.1.1.1.1":       {subagents},
		"$JS.API.CONSUMER.INFO.MOORE_0.error_agents":       {subagents, Gateway},
	}
	for subject, may := range limited {
		if !slices.Contains(may, user) {
			subjects = append(subjects, subject)
		}
	}
	if user == Backup { // it reads everything
		subjects = slices.DeleteFunc(subjects, func(s string) bool {
			return slices.ContainsFunc([]string{"NAMES", "INFO.", "MSG.GET."}, func(verb string) bool { return strings.HasPrefix(s, "$JS.API.STREAM."+verb) }) ||
				strings.HasPrefix(s, "$JS.API.DIRECT.GET.")
		})
	}
	return subjects
}

// TestForbidden: no role creates, changes or removes streams and consumers, consumes the work
// of others, or writes into their buckets.
func TestForbidden(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	for _, user := range names(users) {
		var refused refusals
		conn := r.connect(t, user, &refused)
		subjects := forbidden(user)
		for _, subject := range subjects {
			require.NoError(t, conn.Publish(subject, []byte("{}")))
		}
		listen := []string{
			">", "moore.>", "feed.x", "loan.>", "question.>", "$JS.>", "$KV.>", "$SYS.>", "_INBOX.>", "_INBOX_somebody.>", "_R_.>", "timers.>", "$JS.EVENT.>",
		}
		if user != Tap {
			listen = append(listen, "feed.>", "chunk.>")
		}
		if user != Planner && user != Gateway {
			listen = append(listen, "catchup.*.*")
		}
		if user != Planner {
			listen = append(listen, "question.ask.*")
		}
		if user != Gateway {
			listen = append(listen, "question.answer.*")
		}
		if user != "actor_web" {
			listen = append(listen, "loan.web.>", "loan.web.answer.y")
		}
		if user != Tap && user != Gateway && user != Telemetry {
			listen = append(listen, "feed.moore.*.*.acting.*.*.*", "feed.moore.*.*.*.acting.*.*")
		}
		if user != Tap && user != Gateway && user != Planner {
			listen = append(listen, "chunk.*.*")
		}
		if user == Tap {
			listen = slices.DeleteFunc(listen, func(s string) bool { return s == "feed.x" })
		}
		for _, subject := range listen {
			_, err := conn.Subscribe(subject, func(*nats.Msg) {})
			require.NoError(t, err)
		}
		require.NoError(t, conn.Flush())
		all := append(subjects, listen...)
		require.Eventually(t, func() bool { return refused.count() >= len(all) }, patience, time.Millisecond, "%s: %d of %d", user, refused.count(), len(all))
		for _, subject := range all {
			require.True(t, refused.has(subject), "%s may use %s", user, subject)
		}
	}
	last, err := r.log.Last(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, last)
}

// TestRollup: no header makes the log drop or hide records.
func TestRollup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn := r.connect(t, "actor_web", nil)
	subject := func() string {
		return events.Subject{Run: journaltest.NewRun(t, r.log), From: events.Acting, To: events.Observing, Pool: events.DefaultPool}.String()
	}
	_, err := conn.Request(subject(), []byte("1"), patience)
	require.NoError(t, err)
	for key, value := range map[string]string{
		"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Schedule": "@at " + time.Now().Format(time.RFC3339), "Nats-Schedule-Target": subject(),
	} {
		msg := nats.NewMsg(subject())
		msg.Header.Set(key, value)
		answer, err := conn.RequestMsg(msg, patience)
		require.NoError(t, err, key)
		if key != "Nats-Schedule-Target" {
			require.Contains(t, string(answer.Data), `"error"`, key)
		}
	}
	recs, err := journaltest.Collect(r.log.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	require.NotEmpty(t, recs)
	require.EqualValues(t, 1, recs[0].Seq)
	for _, rec := range recs {
		require.Contains(t, rec.Subject, ".acting.observing.")
	}
}

// TestInitIsTheOperators: only the operator sets up the bus, and others are refused without a
// timeout.
func TestInitIsTheOperators(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	for _, user := range names(users) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("it took too long"))
		err := natsbus.Init(ctx, r.connect(t, user, nil), natsbus.InitOptions{Pools: layout.Pools, Memory: true})
		cancel()
		require.ErrorIs(t, err, journal.ErrDenied, user)
		require.ErrorContains(t, err, "$JS.API.", user)
	}
}

// TestCheckOfARole: the doctor checks what a role may see, and reports the rest as unseen,
// which is no fault.
func TestCheckOfARole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	for _, user := range roles(users) {
		began, unseen := time.Now(), 0
		for _, f := range natsbus.Check(t.Context(), r.connect(t, user, nil), natsbus.Options{Logger: quiet, RequestTimeout: patience}) {
			require.NotEqual(t, natsbus.Bad, f.Level, "%s: %s", user, f.What)
			if f.Level == natsbus.Unseen {
				require.Equal(t, natsbus.AskOthers, f.Mend, user)
				unseen++
			}
		}
		require.Equal(t, user != Gateway, unseen > 0, "%s: %d", user, unseen)
		require.Less(t, time.Since(began), patience/4, user)
	}
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: r.url, NKey: KeyFile(r.keys, Planner), Logger: quiet})
	require.NoError(t, err)
	defer conn.Close()
	findings := natsbus.Check(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience})
	last := findings[len(findings)-1]
	require.Equal(t, natsbus.Bad, last.Level, "the inbox is not the user's, so nothing works at all")
	require.Contains(t, last.Mend, "NATS_INBOX_PREFIX")
}

// TestWhoIs: the server reports each user, with the permissions of one role and none of the
// operator's.
func TestWhoIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	for _, user := range roles(users) {
		id, err := natsconn.WhoIs(t.Context(), r.connect(t, user, nil), 0, quiet)
		require.NoError(t, err, user)
		require.Equal(t, accountOf(user), id.Account)
		require.True(t, id.Limited(), user)
		require.Equal(t, natsbus.Good, natsbus.CheckUser(id).Level, natsbus.CheckUser(id).What)
		want := []string{user}
		switch {
		case strings.HasPrefix(user, ActorPrefix):
			want = []string{"actor"}
		case user == Tap, user == Telemetry, user == Backup:
			want = nil
		}
		require.Equal(t, want, RolesOf(id.MayPublish), user)
		for _, subject := range forbidden(user) {
			require.False(t, id.MayPublish(subject), "%s: %s", user, subject)
		}
	}
	id, err := natsconn.WhoIs(t.Context(), r.operator, 0, quiet)
	require.NoError(t, err)
	require.Equal(t, "LOG", id.Account)
	require.False(t, id.Limited())
	require.Equal(t, natsbus.Good, natsbus.CheckUser(id).Level)
	require.Contains(t, natsbus.CheckUser(id).What, "an operator's")
}
