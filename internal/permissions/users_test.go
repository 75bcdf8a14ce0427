package permissions

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The states of an application's own graph have a user, which may publish out of them only.
func TestStatesOfOnesOwn(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Rows = append(spec.Rows,
		reducer.Row{From: events.Planning, Event: "ReviewNeeded", To: "reviewing"},
		reducer.Row{From: "reviewing", Event: "Reviewed", To: events.Done})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	users, err := Users(Layout{Table: table})
	require.NoError(t, err)
	last := users[len(users)-1]
	require.Equal(t, Custom, last.Name)
	require.Contains(t, last.Publish, "moore.*.*.reviewing.done.default.*")
	for _, subject := range last.Publish {
		require.NotContains(t, subject, ".planning.acting.")
		require.NotContains(t, subject, ".control.")
	}
	planner := users[0]
	require.Contains(t, planner.Publish, "moore.*.*.planning.reviewing.default.*")
	plain, err := Users(Layout{})
	require.NoError(t, err)
	require.Len(t, plain, len(users)-1)
}

// A terminal state of an application's own graph is consumed by the actor of agents and
// inspected by the gateway, as every end is.
func TestEndsOfOnesOwn(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Terminal = append(spec.Terminal, "refused")
	spec.Rows = append(spec.Rows, reducer.Row{From: events.Planning, Event: "Refused", To: "refused"})
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	users, err := Users(Layout{Table: table, Pools: []string{events.AgentsPool}})
	require.NoError(t, err)
	publishes := map[string][]string{}
	for _, u := range users {
		publishes[u.Name] = u.Publish
	}
	require.NotContains(t, publishes, Custom, "nobody works there")
	require.Contains(t, publishes[ActorPrefix+events.AgentsPool], "$JS.API.CONSUMER.MSG.NEXT.MOORE_0.refused_agents")
	require.Contains(t, publishes[Gateway], "$JS.API.CONSUMER.INFO.MOORE_0.refused_agents")
	require.Contains(t, publishes[Planner], "moore.*.*.planning.refused.agents.*")
}

// TestStorageIsWrittenByTwo: actors and the observer each write to their own bucket, read
// both, and create none.
func TestStorageIsWrittenByTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	of := layout.Storage[0]
	actor, observer := r.open(t, ActorPrefix+"web"), r.open(t, Observer)
	saved, paged := events.Entry{Tags: []string{"a"}, Value: "saved"}, events.Entry{Tags: []string{"a", "b"}, Value: "paged"}
	require.NoError(t, entrystore.New(actor).Save(t.Context(), of, entrystore.Actor, saved))
	require.NoError(t, entrystore.New(observer).Save(t.Context(), of, entrystore.Observer, paged))
	require.ErrorIs(t, entrystore.New(actor).Save(t.Context(), of, entrystore.Observer, saved), journal.ErrDenied)
	require.ErrorIs(t, entrystore.New(observer).Save(t.Context(), of, entrystore.Actor, paged), journal.ErrDenied)
	for _, bus := range []*natsbus.Bus{actor, observer} {
		for _, q := range []entrystore.Query{{Tags: []string{"a"}}, {Value: "A"}} {
			found, err := entrystore.New(bus).Find(t.Context(), of, q)
			require.NoError(t, err)
			require.Equal(t, []events.Entry{saved, paged}, found.Entries)
		}
		got, err := entrystore.New(bus).Get(t.Context(), of, paged.Tags)
		require.NoError(t, err)
		require.Equal(t, paged, got)
	}
	_, err := entrystore.New(r.open(t, Planner)).Find(t.Context(), of, entrystore.Query{})
	require.ErrorIs(t, err, journal.ErrDenied)

	// Storage that the operator did not create.
	other := entrystore.Owner{Namespace: "default", Agent: "other"}
	const command = "moorebus init --storage default/other"
	require.ErrorContains(t, entrystore.New(actor).Save(t.Context(), other, entrystore.Actor, saved), command)
	_, err = entrystore.New(observer).Get(t.Context(), other, saved.Tags)
	require.ErrorContains(t, err, command)
	_, err = entrystore.New(actor).Find(t.Context(), other, entrystore.Query{Tags: []string{"a"}})
	require.ErrorContains(t, err, command)
	require.ErrorIs(t, err, journal.ErrDenied)
}

func TestStorageOfALayoutIsChecked(t *testing.T) {
	t.Parallel()
	_, err := Users(Layout{Storage: []entrystore.Owner{{Namespace: "Default", Agent: "a"}}})
	require.ErrorContains(t, err, `"Default/a" is not NAMESPACE/AGENT`)
}

// TestObserverKeepsSnapshots: only the observer may replace and remove snapshots.
func TestObserverKeepsSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	snapshot := ports.Snapshot{Seq: 1, N: 1, Memory: json.RawMessage(`{}`)}
	bus := r.open(t, Observer)
	for range 2 {
		require.NoError(t, bus.PutSnapshot(t.Context(), run, snapshot))
	}
	require.ErrorIs(t, r.open(t, Planner).DeleteSnapshot(t.Context(), run), journal.ErrDenied)
	require.NoError(t, bus.DeleteSnapshot(t.Context(), run))
	_, err := bus.Snapshot(t.Context(), run)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

// TestObserverHearsOfEnds: the observer gets the ends of runs, to remove their snapshots.
func TestObserverHearsOfEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	heard := make(chan string, 1)
	stop, err := r.open(t, Observer).Watch(journal.Filter{To: events.Cancelled}, func(rec journal.Record) { heard <- rec.Subject }, func() {})
	require.NoError(t, err)
	defer stop()
	run := events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	subject := events.Subject{Run: run, From: events.Control, To: events.Cancelled, Pool: events.DefaultPool}
	_, err = r.log.Append(t.Context(), run, 0, journal.Entry{Subject: subject, Body: []byte(`{}`)})
	require.NoError(t, err)
	require.Equal(t, subject.String(), <-heard)
}

// TestLoans: actors of a pool lend to each other under their permissions, read the tools of
// the pool, and withdraw their announcements. An actor of another pool cannot lend to them,
// and gets an error at once.
func TestLoans(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lender, borrower, other := r.open(t, "actor_web"), r.open(t, "actor_web"), r.open(t, "actor_gpu")
	run := journaltest.NewRun(t, r.log)
	_, err := r.log.Append(t.Context(), run, 0, journaltest.Entry(run, events.Acting, "web", "{}"))
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	got, ended := make(chan journal.Delivery, 1), make(chan error, 1)
	go func() {
		ended <- lender.Consume(ctx, inbox("web", events.Acting, events.ParallelActing), 1, func(d journal.Delivery) { got <- d })
	}()
	d := <-got
	defer func() { stop(); require.NoError(t, <-ended) }()
	loan := ports.Loan{Pool: "web", Name: "search", Key: "tool/2/c1"}
	done, err := borrower.Borrow("web", "search", func(d journal.Delivery, l ports.Loan) (time.Duration, error) {
		return time.Second, d.Extend()
	})
	require.NoError(t, err)
	defer done()
	require.Eventually(t, func() bool {
		retry, err := lender.Lend(ctx, d, loan)
		return err == nil && retry == time.Second
	}, patience, 10*time.Millisecond)
	_, err = other.Lend(ctx, d, loan)
	require.ErrorIs(t, err, journal.ErrDenied)
	require.NoError(t, d.Ack())

	spec := events.ToolSpec{Name: "search", Pool: "web", Effect: "pure", Risk: "low"}
	announced := announce.NewDirectory(borrower, nil)
	require.NoError(t, announced.Announce(ctx, "web", "b", []events.ToolSpec{spec}))
	tools, err := announce.NewDirectory(lender, nil).PoolTools(ctx, "web")
	require.NoError(t, err)
	require.Equal(t, []string{"search"}, []string{tools[0].Name})
	require.NoError(t, announced.Withdraw(ctx, "web", "b"))
	tools, err = announce.NewDirectory(lender, nil).PoolTools(ctx, "web")
	require.NoError(t, err)
	require.Empty(t, tools)
}

// A user that may not look at consumers gets all counts but the backlog, and the reason.
func TestStatsOfAUserWithFewerPermissions(t *testing.T) {
	t.Parallel()
	bus := newRig(t).open(t, Tap)
	c, err := control.New(control.Config{
		Base: worker.Base{Instance: "t", Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus, Logger: quiet}, Timers: bus, KV: bus, Fleet: bus,
	})
	require.NoError(t, err)
	stats, err := c.Stats(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, stats.Backlog)
	require.Contains(t, stats.BacklogReason, "is not permitted")
	require.Contains(t, stats.WorkersReason, "is not permitted")
}

// The exporter of traces reads the log, and keeps its lease and its position.
func TestTelemetryKeepsItsPlace(t *testing.T) {
	t.Parallel()
	bus := newRig(t).open(t, Telemetry)
	_, err := journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	keep := ports.RoleKey{Role: Telemetry, Name: "traces"}
	require.NoError(t, bus.Lead(t.Context(), keep, func(ctx context.Context) error {
		_, err := buckets.PutPosition(ctx, bus, keep, []byte("[1]"), 0)
		return err
	}))
	value, _, err := buckets.Position(t.Context(), bus, keep)
	require.NoError(t, err)
	require.Equal(t, "[1]", string(value))
}

// TestEveryRoleMayAskWhetherItIsReady: the user of each role may ask what its readiness depends on.
func TestEveryRoleMayAskWhetherItIsReady(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	users, err := Users(layout)
	require.NoError(t, err)
	for _, user := range roles(users) {
		bus := r.open(t, user)
		require.NoError(t, bus.Quorum(t.Context()), user)
		if user == Gateway {
			require.NoError(t, bus.Ready(t.Context()))
		}
	}
}

// An actor that observes has the permissions of both roles, and those of no other one.
func TestObservingPools(t *testing.T) {
	l := Layout{Pools: []string{"web", "gpu"}, Observing: []string{"web"}}
	users, err := Users(l)
	require.NoError(t, err)
	of := map[string]User{}
	for _, u := range users {
		of[u.Name] = u
	}
	own := func(u User) (publish []string) {
		return slices.DeleteFunc(slices.Clone(u.Publish), func(s string) bool { return strings.Contains(s, "_INBOX") })
	}
	plain, err := Users(Layout{Pools: l.Pools})
	require.NoError(t, err)
	for _, u := range plain {
		want := own(u)
		if u.Name == "actor_web" {
			want = append(want, own(of[Observer])...)
			slices.Sort(want)
			want = slices.Compact(want)
		}
		require.ElementsMatch(t, want, own(of[u.Name]), u.Name)
	}
	l.Observing = []string{"cpu"}
	_, err = Users(l)
	require.ErrorContains(t, err, `observing pools: there is no pool "cpu"; the pools are default, gpu, web`)
}
