package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/spf13/pflag"
)

// shardsBench is the log on several streams.
func shardsBench() *benchmark {
	var c crowd
	var shards []int
	return &benchmark{
		name: "shards", short: "The log on several streams: spread of runs, durable rate without group commit, order of the feed, replay",
		flags: func(f *pflag.FlagSet) {
			c.add(f, []int{200}, defaultSlots, 3)
			f.IntSliceVar(&shards, "shards", []int{1, 2, 4, 8}, "streams, one case for each number; growth is shown beside the first")
		},
		run: func(ctx context.Context) (all []figure, err error) {
			if err := c.check(); err != nil {
				return nil, err
			}
			if err := positive(shards...); err != nil {
				return nil, err
			}
			for _, runs := range c.runs {
				var first float64
				for _, n := range shards {
					figures, err := sharded(ctx, c, runs, n)
					if err != nil {
						return nil, fmt.Errorf("%d shards: %w", n, err)
					}
					rate := figures[len(figures)-1]
					if n == shards[0] {
						first = rate.Value
					} else {
						growth := rate.beside(first, fmt.Sprintf("the same with %d shards", shards[0]))
						figures = append(figures, growth.held(target{atLeast, 1}))
					}
					all = append(all, append(figures, spread(n))...)
				}
			}
			return all, nil
		},
	}
}

// sharded measures one number of shards; its last figure is the rate.
func sharded(ctx context.Context, c crowd, runs, shards int) ([]figure, error) {
	t := terms{syncAlways: true, shards: shards, slots: c.slots}
	return c.measure(ctx, func(ctx context.Context) (figures []figure, err error) {
		in, err := startInstallation(ctx, t)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, in.close()) }()
		var ids []string
		did, err := meter(func() (err error) {
			ids, err = carry(ctx, in.bus, in.host, runs, c.steps)
			return err
		})
		if err != nil {
			return nil, err
		}
		bodies, err := bodiesOf(ctx, in.bus, ids[0], c.steps)
		if err != nil {
			return nil, err
		}
		if err := holds(ctx, in.bus, in.host, c.steps); err != nil {
			return nil, err
		}
		floor, err := bareRate(ctx, t, bodies, runs)
		if err != nil {
			return nil, err
		}
		row := rows("shards", fmt.Sprintf("%d shards, %d runs", shards, runs))
		return []figure{
			row("transitions, fsync, no group commit", "1/s", did.perSecond(runs*len(bodies))).beside(floor, "bare loop one by one, as many streams"),
		}, nil
	})
}

// manyIDs is for how many ids it is seen how even they spread.
const manyIDs = 100_000

// spread says how much more than its even part the fullest shard has of many runs.
func spread(shards int) figure {
	counts := make([]int, shards)
	for range manyIDs {
		counts[events.ShardOf(runlog.NewID(), shards)]++
	}
	row := rows("shards", fmt.Sprintf("%d shards, %d ids", shards, manyIDs))
	return row("runs of the fullest shard", "", float64(slices.Max(counts))).beside(float64(manyIDs)/float64(shards), "an even share").most(1.05)
}

// orderRuns is with how many runs it is checked that feed and replay hold.
const orderRuns = 50

// holds carries some more runs, and checks that the feed brings each one's events
// in order and none is missing, and that every run of the log verifies.
func holds(ctx context.Context, bus *natsbus.Bus, h *host.Host, steps int) error {
	seen := &order{last: map[string]uint64{}, count: map[string]int{}, whole: make(chan struct{}), events: orderRuns * transitions(steps)}
	stop, err := bus.Watch(journal.Filter{}, seen.add, func() { seen.fail("the feed lost something") })
	if err != nil {
		return err
	}
	defer stop()
	if err := bus.Conn().Flush(); err != nil {
		return err
	}
	ids, err := carry(ctx, bus, h, orderRuns, steps)
	if err != nil {
		return err
	}
	if err := seen.check(ctx, ids, transitions(steps)); err != nil {
		return err
	}
	report, err := verify.Log(ctx, bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true, Strict: true})
	if err != nil {
		return err
	}
	if !report.Clean() {
		var text strings.Builder
		_ = report.WriteText(&text) // a builder takes everything
		return fmt.Errorf("the log does not verify:\n%s", &text)
	}
	return nil
}

// order is what the feed brought, by run.
type order struct {
	events int
	whole  chan struct{}

	mu    sync.Mutex
	last  map[string]uint64
	count map[string]int
	all   int
	wrong string
}

func (o *order) add(rec journal.Record) {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		o.fail(err.Error())
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	id := s.Run.ID
	if rec.Seq <= o.last[id] {
		o.wrong = fmt.Sprintf("run %s: event %d came after %d", id, rec.Seq, o.last[id])
	}
	o.last[id] = rec.Seq
	o.count[id]++
	if o.all++; o.all == o.events {
		close(o.whole)
	}
}

func (o *order) fail(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrong = reason
}

// check waits until everything came and says what is wrong with it.
func (o *order) check(ctx context.Context, ids []string, events int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the feed did not bring every event"))
	defer cancel()
	select {
	case <-o.whole:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if o.count[id] != events {
			return fmt.Errorf("the feed brought %d of %d events of run %s", o.count[id], events, id)
		}
	}
	if o.wrong != "" {
		return errors.New("the feed: " + o.wrong)
	}
	return nil
}
