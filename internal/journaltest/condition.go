package journaltest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

func testConditions(t *testing.T, log journal.Log) {
	for name, test := range map[string]func(*testing.T, journal.Log){
		"stale and wrong expectations": testStale,
		"the same append twice":        testTwice,
		"two racing writers":           testRace,
		"many runs at once":            testManyRuns,
		"several entries":              testSeveral,
		"several entries, racing":      testSeveralRace,
		"one run's entries only":       testOtherRuns,
		"hundreds of runs at once":     testCrowd,
		"one run twice in a crowd":     testTwiceInACrowd,
		"one wrong among many":         testOneWrong,
	} {
		t.Run(name, func(t *testing.T) { test(t, log) })
	}
}

func testStale(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	_, err := log.Append(ctx, run, 7, plain(run, "on an empty run"))
	require.ErrorIs(t, err, journal.ErrConflict)
	last := AppendAll(t, log, run, "1", "2")
	for _, wrong := range []uint64{0, last - 1, last + 1, last + 1000} {
		_, err := log.Append(ctx, run, wrong, plain(run, "wrong"))
		require.ErrorIs(t, err, journal.ErrConflict, "expected %d of %d", wrong, last)
	}
	require.Equal(t, []string{"1", "2"}, bodies(mustCollect(t, log.Read(ctx, run, 0))))
}

func testTwice(t *testing.T, log journal.Log) {
	ctx := bounded(t)
	for _, n := range []int{1, 2} {
		run := NewRun(t, log)
		entries := []journal.Entry{plain(run, "1"), plain(run, "2")}[:n]
		_, err := log.Append(ctx, run, 0, entries...)
		require.NoError(t, err)
		_, err = log.Append(ctx, run, 0, entries...)
		require.ErrorIs(t, err, journal.ErrConflict)
		require.Len(t, mustCollect(t, log.Read(ctx, run, 0)), n)
	}
}

// testRace lets two writers append under the same condition, again and again.
func testRace(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	var last uint64
	for round := range 40 {
		var won atomic.Int32
		var next atomic.Uint64
		var both sync.WaitGroup
		errs := make([]error, 2)
		for w := range errs {
			both.Go(func() {
				seq, err := log.Append(ctx, run, last, plain(run, fmt.Sprint(round)))
				if err == nil {
					won.Add(1)
					next.Store(seq)
					return
				}
				errs[w] = err
			})
		}
		both.Wait()
		require.EqualValues(t, 1, won.Load(), "round %d: %v", round, errs)
		require.ErrorIs(t, errors.Join(errs...), journal.ErrConflict)
		last = next.Load()
	}
	require.Len(t, mustCollect(t, log.Read(ctx, run, 0)), 40)
}

// testManyRuns appends 2,000 records to 50 runs at once.
func testManyRuns(t *testing.T, log journal.Log) {
	const runs, each = 50, 40
	ctx := bounded(t)
	want := numbered(each)
	var all sync.WaitGroup
	errs := make([]error, runs)
	for i := range runs {
		run := NewRun(t, log)
		all.Go(func() {
			var last uint64
			for _, text := range want {
				seq, err := log.Append(ctx, run, last, plain(run, text))
				if err != nil {
					errs[i] = err
					return
				}
				last = seq
			}
			got, err := Collect(log.Read(ctx, run, 0))
			if err == nil && fmt.Sprint(bodies(got)) != fmt.Sprint(want) {
				err = fmt.Errorf("run %s: got %v", run.ID, bodies(got))
			}
			errs[i] = err
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}

func testSeveral(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	last, err := log.Append(ctx, run, 0, plain(run, "1"), plain(run, "2"), plain(run, "3"))
	require.NoError(t, err)
	head, err := log.Head(ctx, run)
	require.NoError(t, err)
	require.Equal(t, last, head.Seq, "the last entry's number is returned")
	require.Equal(t, "3", string(head.Body))
	_, err = log.Append(ctx, run, last-1, plain(run, "x"), plain(run, "y"))
	require.ErrorIs(t, err, journal.ErrConflict)
	_, err = log.Append(ctx, run, 0, plain(run, "x"), plain(run, "y"))
	require.ErrorIs(t, err, journal.ErrConflict)
	last, err = log.Append(ctx, run, last, plain(run, "4"))
	require.NoError(t, err)
	_, err = log.Append(ctx, run, last, plain(run, "5"), plain(run, "6"))
	require.NoError(t, err)
	require.Equal(t, []string{"1", "2", "3", "4", "5", "6"}, bodies(mustCollect(t, log.Read(ctx, run, 0))))
}

// testSeveralRace lets writers of one and of several entries race.
func testSeveralRace(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	var last uint64
	for round := range 10 {
		var won atomic.Int32
		var next atomic.Uint64
		var all sync.WaitGroup
		errs := make([]error, 3)
		for w := range errs {
			all.Go(func() {
				var entries []journal.Entry
				for i := range w + 1 {
					entries = append(entries, plain(run, fmt.Sprintf("%d %d/%d", round, i+1, w+1)))
				}
				seq, err := log.Append(ctx, run, last, entries...)
				if err == nil {
					won.Add(1)
					next.Store(seq)
				} else if !errors.Is(err, journal.ErrConflict) {
					errs[w] = err
				}
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		require.EqualValues(t, 1, won.Load())
		for _, rec := range mustCollect(t, log.Read(ctx, run, last)) {
			var r, i, n int
			_, err := fmt.Sscanf(string(rec.Body), "%d %d/%d", &r, &i, &n)
			require.NoError(t, err)
			require.Equal(t, round, r)
			if i == n {
				require.Equal(t, next.Load(), rec.Seq, "the winner's last entry ends the run")
			}
		}
		last = next.Load()
	}
}

// testOtherRuns shows that what is appended to other runs of the shard does not
// hurt the condition.
func testOtherRuns(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	last := AppendAll(t, log, run, "1")
	other := RunIn(t, log, run.Shard)
	AppendAll(t, log, other, "a", "b", "c")
	_, err := log.Append(ctx, run, last, plain(run, "2"))
	require.NoError(t, err)
	same := run
	same.Namespace = NewToken(t)
	_, err = log.Append(ctx, same, 0, plain(same, "the same id in another namespace is another run"))
	require.NoError(t, err)
}
