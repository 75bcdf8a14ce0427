package journaltest

import (
	"context"
	"fmt"
	"testing"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// LogFetcher is a journal that gives out records by their numbers.
type LogFetcher interface {
	LogQueue
	ports.Fetcher
}

// Fetcher tests [ports.Fetcher], and what [journal.Record.After] says of the
// records that are fetched, delivered and read.
func Fetcher(t *testing.T, open func(t *testing.T) LogFetcher) {
	log := open(t)
	for name, test := range map[string]func(*testing.T, LogFetcher){
		"a record":                 testFetch,
		"another run's record":     testFetchOther,
		"a record that is not":     testFetchNothing,
		"refusals":                 testFetchRefused,
		"after, of several":        testAfterSeveral,
		"after, in a crowd":        testAfterCrowd,
		"after, of deliveries":     testAfterDelivered,
		"back to the run's origin": testFetchBack,
		"the run's first":          testFirst,
	} {
		t.Run(name, func(t *testing.T) { test(t, log) })
	}
}

func mustFetch(t *testing.T, log LogFetcher, run events.Run, seq uint64) journal.Record {
	t.Helper()
	rec, err := log.Fetch(bounded(t), run, seq)
	require.NoError(t, err)
	require.Equal(t, seq, rec.Seq)
	return rec
}

// requireAfter requires that the run's records were appended after those, in turn:
// a fetched one says so, and one that was read says so or nothing.
func requireAfter(t *testing.T, log LogFetcher, run events.Run, after ...uint64) {
	t.Helper()
	recs := mustCollect(t, log.Read(bounded(t), run, 0))
	require.Len(t, recs, len(after))
	for i, rec := range recs {
		require.Equal(t, after[i], mustFetch(t, log, run, rec.Seq).After, "record %d of the run", i)
		require.Contains(t, []uint64{0, after[i]}, rec.After, "record %d of the run", i)
	}
}

// testFetch shows that a fetched record is the one that is read.
func testFetch(t *testing.T, log LogFetcher) {
	run := NewRun(t, log)
	AppendAll(t, log, run, `{"a":1}`, "", "\x00\xff")
	recs := mustCollect(t, log.Read(bounded(t), run, 0))
	require.Len(t, recs, 3)
	for _, want := range recs {
		got := mustFetch(t, log, run, want.Seq)
		require.Equal(t, want.Subject, got.Subject)
		require.Equal(t, string(want.Body), string(got.Body))
		require.True(t, want.Stored.Equal(got.Stored), "%s is not %s", got.Stored, want.Stored)
	}
}

// testFetchOther shows that the run only says in which shard to look.
func testFetchOther(t *testing.T, log LogFetcher) {
	run := NewRun(t, log)
	other := RunIn(t, log, run.Shard)
	AppendAll(t, log, run, "mine")
	seq := AppendAll(t, log, other, "another's")
	rec := mustFetch(t, log, run, seq)
	require.Equal(t, "another's", string(rec.Body))
	require.Equal(t, plain(other, "").Subject.String(), rec.Subject)
	require.Equal(t, rec, mustFetch(t, log, other, seq))
}

func testFetchNothing(t *testing.T, log LogFetcher) {
	run := NewRun(t, log)
	last := AppendAll(t, log, run, "1")
	for _, seq := range []uint64{last + 1000, 1 << 40} {
		_, err := log.Fetch(bounded(t), run, seq)
		require.ErrorIs(t, err, journal.ErrNotFound)
	}
}

func testFetchRefused(t *testing.T, log LogFetcher) {
	run := NewRun(t, log)
	seq := AppendAll(t, log, run, "1")
	elsewhere := run
	elsewhere.Shard = log.Shards()
	_, err := log.Fetch(bounded(t), elsewhere, seq)
	require.Error(t, err)
	require.NotErrorIs(t, err, journal.ErrNotFound)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = log.Fetch(ctx, run, seq)
	require.ErrorIs(t, err, context.Canceled)
}

// testAfterSeveral shows that the entries of one append all say after what they
// were appended, and not that they follow one another.
func testAfterSeveral(t *testing.T, log LogFetcher) {
	ctx, run := bounded(t), NewRun(t, log)
	first := AppendAll(t, log, run, "1")
	AppendAll(t, log, RunIn(t, log, run.Shard), "between")
	several, err := log.Append(ctx, run, first, plain(run, "2"), plain(run, "3"), plain(run, "4"))
	require.NoError(t, err)
	_, err = log.Append(ctx, run, several, plain(run, "5"))
	require.NoError(t, err)
	requireAfter(t, log, run, 0, first, first, first, several)
}

// testAfterCrowd appends to many runs of one shard at once: however they are
// stored, each record says where its own run ended.
func testAfterCrowd(t *testing.T, log LogFetcher) {
	ctx := bounded(t)
	all := make([]*attempt, 100)
	after := make([][]uint64, len(all))
	for i := range all {
		all[i] = &attempt{run: RunIn(t, log, 0)}
	}
	for round := range 3 {
		for i, a := range all {
			a.last, a.text = a.seq, fmt.Sprint(round)
			after[i] = append(after[i], a.last)
		}
		appendAtOnce(ctx, log, all)
		for _, a := range all {
			require.NoError(t, a.err)
		}
	}
	for i, a := range all {
		requireAfter(t, log, a.run, after[i]...)
	}
}

// testAfterDelivered shows that a delivered record says after which one it was
// appended, be it delivered for the first time or again.
func testAfterDelivered(t *testing.T, log LogFetcher) {
	run, pool := NewRun(t, log), NewToken(t)
	first := AppendAll(t, log, run, "first")
	_, err := log.Append(bounded(t), run, first, Entry(run, events.Acting, pool, "a"), Entry(run, events.Acting, pool, "b"))
	require.NoError(t, err)
	c := consume(t, log, acting(pool), 1, nil)
	for range 2 {
		d := c.next(t)
		require.Equal(t, first, d.Record().After)
		require.NoError(t, d.Retry(0))
	}
	for seen := map[string]bool{}; len(seen) < 2; {
		d := c.next(t)
		require.Equal(t, first, d.Record().After)
		require.Equal(t, first, mustFetch(t, log, run, d.Record().Seq).After)
		require.NoError(t, d.Ack())
		seen[string(d.Record().Body)] = true
	}
}

// testFetchBack goes from the run's last record to its first, by what each says.
func testFetchBack(t *testing.T, log LogFetcher) {
	run := NewRun(t, log)
	want := numbered(6)
	var back []string
	for seq := AppendAll(t, log, run, want...); seq > 0; {
		rec := mustFetch(t, log, run, seq)
		back = append([]string{string(rec.Body)}, back...)
		require.Less(t, rec.After, seq)
		seq = rec.After
	}
	require.Equal(t, want, back)
}

// testFirst shows that the run's first record says so, as one that was fetched or
// delivered, and no other one.
func testFirst(t *testing.T, log LogFetcher) {
	run, pool := NewRun(t, log), NewToken(t)
	first, err := log.Append(bounded(t), run, 0, Entry(run, events.Acting, pool, "a"))
	require.NoError(t, err)
	second, err := log.Append(bounded(t), run, first, Entry(run, events.Acting, pool, "b"))
	require.NoError(t, err)
	require.True(t, mustFetch(t, log, run, first).First)
	require.False(t, mustFetch(t, log, run, second).First)
	c := consume(t, log, acting(pool), 1, nil)
	for range 2 {
		d := c.next(t)
		require.Equal(t, d.Record().Seq == first, d.Record().First)
		require.NoError(t, d.Ack())
	}
	several := NewRun(t, log)
	last, err := log.Append(bounded(t), several, 0, plain(several, "1"), plain(several, "2"))
	require.NoError(t, err)
	require.False(t, mustFetch(t, log, several, last).First)
}
