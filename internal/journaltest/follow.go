package journaltest

import (
	"context"
	"fmt"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Follow tests [journal.Log]'s Follow.
func Follow(t *testing.T, open func(t *testing.T) journal.Log) {
	log := open(t)
	t.Run("what is there and what comes", func(t *testing.T) { testFollow(t, log) })
	t.Run("filters and starts", func(t *testing.T) { testFollowFilter(t, log) })
	t.Run("many writers", func(t *testing.T) { testFollowMany(t, log) })
	t.Run("ends with its context", func(t *testing.T) { testFollowEnds(t, log) })
	t.Run("ends with its reader", func(t *testing.T) { testFollowBreaks(t, log) })
}

func testFollow(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	last := AppendAll(t, log, run, "1", "2")
	var got []string
	for rec, err := range log.Follow(ctx, run.Shard, journal.Filter{Run: run.ID}, 0) {
		require.NoError(t, err)
		got = append(got, string(rec.Body))
		if len(got) == 5 {
			break
		}
		if len(got) >= 2 {
			last, err = log.Append(ctx, run, last, plain(run, fmt.Sprint(len(got)+1)))
			require.NoError(t, err)
		}
	}
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, got)
}

func testFollowFilter(t *testing.T, log journal.Log) {
	ctx, run := bounded(t), NewRun(t, log)
	first := appendTo(t, log, run, events.Acting, "web", "1")
	last, err := log.Append(ctx, run, first, plain(run, "not this"))
	require.NoError(t, err)
	got := make(chan string, 8)
	go func() {
		defer close(got)
		for rec, err := range log.Follow(ctx, run.Shard, journal.Filter{Run: run.ID, To: events.Acting}, first) {
			if err != nil {
				return
			}
			if got <- string(rec.Body); string(rec.Body) == "3" {
				return
			}
		}
	}()
	for _, text := range []string{"2", "3"} {
		last, err = log.Append(ctx, run, last, plain(run, "nor this"))
		require.NoError(t, err)
		last, err = log.Append(ctx, run, last, Entry(run, events.Acting, "web", text))
		require.NoError(t, err)
		require.Equal(t, text, <-got)
	}
	_, open := <-got
	require.False(t, open)
}

// testFollowMany follows a shard while many runs grow in it.
func testFollowMany(t *testing.T, log journal.Log) {
	const runs, each = 10, 30
	ctx, space := bounded(t), NewToken(t)
	start, err := log.Last(ctx, 0)
	require.NoError(t, err)
	failed := make(chan error, runs)
	for range runs {
		run := RunIn(t, log, 0)
		run.Namespace = space
		go func() {
			var last uint64
			for _, text := range numbered(each) {
				seq, err := log.Append(ctx, run, last, plain(run, text))
				if err != nil {
					failed <- err
					return
				}
				last = seq
			}
			failed <- nil
		}()
	}
	seen := map[string]int{}
	var last uint64
	total := 0
	for rec, err := range log.Follow(ctx, 0, journal.Filter{Namespace: space}, start) {
		require.NoError(t, err)
		require.Greater(t, rec.Seq, last)
		last = rec.Seq
		subject, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		require.Equal(t, numbered(each)[seen[subject.Run.ID]], string(rec.Body))
		seen[subject.Run.ID]++
		if total++; total == runs*each {
			break
		}
	}
	for range runs {
		require.NoError(t, <-failed)
	}
}

func testFollowEnds(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	AppendAll(t, log, run, "1")
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	var errs []error
	for rec, err := range log.Follow(ctx, run.Shard, journal.Filter{Run: run.ID}, 0) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		require.Equal(t, "1", string(rec.Body))
		cancel()
	}
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], context.Canceled)
}

func testFollowBreaks(t *testing.T, log journal.Log) {
	run := NewRun(t, log)
	AppendAll(t, log, run, "1", "2")
	for rec, err := range log.Follow(bounded(t), run.Shard, journal.Filter{Run: run.ID}, 0) {
		require.NoError(t, err)
		require.Equal(t, "1", string(rec.Body))
		break
	}
}
