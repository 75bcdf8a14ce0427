package simtest

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Most of these tests wait for a clock and need no processor.
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			if testing.Short() && shards > 1 {
				t.Skip("-short") // reason: one shard is enough for a first look
			}
			t.Parallel()
			j := New(Options{Shards: shards, AckWait: time.Second})
			t.Run("Log", func(t *testing.T) { journaltest.Log(t, func(*testing.T) journal.Log { return j }) })
			t.Run("Follow", func(t *testing.T) { journaltest.Follow(t, func(*testing.T) journal.Log { return j }) })
			t.Run("Fetcher", func(t *testing.T) { journaltest.Fetcher(t, func(*testing.T) journaltest.LogFetcher { return j }) })
			t.Run("Feed", func(t *testing.T) { journaltest.Feed(t, func(*testing.T) journaltest.LogFeed { return j }) })
			t.Run("KV", func(t *testing.T) {
				journaltest.KV(t, func(t *testing.T) (kv.Store, kv.Store) { return j, j.NewProcess() })
			})
			t.Run("Blobs", func(t *testing.T) { journaltest.Blobs(t, func(*testing.T) journal.Blobs { return j }) })
			t.Run("Snapshots", func(t *testing.T) { journaltest.Snapshots(t, func(*testing.T) journaltest.LogSnapshots { return j }) })
			t.Run("Runless", func(t *testing.T) {
				journaltest.Runless(t, func(*testing.T) (journaltest.LogRunless, func(int, string, string)) {
					return j, func(shard int, subject, body string) { j.Inject(shard, subject, []byte(body)) }
				})
			})
			t.Run("Queue", func(t *testing.T) {
				t.Parallel()
				journaltest.Queue(t, func(*testing.T) journaltest.LogQueue { return j })
			})
			t.Run("Peers", func(t *testing.T) {
				t.Parallel()
				journaltest.Peers(t, synctest.Test, func(*testing.T) (journaltest.LogPeers, journaltest.LogPeers) {
					j := New(Options{Shards: shards, AckWait: time.Second})
					return j.NewProcess(), j.NewProcess()
				})
			})
			t.Run("Questions", func(t *testing.T) {
				journaltest.Questions(t, func(*testing.T) (ports.Questions, ports.Questions) { return j.NewProcess(), j.NewProcess() })
			})
			t.Run("Timers", func(t *testing.T) {
				t.Parallel()
				journaltest.Timers(t, func(*testing.T) journaltest.LogTimers {
					return New(Options{Shards: shards, AckWait: time.Second})
				})
			})
			t.Run("Alarms", func(t *testing.T) {
				t.Parallel()
				journaltest.Alarms(t, func(*testing.T) journaltest.LogAlarms {
					return New(Options{Shards: shards, AckWait: time.Second})
				})
			})
		})
	}
}

// With group commit the log's part of the suite passes as well.
func TestConformanceOfGroupCommit(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			outcomes := map[string]int{}
			j := New(Options{Shards: shards, GroupCommit: true, AppendTime: time.Millisecond, Grouped: func(b Batch) {
				mu.Lock()
				defer mu.Unlock()
				outcomes[b.Outcome]++
			}})
			journaltest.Log(t, func(*testing.T) journal.Log { return j })
			journaltest.Follow(t, func(*testing.T) journal.Log { return j })
			journaltest.Fetcher(t, func(*testing.T) journaltest.LogFetcher { return j })
			mu.Lock()
			defer mu.Unlock()
			require.NotZero(t, outcomes[BatchStored])
			require.NotZero(t, outcomes[BatchRefused])
			require.NotZero(t, outcomes[TwoOfOneRun])
		})
	}
}

// crowd appends to some runs at once and returns their errors.
func crowd(t *testing.T, p *Process, runs int) (all []events.Run, errs []error) {
	t.Helper()
	errs = make([]error, runs)
	var done sync.WaitGroup
	for i := range runs {
		run := journaltest.NewRun(t, p)
		all = append(all, run)
		done.Go(func() { _, errs[i] = p.Append(t.Context(), run, 0, journaltest.Entry(run, events.Acting, "web", "x")) })
	}
	done.Wait()
	return all, errs
}

// What befalls a batch befalls all of its members: they are stored together or not
// at all, and nobody hears that they are stored.
func TestBatchFaults(t *testing.T) {
	for _, c := range []struct {
		outcome string
		options Options
		want    error
		stored  int
	}{
		{BatchUnknown, Options{Faults: Faults{BatchUnknown: 1}}, journal.ErrUnknownOutcome, 1},
		{BatchLost, Options{Faults: Faults{BatchLost: 1}}, journal.ErrUnknownOutcome, 0},
		{BatchCrashedBefore, Options{}, ErrCrashed, 0},
		{BatchCrashedAfter, Options{}, ErrCrashed, 1},
	} {
		t.Run(c.outcome, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testBatchFault(t, c.outcome, c.options, c.want, c.stored) })
		})
	}
}

func testBatchFault(t *testing.T, outcome string, o Options, want error, stored int) {
	var armed *Process
	point := map[string]string{BatchCrashedBefore: BeforeAppend, BatchCrashedAfter: AfterAppend}[outcome]
	seen := map[string]int{}
	var inBatch atomic.Bool
	o.GroupCommit, o.AppendTime = true, 10*time.Millisecond
	o.Grouped = func(b Batch) { seen[b.Outcome]++ }
	o.Crash = func(at Moment) bool { return inBatch.Load() && at.Process == armed && at.Point == point }
	j := New(o)
	armed = j.NewProcess()
	for range 8 { // so that it is known that batches pay
		crowd(t, armed, 1)
	}
	// The first one goes alone, and the others together.
	go func() { time.Sleep(15 * time.Millisecond); inBatch.Store(true) }() // in the bubble
	runs, errs := crowd(t, armed, 6)
	require.Equal(t, map[string]int{outcome: 1}, seen)
	failed := 0
	for i, run := range runs {
		recs, err := journaltest.Collect(j.Read(t.Context(), run, 0))
		require.NoError(t, err)
		if errs[i] == nil {
			require.Len(t, recs, 1)
			continue
		}
		failed++
		require.ErrorIs(t, errs[i], want)
		require.Len(t, recs, stored)
	}
	require.Equal(t, 5, failed)
}

const runID = "019325a0-0000-7000-8000-00000000000"

var web = journal.Inbox{States: []events.State{events.Acting}, Pool: "web"}

func fill(t *testing.T, j *Journal, n int) {
	t.Helper()
	for i := range n {
		run := events.NewRun("default", runID+fmt.Sprint(i), j.Shards())
		_, err := j.Append(t.Context(), run, 0, journaltest.Entry(run, events.Acting, "web", fmt.Sprint(i)))
		require.NoError(t, err)
	}
}

// trace consumes for an hour and returns what was delivered when.
func trace(t *testing.T, o Options) (lines []string) {
	synctest.Test(t, func(t *testing.T) {
		j := New(o)
		fill(t, j, 10)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, j.Consume(ctx, web, 1, func(d journal.Delivery) {
			lines = append(lines, fmt.Sprint(string(d.Record().Body), " ", d.Attempt(), " ", time.Since(began)))
			time.Sleep(time.Millisecond) // in the bubble
			require.NoError(t, d.Ack())
		}))
	})
	return lines
}

func TestFaultsFollowTheSeed(t *testing.T) {
	o := Options{Shards: 3, Seed: 7, Faults: Faults{Delay: 0.3, Duplicate: 0.3, Reorder: 0.3, LoseAck: 0.3}}
	first := trace(t, o)
	require.Greater(t, len(first), 10, "some come twice")
	require.Equal(t, first, trace(t, o))
	o.Seed = 8
	require.NotEqual(t, first, trace(t, o))
	require.Len(t, trace(t, Options{}), 10)
}

func TestUnknownOutcomes(t *testing.T) {
	for _, f := range []Faults{{UnknownOutcome: 1}, {Lost: 1}} {
		j := New(Options{Faults: f})
		run := journaltest.NewRun(t, j)
		_, err := j.Append(t.Context(), run, 0, journaltest.Entry(run, events.Acting, "web", "1"))
		require.ErrorIs(t, err, journal.ErrUnknownOutcome)
		recs, err := journaltest.Collect(j.Read(t.Context(), run, 0))
		require.NoError(t, err)
		require.Len(t, recs, int(f.UnknownOutcome))
	}
	// A repeated append meets another fate, so that nobody tries for ever.
	j := New(Options{Seed: 3, Faults: Faults{Lost: 0.5}})
	fate := func() (tries int) {
		run := journaltest.NewRun(t, j)
		for {
			tries++
			if _, err := j.Append(t.Context(), run, 0, journaltest.Entry(run, events.Acting, "web", "1")); err == nil {
				return tries
			}
		}
	}
	for range 50 {
		require.Less(t, fate(), 40)
	}
}

func TestCrashPoints(t *testing.T) {
	for _, c := range []struct {
		point  string
		stored int
		again  bool
	}{{BeforeAppend, 0, true}, {AfterAppend, 1, true}, {BeforeAck, 1, true}, {AfterAck, 1, false}} {
		t.Run(c.point, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testCrash(t, c.point, c.stored, c.again) })
		})
	}
}

// testCrash lets a process crash at the point while it answers a delivery by an
// append and an ack, and looks at what the others find.
func testCrash(t *testing.T, point string, stored int, again bool) {
	armed := false
	j := New(Options{Crash: func(at Moment) bool { return armed && at.Point == point }})
	fill(t, j, 1)
	armed = true
	p := j.NewProcess()
	next := events.NewRun("default", runID+"9", 1)
	err := p.Consume(t.Context(), web, 1, func(d journal.Delivery) {
		if _, err := p.Append(t.Context(), next, 0, journaltest.Entry(next, events.Observing, "default", "x")); err != nil {
			require.ErrorIs(t, err, ErrCrashed)
		}
		require.ErrorIs(t, d.Ack(), ErrCrashed)
		require.ErrorIs(t, d.Retry(0), ErrCrashed)
	})
	require.ErrorIs(t, err, ErrCrashed)
	<-p.Dead()
	_, err = p.Head(t.Context(), next)
	require.ErrorIs(t, err, ErrCrashed)

	armed = false
	recs, err := journaltest.Collect(j.Read(t.Context(), next, 0))
	require.NoError(t, err)
	require.Len(t, recs, stored)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	attempts := []int{}
	require.NoError(t, j.Consume(ctx, web, 1, func(d journal.Delivery) {
		attempts = append(attempts, d.Attempt())
		require.NoError(t, d.Ack())
	}))
	if again {
		require.Equal(t, []int{2}, attempts)
	} else {
		require.Empty(t, attempts)
	}
}

// With jitter nothing is delivered at the same instant.
func TestJitter(t *testing.T) {
	at := map[string]bool{}
	for _, line := range trace(t, Options{Jitter: time.Second}) {
		at[line[len("0 1 "):]] = true
	}
	require.Len(t, at, 10)
}

// fates are what fetches of one record come to, one after the other.
func fates(t *testing.T, seed uint64) (all []bool) {
	j := New(Options{Seed: seed, Faults: Faults{Fetch: 0.5}})
	run := events.NewRun("default", runID+"0", 1)
	seq := journaltest.AppendAll(t, j, run, "1")
	for range 20 {
		rec, err := j.Fetch(t.Context(), run, seq)
		if err != nil {
			require.ErrorIs(t, err, ErrFetchAway)
			require.Zero(t, rec)
		}
		all = append(all, err == nil)
	}
	return all
}

func TestFetchFaults(t *testing.T) {
	first := fates(t, 7)
	require.Contains(t, first, true)
	require.Contains(t, first, false, "one that is repeated meets another fate")
	require.Equal(t, first, fates(t, 7))
	require.NotEqual(t, first, fates(t, 8))
}

// A fetch that takes long ends with its process or its context.
func TestFetchThatTakesLong(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *Process, cancel context.CancelFunc)
		want error
	}{
		"to its end":         {func(*Process, context.CancelFunc) {}, nil},
		"killed meanwhile":   {func(p *Process, _ context.CancelFunc) { p.Kill() }, ErrCrashed},
		"canceled meanwhile": {func(_ *Process, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := New(Options{Faults: Faults{Delay: 1, MaxDelay: time.Hour}})
				run, p := events.NewRun("default", runID+"0", 1), j.NewProcess()
				seq := journaltest.AppendAll(t, j, run, "1")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began, ended := time.Now(), make(chan error, 1)
				go func() {
					_, err := p.Fetch(ctx, run, seq)
					ended <- err
				}()
				synctest.Wait()
				require.Empty(t, ended, "it takes its time")
				c.end(p, cancel)
				require.ErrorIs(t, <-ended, c.want)
				require.Equal(t, c.want == nil, time.Since(began) > 0)
				require.LessOrEqual(t, time.Since(began), time.Hour/100)
			})
		})
	}
}

// What was published with other tools says nothing.
func TestInjectedSaysNotAfterWhat(t *testing.T) {
	j := New(Options{})
	run := journaltest.NewRun(t, j)
	first := journaltest.AppendAll(t, j, run, "1")
	seq := j.Inject(run.Shard, journaltest.Entry(run, events.Acting, "web", "").Subject.String(), []byte("x"))
	rec, err := j.Fetch(t.Context(), run, seq)
	require.NoError(t, err)
	require.Zero(t, rec.After)
	_, err = j.Append(t.Context(), run, seq, journaltest.Entry(run, events.Acting, "web", "y"))
	require.NoError(t, err)
	head, err := j.Head(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, seq, head.After)
	require.NotEqual(t, first, head.After)
	p := j.NewProcess()
	p.Kill()
	_, err = p.Fetch(t.Context(), run, seq)
	require.ErrorIs(t, err, ErrCrashed)
	_, err = j.Fetch(t.Context(), run, 0)
	require.ErrorIs(t, err, journal.ErrNotFound)
}
