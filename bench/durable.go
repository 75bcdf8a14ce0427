package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
)

// durableSlots is what pays for installations that flush: the more appends wait at
// the same moment, the more of them share a flush.
const durableSlots = 256

// durableBench is many runs at once, each event flushed before anyone sees it.
func durableBench() *benchmark {
	var user userSettings
	var rounds int
	var shards []int
	return &benchmark{
		name: "durable", short: "Many runs at once, each event flushed: over HTTP in ten fresh processes, and the roles alone beside the bare loops",
		flags: func(f *pflag.FlagSet) {
			user.add(f, 10, []string{layoutDev}, []string{fsyncDefault}, []string{modelScripted})
			f.IntVar(&rounds, "engine-rounds", 3, "rounds of the roles alone, without HTTP, with atomic batches; 0: none")
			f.IntSliceVar(&shards, "shards", []int{1}, "streams of the roles alone, one case for each number")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if err := positive(shards...); err != nil {
				return nil, err
			}
			all, err := user.measureAll(ctx, "durable")
			if err != nil || rounds < 1 {
				return all, err
			}
			for _, n := range shards {
				t := terms{syncAlways: true, group: true, shards: n, slots: durableSlots}
				figures, err := durable(ctx, repeat{rounds: rounds, detail: user.detail}, t, user.atOnce, user.steps)
				if err != nil {
					return nil, err
				}
				all = append(all, figures...)
			}
			return all, nil
		},
	}
}

// durable measures the roles alone.
func durable(ctx context.Context, r repeat, t terms, runs, steps int) ([]figure, error) {
	single := t
	single.group = false
	return r.measure(ctx, func(ctx context.Context) ([]figure, error) {
		did, bodies, err := carried(ctx, t, runs, steps)
		if err != nil {
			return nil, err
		}
		group, err := bareRate(ctx, t, bodies, runs)
		if err != nil {
			return nil, err
		}
		oneByOne, err := bareRate(ctx, single, bodies, runs)
		if err != nil {
			return nil, err
		}
		row := rows("durable", fmt.Sprintf("roles alone, %d runs, %d shards", runs, t.shards))
		rate := row("transitions", "1/s", did.perSecond(runs*len(bodies)))
		rate.Steady = true
		return []figure{
			rate.beside(group, "bare loop with group commit").least(0.6),
			row("transitions", "1/s", rate.Value).beside(oneByOne, "bare loop one by one"),
		}, nil
	})
}
