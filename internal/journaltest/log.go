package journaltest

import (
	"context"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Log tests [journal.Log] but for Follow, which has its own part.
func Log(t *testing.T, open func(t *testing.T) journal.Log) {
	log := open(t)
	for name, test := range map[string]func(*testing.T, journal.Log){
		"empty run":                testEmptyRun,
		"append, read, head":       testAppendRead,
		"bodies byte for byte":     testBodies,
		"read from the middle":     testReadAfter,
		"reader that stops":        testReadStops,
		"long run":                 testLongRun,
		"large records":            testLargeRecords,
		"scan with filters":        testScanFilters,
		"scan of interleaved runs": testScanInterleaved,
		"last":                     testLast,
		"context that ended":       testEndedContext,
		"refusals":                 testRefusals,
		"too large":                testTooLarge,
	} {
		t.Run(name, func(t *testing.T) { test(t, log) })
	}
	t.Run("condition", func(t *testing.T) { testConditions(t, log) })
}

func testEmptyRun(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	require.Empty(t, mustCollect(t, log.Read(ctx, run, 0)))
	_, err := log.Head(ctx, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

func testAppendRead(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	first, err := log.Append(ctx, run, 0, plain(run, `{"a":1}`))
	require.NoError(t, err)
	require.Positive(t, first)
	head, err := log.Head(ctx, run)
	require.NoError(t, err)
	require.Equal(t, first, head.Seq)
	second, err := log.Append(ctx, run, first, Entry(run, events.Acting, "web", `{"b":2}`))
	require.NoError(t, err)
	require.Greater(t, second, first)

	got := mustCollect(t, log.Read(ctx, run, 0))
	require.Equal(t, []string{`{"a":1}`, `{"b":2}`}, bodies(got))
	require.Equal(t, []uint64{first, second}, []uint64{got[0].Seq, got[1].Seq})
	require.Equal(t, plain(run, "").Subject.String(), got[0].Subject)
	require.Equal(t, Entry(run, events.Acting, "web", "").Subject.String(), got[1].Subject)
	head, err = log.Head(ctx, run)
	require.NoError(t, err)
	require.Equal(t, got[1].Subject, head.Subject)
	require.Equal(t, got[1].Body, head.Body)
	require.Equal(t, got[1].Seq, head.Seq)
}

func testBodies(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	want := []string{
		`{"b":1,  "a":1.0, "e":1e3}`, "not json", "", "two\nlines", "\x00\xff\xfe", `{"u":"\u00e9é"}`,
		"{\r\n}", ` {"space":"around"} `, `{"dup":1,"dup":2}`, `"` + strings.Repeat("x", 100_000) + `"`, "null",
		`{"html":"<&>` + "\u2028" + `"}`,
	}
	AppendAll(t, log, run, want...)
	require.Equal(t, want, bodies(mustCollect(t, log.Read(bounded(t), run, 0))))
}

func testReadAfter(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	AppendAll(t, log, run, numbered(10)...)
	all := mustCollect(t, log.Read(ctx, run, 0))
	require.Len(t, all, 10)
	for i, rec := range all {
		require.Equal(t, bodies(all)[i+1:], append([]string{}, bodies(mustCollect(t, log.Read(ctx, run, rec.Seq)))...))
	}
	require.Empty(t, mustCollect(t, log.Read(ctx, run, all[9].Seq+1000)))
}

func testReadStops(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	AppendAll(t, log, run, numbered(10)...)
	seen := 0
	for _, err := range log.Read(bounded(t), run, 0) {
		require.NoError(t, err)
		if seen++; seen == 3 {
			break
		}
	}
	require.Equal(t, 3, seen)
}

func testLongRun(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	want := numbered(700)
	AppendAll(t, log, run, want...)
	got := mustCollect(t, log.Read(bounded(t), run, 0))
	require.Equal(t, want, bodies(got))
	for i := 1; i < len(got); i++ {
		require.Greater(t, got[i].Seq, got[i-1].Seq)
	}
}

func testLargeRecords(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	var want []string
	for _, letter := range "abcdefghijkl" {
		want = append(want, `"`+strings.Repeat(string(letter), 900_000)+`"`)
	}
	AppendAll(t, log, run, want...)
	require.Equal(t, want, bodies(mustCollect(t, log.Read(bounded(t), run, 0))))
}

func testScanFilters(t *testing.T, log journal.Log) {
	ctx := bounded(t)
	one, two := NewRun(t, log), NewRun(t, log)
	one.Namespace, two.Namespace = NewToken(t), NewToken(t)
	two = RunIn(t, log, one.Shard)
	two.Namespace = NewToken(t)
	s1, err := log.Append(ctx, one, 0, Entry(one, events.Acting, "web", "1"))
	require.NoError(t, err)
	s2, err := log.Append(ctx, two, 0, Entry(two, events.Acting, "db", "2"))
	require.NoError(t, err)
	last := Entry(one, events.Planning, events.DefaultPool, "3")
	last.Subject.From = events.Observing
	_, err = log.Append(ctx, one, s1, last)
	require.NoError(t, err)

	scan := func(f journal.Filter, after uint64) []string {
		return append([]string{}, bodies(mustCollect(t, log.Scan(ctx, one.Shard, f, after)))...)
	}
	after := s1 - 1
	require.Equal(t, []string{"1", "2", "3"}, scan(journal.Filter{}, after))
	require.Equal(t, []string{"2", "3"}, scan(journal.Filter{}, s1))
	require.Equal(t, []string{"3"}, scan(journal.Filter{}, s2))
	require.Equal(t, []string{"1", "3"}, scan(journal.Filter{Namespace: one.Namespace}, 0))
	require.Equal(t, []string{"1", "2"}, scan(journal.Filter{From: events.Planning}, after))
	require.Equal(t, []string{"1", "2"}, scan(journal.Filter{To: events.Acting}, after))
	require.Equal(t, []string{"1"}, scan(journal.Filter{To: events.Acting, Pool: "web"}, after))
	require.Equal(t, []string{"2"}, scan(journal.Filter{Run: two.ID}, 0))
	require.Equal(t, []string{}, scan(journal.Filter{Run: two.ID, Namespace: one.Namespace}, 0))

	newest := func(f journal.Filter) string {
		rec, err := log.Newest(ctx, one.Shard, f)
		require.NoError(t, err)
		require.True(t, f.Match(rec.Subject), rec.Subject)
		return string(rec.Body)
	}
	require.Equal(t, "3", newest(journal.Filter{Namespace: one.Namespace}))
	require.Equal(t, "1", newest(journal.Filter{Namespace: one.Namespace, From: events.Planning}))
	require.Equal(t, "3", newest(journal.Filter{Run: one.ID, From: events.Observing}))
	require.Equal(t, "2", newest(journal.Filter{Run: two.ID, To: events.Acting}))
	_, err = log.Newest(ctx, one.Shard, journal.Filter{Run: two.ID, From: events.Observing})
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = log.Newest(ctx, log.Shards(), journal.Filter{})
	require.Error(t, err, "there is no such shard")
}

func testScanInterleaved(t *testing.T, log journal.Log) {
	ctx, space := bounded(t), NewToken(t)
	want := map[string]bool{}
	for i := range 30 {
		run := NewRun(t, log)
		run.Namespace = space
		var last uint64
		for j := range 5 {
			text := strings.Repeat("x", i) + strings.Repeat("y", j)
			want[run.ID+text] = true
			seq, err := log.Append(ctx, run, last, plain(run, text))
			require.NoError(t, err)
			last = seq
		}
	}
	got := map[string]bool{}
	for shard := range log.Shards() {
		var last uint64
		for rec, err := range log.Scan(ctx, shard, journal.Filter{Namespace: space}, 0) {
			require.NoError(t, err)
			require.Greater(t, rec.Seq, last)
			last = rec.Seq
			subject, err := events.ParseSubject(rec.Subject)
			require.NoError(t, err)
			require.Equal(t, shard, subject.Run.Shard)
			got[subject.Run.ID+string(rec.Body)] = true
		}
	}
	require.Equal(t, want, got)
}

func testLast(t *testing.T, log journal.Log) {
	ctx := bounded(t)
	for shard := range log.Shards() {
		before, err := log.Last(ctx, shard)
		require.NoError(t, err)
		run := RunIn(t, log, shard)
		seq := AppendAll(t, log, run, "1", "2")
		require.Greater(t, seq, before)
		after, err := log.Last(ctx, shard)
		require.NoError(t, err)
		require.Equal(t, seq, after)
	}
	for _, shard := range []int{-1, log.Shards()} {
		_, err := log.Last(ctx, shard)
		require.Error(t, err)
		_, err = Collect(log.Scan(ctx, shard, journal.Filter{}, 0))
		require.Error(t, err)
	}
}

func testEndedContext(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	AppendAll(t, log, run, "1")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := log.Append(ended, run, 1, plain(run, "2"))
	require.ErrorIs(t, err, context.Canceled)
	_, err = Collect(log.Read(ended, run, 0))
	require.ErrorIs(t, err, context.Canceled)
	_, err = Collect(log.Scan(ended, run.Shard, journal.Filter{}, 0))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"1"}, bodies(mustCollect(t, log.Read(bounded(t), run, 0))))
}

func testRefusals(t *testing.T, log journal.Log) {
	ctx, run, other := bounded(t), NewRun(t, log), NewRun(t, log)
	refused := func(run events.Run, entries ...journal.Entry) {
		t.Helper()
		_, err := log.Append(ctx, run, 0, entries...)
		require.Error(t, err)
		for _, kind := range []error{journal.ErrConflict, journal.ErrUnknownOutcome} {
			require.NotErrorIs(t, err, kind)
		}
	}
	refused(run)
	refused(run, plain(other, "of another run"))
	refused(run, plain(run, "first is right"), plain(other, "second is not"))
	wrong := run
	wrong.Shard = log.Shards() + 3
	refused(wrong, plain(wrong, "no such shard"))
	if log.Shards() > 1 {
		wrong.Shard = (run.Shard + 1) % log.Shards()
		refused(wrong, plain(wrong, "the shard of others"))
	}
	for _, pool := range []string{"", "*", ">", "a.b", "a b", "UPPER"} {
		refused(run, Entry(run, events.Acting, pool, "bad pool"))
	}
	wrong = run
	wrong.ID = "not-an-id"
	refused(wrong, plain(wrong, "bad id"))
	wrong.ID, wrong.Namespace = run.ID, "*"
	refused(wrong, plain(wrong, "bad namespace"))
	require.Empty(t, mustCollect(t, log.Read(ctx, run, 0)))
}

func testTooLarge(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	huge := strings.Repeat("x", journal.MaxBody+1)
	_, err := log.Append(ctx, run, 0, plain(run, huge))
	require.ErrorIs(t, err, journal.ErrTooLarge)
	_, err = log.Append(ctx, run, 0, plain(run, "1"), plain(run, huge))
	require.ErrorIs(t, err, journal.ErrTooLarge)
	require.Empty(t, mustCollect(t, log.Read(ctx, run, 0)))
	AppendAll(t, log, run, huge[:journal.MaxBody])
	require.Len(t, mustCollect(t, log.Read(ctx, run, 0)), 1)

	run = NewRun(t, log)
	many := make([]journal.Entry, journal.MaxBatch+1)
	for i := range many {
		many[i] = plain(run, "1")
	}
	_, err = log.Append(ctx, run, 0, many...)
	require.ErrorIs(t, err, journal.ErrTooLarge)
	_, err = log.Append(ctx, run, 0, many[1:]...)
	require.NoError(t, err)
	require.Len(t, mustCollect(t, log.Read(ctx, run, 0)), journal.MaxBatch)
}
