package natsbus

import (
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestInit(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	_, err := Open(ctx, conn, Options{Logger: quiet})
	require.ErrorIs(t, err, journal.ErrNotReady)
	require.ErrorContains(t, err, "moorebus init")

	require.NoError(t, Init(ctx, conn, InitOptions{Shards: 3}))
	bus, err := Open(ctx, conn, Options{Logger: quiet})
	require.NoError(t, err)
	require.Equal(t, 3, bus.Shards())
	require.NoError(t, bus.Ready(ctx))
	run := journaltest.NewRun(t, bus)
	journaltest.AppendAll(t, bus, run, "kept")

	require.NoError(t, Init(ctx, conn, InitOptions{Pools: []string{"web"}, AckWait: 3 * time.Second}), "again, with more")
	wait, err := bus.AckWait(ctx, journal.Inbox{States: []events.State{events.Acting}, Pool: "web"})
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, wait)
	for _, shards := range []int{1, 2, 4} {
		require.ErrorContains(t, Init(ctx, conn, InitOptions{Shards: shards}), "the log has 3 shards")
	}
	require.Error(t, Init(ctx, conn, InitOptions{Pools: []string{"*"}}))
	require.Error(t, Init(ctx, conn, InitOptions{Replicas: -1}))
	recs, err := journaltest.Collect(bus.Read(ctx, run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 1)
}

// TestInitWritesNothingAgain: a power loss while nats-server writes settings can take a stream, so
// a start of Moorebus writes none that are as they should be, whatever else is on the disk.
func TestInitWritesNothingAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{Dir: dir}))
	written := func() map[string]time.Time {
		t.Helper()
		all := map[string]time.Time{}
		require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.Name() != "meta.inf" {
				return err
			}
			info, err := e.Info()
			all[path] = info.ModTime()
			return err
		}))
		return all
	}
	options := func(storable int64) InitOptions {
		return InitOptions{Shards: 2, Pools: []string{"web"}, Storable: storable, Buckets: entrystore.Buckets(entrystore.Owner{Namespace: events.DefaultNamespace, Agent: "clerk"})}
	}
	require.NoError(t, Init(ctx, conn, options(10<<30)))
	before := written()
	require.Greater(t, len(before), 30, "streams, buckets and consumers")
	require.NoError(t, Init(ctx, conn, options(10<<30-500<<20)))
	require.True(t, maps.Equal(before, written()))

	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(ctx, events.StreamName(0))
	require.NoError(t, err)
	consumer, err := stream.Consumer(ctx, "planning")
	require.NoError(t, err)
	changed := consumer.CachedInfo().Config
	changed.BackOff, changed.MaxDeliver = []time.Duration{time.Second}, 3
	_, err = stream.UpdateConsumer(ctx, changed)
	require.NoError(t, err)
	require.NoError(t, Init(ctx, conn, options(10<<30)))
	consumer, err = stream.Consumer(ctx, "planning")
	require.NoError(t, err)
	require.Empty(t, consumer.CachedInfo().Config.BackOff, "what somebody changed is mended")
	require.Equal(t, -1, consumer.CachedInfo().Config.MaxDeliver)
}

// TestInitKeepsWhatIsNotNamed: who makes a pool does not change the others.
func TestInitKeepsWhatIsNotNamed(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	terms := func(name string) (time.Duration, int) {
		t.Helper()
		wait, pending := time.Duration(0), 0
		for shard := range 2 {
			c, err := js.Consumer(ctx, events.StreamName(shard), name)
			require.NoError(t, err)
			wait, pending = c.CachedInfo().Config.AckWait, pending+c.CachedInfo().Config.MaxAckPending
		}
		return wait, pending
	}
	is := func(name string, ackWait time.Duration, maxAckPending int) {
		t.Helper()
		wait, pending := terms(name)
		require.Equal(t, ackWait, wait, name)
		require.Equal(t, maxAckPending, pending, name)
	}
	require.NoError(t, Init(ctx, conn, InitOptions{Shards: 2, PoolMaxAckPending: map[string]int{"gpu": 4}}))
	is("acting_gpu", defaultAckWait, 4)
	is("acting_default", defaultAckWait, 2*defaultMaxAckPending)
	require.NoError(t, Init(ctx, conn, InitOptions{AckWait: 3 * time.Second, PoolMaxAckPending: map[string]int{"web": 7}}))
	is("acting_gpu", 3*time.Second, 4)
	is("acting_web", 3*time.Second, 7)
	require.NoError(t, Init(ctx, conn, InitOptions{Pools: []string{"more"}}))
	is("acting_gpu", 3*time.Second, 4)
	is("planning", 3*time.Second, 2*defaultMaxAckPending)
	is("acting_more", defaultAckWait, 2*defaultMaxAckPending)
	require.NoError(t, Init(ctx, conn, InitOptions{MaxAckPending: 50, PoolMaxAckPending: map[string]int{"web": 8}}))
	is("acting_gpu", 3*time.Second, 4)
	is("acting_web", 3*time.Second, 8)
	is("acting_more", defaultAckWait, 100)
	is("planning", 3*time.Second, 100)
	bus, err := Open(ctx, conn, Options{})
	require.NoError(t, err)
	for pool, limited := range map[string]bool{"gpu": true, "web": true, "more": false} {
		is, err := bus.Limited(ctx, pool)
		require.NoError(t, err)
		require.Equal(t, limited, is, pool)
	}
	require.NoError(t, Init(ctx, conn, InitOptions{PoolMaxAckPending: map[string]int{"gpu": defaultMaxAckPending}}))
	is("acting_gpu", 3*time.Second, defaultMaxAckPending)
	bus, err = Open(ctx, conn, Options{})
	require.NoError(t, err)
	limited, err := bus.Limited(ctx, "gpu")
	require.NoError(t, err)
	require.False(t, limited)
	require.ErrorContains(t, Init(ctx, conn, InitOptions{PoolMaxAckPending: map[string]int{"web": 1}}), "2 shards")
	require.ErrorContains(t, Init(ctx, conn, InitOptions{PoolMaxAckPending: map[string]int{"web": 0}}), "pool web")
	require.Error(t, Init(ctx, conn, InitOptions{PoolMaxAckPending: map[string]int{"*": 1}}))
}

// TestInitForeignStream refuses to take over what is somebody else's.
func TestInitForeignStream(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"moore.>"}})
	require.NoError(t, err)
	require.ErrorContains(t, Init(ctx, conn, InitOptions{}), "OTHER")
}

// TestLogCannotBeChanged tries what a publisher or an operator could do to it.
func TestLogCannotBeChanged(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	run := journaltest.NewRun(t, bus)
	journaltest.AppendAll(t, bus, run, "1", "2")
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	stream, err := js.Stream(ctx, events.StreamName(0))
	require.NoError(t, err)
	require.Error(t, stream.DeleteMsg(ctx, 1))
	subject := entryTo(run, events.Acting, "web", nil).Subject.String()
	for key, value := range map[string]string{"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Schedule": "@every 1s"} {
		msg := natsMsg(subject, "x")
		msg.Header.Set(key, value)
		_, err := js.PublishMsg(ctx, msg)
		require.Error(t, err, key)
	}
	recs, err := journaltest.Collect(bus.Read(ctx, run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 2)
}

func texts(findings []Finding, level Level) string {
	var all []string
	for _, f := range findings {
		if f.Level == level {
			all = append(all, f.String())
		}
	}
	return strings.Join(all, "\n")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	findings := Check(ctx, conn, Options{Logger: quiet})
	require.Contains(t, texts(findings, Bad), "moorebus init")

	openBus(t, conn, 2)
	findings = Check(ctx, conn, Options{Logger: quiet})
	require.Empty(t, texts(findings, Bad))
	require.Contains(t, texts(findings, Good), "nats-server 2.")
	require.Contains(t, texts(findings, Warning), "sync_interval")

	js, err := jetstream.New(conn)
	require.NoError(t, err)
	require.NoError(t, js.DeleteConsumer(ctx, "MOORE_1", "planning"))
	_, err = js.UpdateConsumer(ctx, "MOORE_0", jetstream.ConsumerConfig{
		Durable: "acting_web", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3, FilterSubject: "moore.0.*.*.acting.web.*",
		MaxWaiting: maxWaiting, AckWait: time.Second, MaxAckPending: 5,
	})
	require.NoError(t, err)
	cfg := streamConfig(1, 2, 1, jetstream.FileStorage)
	cfg.AllowAtomicPublish = false
	cfg.RePublish = nil
	_, err = js.UpdateStream(ctx, cfg)
	require.NoError(t, err)
	bad := texts(Check(ctx, conn, Options{Logger: quiet}), Bad)
	for _, want := range []string{"consumer planning of MOORE_1", "limit of deliveries", "it filters", "allow atomic is false", "does not republish", "--pools web"} {
		require.Contains(t, bad, want)
	}
	require.NoError(t, Init(ctx, conn, InitOptions{Pools: []string{"web"}}))
	require.Empty(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad), "init mends it")

	conn.Close()
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad), "does not answer")
}

func TestVersions(t *testing.T) {
	require.True(t, olderThan("2.11.9", "2.12.0"))
	require.True(t, olderThan("", "2.12.0"))
	require.False(t, olderThan("2.12.0-RC.1", "2.12.0"))
	require.False(t, olderThan("v3.0.0", "2.12.0"))
}

// An old log that denies purging keeps doing so, and everything else goes on.
func TestPurgeIsDeniedByAnOldLog(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	old := streamConfig(0, 1, 1, jetstream.FileStorage)
	old.DenyPurge = true
	_, err = js.CreateStream(ctx, old)
	require.NoError(t, err)
	bus := openBus(t, conn, 1)
	run := journaltest.NewRun(t, bus)
	last := journaltest.AppendAll(t, bus, run, "1", "2")
	_, err = bus.Purge(ctx, run, last)
	require.ErrorIs(t, err, ports.ErrPurgeDenied)
	require.ErrorContains(t, err, "import it into a new one")
	require.Empty(t, texts(Check(ctx, conn, Options{Logger: quiet}), Bad))
	require.Contains(t, texts(Check(ctx, conn, Options{Logger: quiet}), Warning), "deny_purge")
}

// Who asks to store what is there keeps it from being deleted.
func TestStoredAgainIsKept(t *testing.T) {
	t.Parallel()
	ctx, bus := t.Context(), newBus(t, 1)
	data := []byte("a result")
	ref, err := bus.PutBlob(ctx, "web", data)
	require.NoError(t, err)
	age := func() {
		info, err := bus.objectInfo(ctx, ref)
		require.NoError(t, err)
		info.Time = time.Now().Add(-2 * ports.BlobSafe)
		require.NoError(t, bus.putInfo(ctx, ref, info, map[string][]string{}))
	}
	safe := func() time.Time { return time.Now().Add(-ports.BlobSafe) }
	age()
	_, err = bus.PutBlob(ctx, "web", data)
	require.NoError(t, err)
	removed, err := bus.DeleteBlob(ctx, ref, safe())
	require.NoError(t, err)
	require.False(t, removed)

	// The one who deletes was faster: the object is written anew.
	age()
	stale, err := bus.objectInfo(ctx, ref)
	require.NoError(t, err)
	removed, err = bus.DeleteBlob(ctx, ref, safe())
	require.NoError(t, err)
	require.True(t, removed)
	require.ErrorIs(t, bus.touch(ctx, ref, stale), journal.ErrNotFound)
	_, err = bus.PutBlob(ctx, "web", data)
	require.NoError(t, err)

	// The one who stores was faster: what deletes leaves it.
	age()
	stale, err = bus.objectInfo(ctx, ref)
	require.NoError(t, err)
	_, err = bus.PutBlob(ctx, "web", data)
	require.NoError(t, err)
	require.ErrorIs(t, bus.deleteObject(ctx, ref, stale), errTouched)
	got, err := bus.Blob(ctx, ref)
	require.NoError(t, err)
	require.Equal(t, data, got)
}

// A read that waits for a replica to have a record ends when that is purged.
func TestReadingWhatIsPurgedEnds(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	run := journaltest.NewRun(t, bus)
	last := journaltest.AppendAll(t, bus, run, "1", "2", "3")
	_, err := bus.Purge(t.Context(), run, last)
	require.NoError(t, err)
	recs, err := journaltest.Collect(bus.RecordsOn(t.Context(), events.StreamName(0), run.Filter(), 0, last))
	require.NoError(t, err)
	require.Empty(t, recs)
}

func TestGoldenSubjects(t *testing.T) {
	require.Equal(t, "chunk.default.r", textSubject(events.Run{Namespace: "default", ID: "r"}))
	require.Equal(t, "moore.7.>", streamSubjects(7))
}

// Only a log without events can say what all builds know. An older build may have written events.
func TestAgree(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), inProcess(t, startServer(t, embedded.Options{}))
	require.NoError(t, Init(ctx, conn, InitOptions{Shards: 4}))
	revision := func() int {
		bus, err := Open(ctx, conn, Options{Logger: quiet})
		require.NoError(t, err)
		return bus.Revision()
	}
	bus, err := Open(ctx, conn, Options{Logger: quiet})
	require.NoError(t, err)
	run := journaltest.NewRun(t, bus)
	for run.Shard == 0 { // the first shard alone does not say that there are no events
		run = journaltest.NewRun(t, bus)
	}
	journaltest.AppendAll(t, bus, run, "of an older build")
	require.NoError(t, bus.Agree(ctx, 8))
	require.Zero(t, bus.Revision())
	require.Zero(t, revision())

	conn = inProcess(t, startServer(t, embedded.Options{}))
	require.NoError(t, Init(ctx, conn, InitOptions{Shards: 4}))
	bus, err = Open(ctx, conn, Options{Logger: quiet})
	require.NoError(t, err)
	require.Zero(t, bus.Revision())
	require.NoError(t, bus.Agree(ctx, 8))
	require.Equal(t, 8, bus.Revision())
	require.Equal(t, 8, revision())
	require.NoError(t, Init(ctx, conn, InitOptions{Pools: []string{"web"}}))
	require.Equal(t, 8, revision(), "a later init keeps it")
}
