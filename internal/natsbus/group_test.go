package natsbus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// durableBus is a bus on a server that flushes each append.
func durableBus(t testing.TB, shards int, group GroupCommit) *Bus {
	t.Helper()
	return patient(t, openBus(t, connectTo(t, natstest.Start(t, natstest.Options{JetStream: "sync_interval: always"})), shards), group)
}

func TestConformanceOfGroupCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it runs the conformance suite three times more
	}
	t.Parallel()
	for _, c := range []struct {
		name   string
		group  GroupCommit
		shards int
	}{{"on, 1 shard", GroupCommitOn, 1}, {"on, 3 shards", GroupCommitOn, 3}, {"off", GroupCommitOff, 3}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bus := durableBus(t, c.shards, c.group)
			journaltest.Log(t, func(*testing.T) journal.Log { return bus })
			journaltest.Follow(t, func(*testing.T) journal.Log { return bus })
			journaltest.Fetcher(t, func(*testing.T) journaltest.LogFetcher { return bus })
		})
	}
}

// batchOf prepares appends of new runs in the first shard, on the edge from
// planning.
func batchOf(t testing.TB, bus *Bus, n int) []groupcommit.Pending {
	t.Helper()
	all := make([]groupcommit.Pending, n)
	for i := range all {
		run := journaltest.RunIn(t, bus, 0)
		all[i] = groupcommit.Pending{Run: run, Entries: []journal.Entry{entryTo(run, events.Acting, "web", fmt.Append(nil, i))}}
	}
	return all
}

// same is the join of a batch that nobody joins.
func same(all []groupcommit.Pending) func() []groupcommit.Pending {
	return func() []groupcommit.Pending { return all }
}

// stored is how many records each run has.
func stored(t testing.TB, bus *Bus, all []groupcommit.Pending) (counts []int) {
	t.Helper()
	for _, p := range all {
		recs, err := journaltest.Collect(bus.Read(t.Context(), p.Run, 0))
		require.NoError(t, err)
		counts = append(counts, len(recs))
	}
	return counts
}

// A batch stores all or nothing, and its members' numbers follow on each other.
func TestBatch(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	a := bus.appenders[0]
	all := batchOf(t, bus, 5)
	all[2].Entries = append(all[2].Entries, all[2].Entries[0], all[2].Entries[0])
	last, err := a.Batch(all, same(all))
	require.NoError(t, err)
	require.EqualValues(t, 7, last)
	require.Equal(t, []int{1, 1, 3, 1, 1}, stored(t, bus, all))
	head, err := bus.Head(t.Context(), all[2].Run)
	require.NoError(t, err)
	require.EqualValues(t, 5, head.Seq)

	fresh := append(batchOf(t, bus, 2), all[0])
	_, err = a.Batch(fresh, same(fresh))
	require.Error(t, err)
	require.NotErrorIs(t, err, journal.ErrUnknownOutcome, "it is surely not stored")
	require.Equal(t, []int{0, 0, 1}, stored(t, bus, fresh))
}

// Who comes when the server has made a place for the batch goes with it.
func TestBatchIsJoined(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	all := batchOf(t, bus, 6)
	asked := 0
	last, err := bus.appenders[0].Batch(all[:2], func() []groupcommit.Pending {
		asked++
		require.Zero(t, sum(stored(t, bus, all)), "nothing is stored before all is there")
		return all
	})
	require.NoError(t, err)
	require.Equal(t, 1, asked)
	require.EqualValues(t, 6, last)
	require.Equal(t, []int{1, 1, 1, 1, 1, 1}, stored(t, bus, all))

	// Also where the first append has several entries, and where who came is refused.
	all = append(batchOf(t, bus, 2), all[0])
	all[0].Entries = append(all[0].Entries, all[0].Entries[0], all[0].Entries[0])
	_, err = bus.appenders[0].Batch(all[:2], same(all))
	require.Error(t, err)
	require.NotErrorIs(t, err, journal.ErrUnknownOutcome, "it is surely not stored")
	require.Equal(t, []int{0, 0, 1}, stored(t, bus, all))
	last, err = bus.appenders[0].Batch(all[:1], same(all[:2]))
	require.NoError(t, err)
	require.EqualValues(t, 10, last)
	require.Equal(t, []int{3, 1}, stored(t, bus, all[:2]))
}

func sum(counts []int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// A batch that finds no place at the server is surely not stored, and single appends go
// on.
func TestBatchWithoutAPlace(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	for i := range 60 { // more than the server holds unfinished ones
		err := openedOnly(t.Context(), bus, batchOf(t, bus, 2))
		if err == nil {
			continue
		}
		require.Greater(t, i, 10)
		require.ErrorIs(t, err, errUncommitted)
		all := batchOf(t, bus, 3)
		_, err = bus.appenders[0].Batch(all, func() []groupcommit.Pending { panic("there is no place to join") })
		require.ErrorIs(t, err, errUncommitted)
		require.NotErrorIs(t, err, journal.ErrUnknownOutcome)
		for _, err := range appendAll(t.Context(), bus, all) {
			require.NoError(t, err)
		}
		require.Equal(t, []int{1, 1, 1}, stored(t, bus, all))
		return
	}
	t.Fatal("the server took every batch")
}

// openedOnly opens a batch and never ends it: it has nothing to end it with.
func openedOnly(ctx context.Context, bus *Bus, all []groupcommit.Pending) error {
	_, err := newBatchSender(bus, all, same(all[:1])).send(ctx, time.Now().Add(time.Minute))
	if err == errUncommitted {
		return nil
	}
	return err
}

// A member that may not be published is refused by name, wherever it stands; the
// others are stored.
func TestDeniedInABatch(t *testing.T) {
	t.Parallel()
	operator, worker := guardedServer(t, "moore.*.*.planning.>", "$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.INFO.>")
	owner := openBus(t, operator, 1)
	bus := reopenBus(t, worker, GroupCommitOn)
	for i := range 60 { // more than the server holds unfinished ones
		at := []int{0, 2, 4, 4}[i%4]
		all := batchOf(t, owner, 5)
		all[at].Entries[0].Subject.From = events.Acting
		_, err := bus.appenders[0].Batch(all, same(all))
		require.Error(t, err)
		require.NotErrorIs(t, err, journal.ErrUnknownOutcome, "it is surely not stored")

		errs := appendAll(t.Context(), bus, all)
		for i, err := range errs {
			if i == at {
				require.ErrorIs(t, err, journal.ErrDenied)
				require.ErrorContains(t, err, all[at].Entries[0].Subject.String())
				continue
			}
			require.NoError(t, err)
		}
		want := []int{1, 1, 1, 1, 1}
		want[at] = 0
		require.Equal(t, want, stored(t, owner, all))
	}
}

// appendAll appends all at once and returns their errors.
func appendAll(ctx context.Context, bus *Bus, all []groupcommit.Pending) []error {
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, p := range all {
		done.Go(func() { _, errs[i] = bus.Append(ctx, p.Run, p.Last, p.Entries...) })
	}
	done.Wait()
	return errs
}

// What is in flight when the connection breaks has an unknown outcome at once, and the shard
// goes on when the server is back.
func TestGroupAcrossARestart(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it restarts a server
	}
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	bus := reopenBus(t, openBus(t, connectTo(t, srv), 1).Conn(), GroupCommitOn)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	failed := make(chan error, 100)
	runs := make([]events.Run, 100)
	counts := make([]int, len(runs))
	for i := range runs {
		runs[i] = journaltest.NewRun(t, bus)
		writers.Go(func() {
			var last uint64
			for ctx.Err() == nil {
				seq, err := persist(t.Context(), bus, runs[i], last, entryTo(runs[i], events.Nobody, "default", fmt.Append(nil, counts[i])))
				if err != nil {
					failed <- err
					return
				}
				last = seq
				counts[i]++
			}
		})
	}
	for range 2 {
		grown(t, bus, 1000)
		restart(srv)
	}
	grown(t, bus, 1000)
	stop()
	writers.Wait()
	require.Empty(t, failed)
	for i, run := range runs {
		recs, err := journaltest.Collect(bus.Read(t.Context(), run, 0))
		require.NoError(t, err)
		require.Len(t, recs, counts[i])
	}
}

// grown waits until the log has so many more records.
func grown(t *testing.T, bus *Bus, more uint64) {
	t.Helper()
	var first uint64
	require.Eventually(t, func() bool {
		last, err := bus.Last(t.Context(), 0)
		if err == nil && first == 0 {
			first = max(last, 1)
		}
		return err == nil && last >= first+more
	}, patience, 10*time.Millisecond)
}

// Group commit turns itself on where the log says that the server flushes.
func TestGroupCommitAuto(t *testing.T) {
	t.Parallel()
	conn := connectTo(t, natstest.Start(t, natstest.Options{}))
	open := func(sync Sync, group GroupCommit) bool {
		require.NoError(t, Init(t.Context(), conn, InitOptions{Sync: sync}))
		return reopenBus(t, conn, group).grouped.Load()
	}
	require.False(t, open(SyncUnknown, GroupCommitAuto), "nobody has said it")
	require.True(t, open(SyncAlways, GroupCommitAuto))
	require.True(t, open(SyncUnknown, GroupCommitAuto), "an init that cannot tell changes nothing")
	require.False(t, open(SyncAlways, GroupCommitOff))
	require.False(t, open(SyncRelaxed, GroupCommitAuto))
	require.True(t, open(SyncRelaxed, GroupCommitOn))
}

func TestParseGroupCommit(t *testing.T) {
	for text, want := range map[string]GroupCommit{"auto": GroupCommitAuto, "on": GroupCommitOn, "off": GroupCommitOff} {
		got, err := ParseGroupCommit(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := ParseGroupCommit("yes")
	require.ErrorContains(t, err, "auto, on or off")
}

// BenchmarkGroupCommit appends to runs at once on a server that flushes.
func BenchmarkGroupCommit(b *testing.B) {
	for _, runs := range []int{1, 16, 64, 200, 1000} {
		for _, group := range []GroupCommit{GroupCommitOn, GroupCommitOff} {
			name := map[GroupCommit]string{GroupCommitOn: "on", GroupCommitOff: "off"}[group]
			b.Run(fmt.Sprintf("runs=%d/group=%s", runs, name), func(b *testing.B) {
				bus := durableBus(b, 1, group)
				b.ReportAllocs()
				b.ResetTimer()
				require.NoError(b, appendTo(bus, runs, b.N))
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
			})
		}
	}
}

// appendTo makes n appends to so many runs, at once.
func appendTo(bus *Bus, runs, n int) error {
	body := make([]byte, 700)
	errs := make([]error, runs)
	var done sync.WaitGroup
	for i := range runs {
		run := events.NewRun(events.DefaultNamespace, fmt.Sprintf("019325a0-0000-7000-8000-%012d", i), 1)
		done.Go(func() {
			var last uint64
			for range n/runs + min(1, max(0, n%runs-i)) {
				if last, errs[i] = bus.Append(context.Background(), run, last, entryTo(run, events.Nobody, "default", body)); errs[i] != nil {
					return
				}
			}
		})
	}
	done.Wait()
	return errors.Join(errs...)
}
