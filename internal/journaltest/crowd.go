package journaltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// attempt is an append of a crowd, and what came of it.
type attempt struct {
	run  events.Run
	last uint64
	text string
	seq  uint64
	err  error
}

// appendAtOnce makes all attempts at the same moment.
func appendAtOnce(ctx context.Context, log journal.Log, all []*attempt) {
	var done sync.WaitGroup
	begin := make(chan struct{})
	for _, a := range all {
		done.Go(func() {
			<-begin
			a.seq, a.err = log.Append(ctx, a.run, a.last, plain(a.run, a.text))
		})
	}
	close(begin)
	done.Wait()
}

// testCrowd appends to 300 runs at once, some times: each record is where its
// append was told.
func testCrowd(t *testing.T, log journal.Log) {
	const runs, rounds = 300, 4
	ctx := bounded(t)
	all := make([]*attempt, runs)
	for i := range all {
		all[i] = &attempt{run: NewRun(t, log)}
	}
	seqs := make([][]uint64, runs)
	for round := range rounds {
		for _, a := range all {
			a.last, a.text = a.seq, fmt.Sprintf("%s %d", a.run.ID, round)
		}
		appendAtOnce(ctx, log, all)
		for i, a := range all {
			require.NoError(t, a.err)
			seqs[i] = append(seqs[i], a.seq)
		}
	}
	for i, a := range all {
		recs := mustCollect(t, log.Read(ctx, a.run, 0))
		require.Len(t, recs, rounds)
		for round, rec := range recs {
			require.Equal(t, seqs[i][round], rec.Seq)
			require.Equal(t, fmt.Sprintf("%s %d", a.run.ID, round), string(rec.Body))
		}
	}
}

// testTwiceInACrowd appends to each of many runs twice at the same moment, under
// the same condition: exactly one of both is stored.
func testTwiceInACrowd(t *testing.T, log journal.Log) {
	ctx := bounded(t)
	var all []*attempt
	for range 60 {
		run := NewRun(t, log)
		last := AppendAll(t, log, run, "first")
		all = append(all, &attempt{run: run, last: last, text: "a"}, &attempt{run: run, last: last, text: "b"})
	}
	appendAtOnce(ctx, log, all)
	for i := 0; i < len(all); i += 2 {
		a, b := all[i], all[i+1]
		if a.err != nil {
			a, b = b, a
		}
		require.NoError(t, a.err)
		require.ErrorIs(t, b.err, journal.ErrConflict)
		require.Equal(t, []string{"first", a.text}, bodies(mustCollect(t, log.Read(ctx, a.run, 0))))
	}
}

// testOneWrong appends to many runs at once, one of which is elsewhere: the
// others are stored, each once.
func testOneWrong(t *testing.T, log journal.Log) {
	ctx := bounded(t)
	for round := range 3 {
		all := make([]*attempt, 100)
		for i := range all {
			all[i] = &attempt{run: RunIn(t, log, 0), text: "x"}
		}
		wrong := all[30*round+5]
		wrong.last = 1 << 40
		appendAtOnce(ctx, log, all)
		var errs []error
		for _, a := range all {
			want := 1
			if a == wrong {
				want = 0
				require.ErrorIs(t, a.err, journal.ErrConflict)
			} else {
				errs = append(errs, a.err)
			}
			require.Len(t, mustCollect(t, log.Read(ctx, a.run, 0)), want)
		}
		require.NoError(t, errors.Join(errs...))
	}
}
