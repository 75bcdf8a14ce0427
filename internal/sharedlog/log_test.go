package sharedlog_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// counted counts how often a log is followed and read, and may fail to.
type counted struct {
	journal.Log
	follows, scans atomic.Int32
	away           atomic.Bool
	broken         atomic.Bool
}

var errAway = errors.New("away")

func (c *counted) Follow(ctx context.Context, shard int, f journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	c.follows.Add(1)
	if c.broken.Load() {
		return func(yield func(journal.Record, error) bool) { yield(journal.Record{}, errAway) }
	}
	return c.Log.Follow(ctx, shard, f, after)
}

func (c *counted) Scan(ctx context.Context, shard int, f journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	c.scans.Add(1)
	if c.away.Load() {
		return func(yield func(journal.Record, error) bool) { yield(journal.Record{}, errAway) }
	}
	return c.Log.Scan(ctx, shard, f, after)
}

func (c *counted) Last(ctx context.Context, shard int) (uint64, error) {
	if c.away.Load() {
		return 0, errAway
	}
	return c.Log.Last(ctx, shard)
}

func TestSharedConformance(t *testing.T) {
	for _, alone := range []int{-1, 1} {
		t.Run(strconv.Itoa(alone), func(t *testing.T) {
			t.Parallel()
			log := sharedlog.New(simtest.New(simtest.Options{Shards: 3}), sharedlog.Options{Alone: alone})
			journaltest.Log(t, func(*testing.T) journal.Log { return log })
			journaltest.Follow(t, func(*testing.T) journal.Log { return log })
		})
	}
}

func body(run events.Run, text string) journal.Entry {
	return journaltest.Entry(run, events.Nobody, events.DefaultPool, text)
}

// Hundreds of followers of runs that go on see each record of theirs in order and
// once, whenever they come; the shard is followed once for all of them.
func TestSharedFollowersMissNothing(t *testing.T) {
	for _, kept := range []int{-1, 1000, 0} {
		t.Run(strconv.Itoa(kept), func(t *testing.T) { sharedMissesNothing(t, kept) })
	}
}

func sharedMissesNothing(t *testing.T, kept int) {
	synctest.Test(t, func(t *testing.T) {
		log := &counted{Log: simtest.New(simtest.Options{})}
		shared := sharedlog.New(log, sharedlog.Options{Alone: -1, Waiting: 40, Kept: kept, Readers: 2})
		const runs, records = 20, 100
		var all sync.WaitGroup
		for range runs {
			run := journaltest.NewRun(t, log)
			all.Go(func() {
				last := uint64(0)
				for i := range records {
					seq, err := log.Append(t.Context(), run, last, body(run, fmt.Sprintf("%05d", i)))
					require.NoError(t, err)
					last = seq
					time.Sleep(time.Millisecond) // in the bubble
				}
			})
			for late := range 25 {
				all.Go(func() {
					time.Sleep(time.Duration(late*4) * time.Millisecond) // in the bubble
					i := 0
					for rec, err := range shared.Follow(t.Context(), run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
						require.NoError(t, err)
						require.Equal(t, fmt.Sprintf("%05d", i), string(rec.Body))
						if i++; i == records {
							return
						}
						if late%5 == 0 {
							time.Sleep(3 * time.Millisecond) // in the bubble: it falls behind
						}
					}
				})
			}
		}
		total := 0
		for range shared.Follow(t.Context(), 0, journal.Filter{}, 0) {
			if total++; total == runs*records {
				break
			}
		}
		all.Wait()
		require.EqualValues(t, 1, log.follows.Load())
		synctest.Wait()
	})
}

// A follower that does not take what comes costs a bounded amount of memory, and
// reads the rest later: from what is kept, or from the log, of which it holds
// nothing meanwhile.
func TestSharedFollowerThatStalls(t *testing.T) {
	for kept, reads := range map[int]int32{0: 0, -1: 4} {
		t.Run(strconv.Itoa(kept), func(t *testing.T) { sharedStalls(t, kept, reads) })
	}
}

func sharedStalls(t *testing.T, kept int, reads int32) {
	synctest.Test(t, func(t *testing.T) {
		log := &counted{Log: simtest.New(simtest.Options{})}
		shared := sharedlog.New(log, sharedlog.Options{Alone: -1, Kept: kept, Readers: 1})
		run := journaltest.NewRun(t, log)
		last := journaltest.AppendAll(t, log, run, "0")
		stall := make(chan struct{})
		got := make(chan string, 1000)
		go func() {
			defer close(got)
			for rec, err := range shared.Follow(t.Context(), run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
				if err != nil {
					return
				}
				got <- string(rec.Body)
				if string(rec.Body) == "999" {
					return
				}
				<-stall
			}
		}()
		synctest.Wait()
		scans := log.scans.Load()
		for i := 1; i < 1000; i++ {
			seq, err := log.Append(t.Context(), run, last, body(run, strconv.Itoa(i)))
			require.NoError(t, err)
			last = seq
		}
		synctest.Wait()
		// The one that stalls keeps nobody else from reading, though one reads at once.
		for rec, err := range shared.Follow(t.Context(), run.Shard, journal.Filter{}, 0) {
			require.NoError(t, err)
			require.Equal(t, "0", string(rec.Body))
			break
		}
		require.Equal(t, scans+1, log.scans.Load())
		close(stall)
		for i := range 1000 {
			require.Equal(t, strconv.Itoa(i), <-got)
		}
		require.Equal(t, scans+1+reads, log.scans.Load(), "what did not wait for it is read in batches, of what is kept or of the log")
		_, more := <-got
		require.False(t, more)
	})
}

// What is kept is bounded: who has fallen behind further reads the log.
func TestSharedKeepsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &counted{Log: simtest.New(simtest.Options{})}
		shared := sharedlog.New(log, sharedlog.Options{Alone: -1, Kept: 100 << 10})
		run := journaltest.NewRun(t, log)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			for range shared.Follow(ctx, run.Shard, journal.Filter{}, 0) {
			}
		}()
		synctest.Wait()
		var after uint64
		for range 100 {
			seq, err := log.Append(ctx, run, after, body(run, string(make([]byte, 10<<10))))
			require.NoError(t, err)
			after = seq
		}
		synctest.Wait()
		scans := log.scans.Load()
		for back, reads := range []int32{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1} {
			if back == 0 {
				continue
			}
			before := log.scans.Load()
			for rec, err := range shared.Follow(ctx, run.Shard, journal.Filter{}, after-uint64(back)) {
				require.NoError(t, err)
				require.Equal(t, after-uint64(back)+1, rec.Seq)
				break
			}
			require.Equal(t, before+reads, log.scans.Load(), "%d records back", back)
		}
		require.Greater(t, log.scans.Load(), scans)
		stop()
		synctest.Wait()
	})
}

// The shard is followed only while somebody listens, and nobody is left over: the
// bubble does not end while a goroutine of it is blocked.
func TestSharedFollowingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &counted{Log: simtest.New(simtest.Options{})}
		shared := sharedlog.New(log, sharedlog.Options{Alone: 1})
		run := journaltest.NewRun(t, log)
		for round := range 3 {
			ctx, stop := context.WithCancel(t.Context())
			for range 10 {
				go func() {
					for _, err := range shared.Follow(ctx, run.Shard, journal.Filter{Run: run.ID}, 0) {
						require.ErrorIs(t, err, context.Canceled)
					}
				}()
			}
			synctest.Wait()
			require.EqualValues(t, 2*(round+1), log.follows.Load(), "one alone, and one for nine")
			stop()
			synctest.Wait()
		}
	})
}

func TestSharedWhileTheLogIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &counted{Log: simtest.New(simtest.Options{})}
		shared := sharedlog.New(log, sharedlog.Options{Alone: -1})
		run := journaltest.NewRun(t, log)
		journaltest.AppendAll(t, log, run, "1", "2")
		log.away.Store(true)
		got := make(chan string)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			for rec, err := range shared.Follow(ctx, run.Shard, journal.Filter{Run: run.ID}, 0) {
				if err == nil {
					got <- string(rec.Body)
				}
			}
			close(got)
		}()
		time.Sleep(time.Second) // in the bubble
		log.away.Store(false)
		require.Equal(t, "1", <-got)
		require.Equal(t, "2", <-got)
		stop()
		_, more := <-got
		require.False(t, more)
		synctest.Wait()
	})
}

// Where the log cannot be followed at all, everybody is told, and who comes later
// tries anew.
func TestSharedFollowerThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &counted{Log: simtest.New(simtest.Options{})}
		shared := sharedlog.New(log, sharedlog.Options{Alone: -1})
		run := journaltest.NewRun(t, log)
		log.broken.Store(true)
		failed := make(chan error, 2)
		for range 2 {
			go func() {
				for _, err := range shared.Follow(t.Context(), run.Shard, journal.Filter{Run: run.ID}, 0) {
					failed <- err
				}
			}()
		}
		require.ErrorIs(t, <-failed, errAway)
		require.ErrorIs(t, <-failed, errAway)
		synctest.Wait()
		log.broken.Store(false)
		journaltest.AppendAll(t, log, run, "1")
		for rec, err := range shared.Follow(t.Context(), run.Shard, journal.Filter{Run: run.ID}, 0) {
			require.NoError(t, err)
			require.Equal(t, "1", string(rec.Body))
			break
		}
		synctest.Wait()
	})
}
