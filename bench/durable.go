package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// peerRuns and peerRate are the best published durable rate of the field on two
// cores: Restate, 200 runs at once, fsync. It is of another machine.
const (
	peerRuns = 200
	peerRate = 580
)

// durableSlots is what pays for installations that flush: the more appends wait at
// the same moment, the more of them share a flush.
const durableSlots = 256

// durableBench is many runs at once with a flush before each acknowledgement.
func durableBench() *benchmark {
	var c crowd
	var shards []int
	var group bool
	return &benchmark{
		name: "durable", short: "Many runs at once, fsync before every acknowledgement, beside the bare loops with and without group commit",
		flags: func(f *pflag.FlagSet) {
			c.add(f, []int{200, 1000}, durableSlots, 3)
			f.IntSliceVar(&shards, "shards", []int{1, 2}, "streams, one case for each number")
			f.BoolVar(&group, "group-commit", true, "appends that wait at the same moment share a flush")
		},
		run: func(ctx context.Context) (all []figure, err error) {
			if err := c.check(); err != nil {
				return nil, err
			}
			if err := positive(shards...); err != nil {
				return nil, err
			}
			for _, n := range shards {
				for _, runs := range c.runs {
					t := terms{syncAlways: true, group: group, shards: n, slots: c.slots}
					figures, err := durable(ctx, c, t, runs, runs == peerRuns && n == slices.Max(shards))
					if err != nil {
						return nil, err
					}
					all = append(all, figures...)
				}
			}
			return all, nil
		},
	}
}

// durable measures one case; peer holds the runs per second to the peers'.
func durable(ctx context.Context, c crowd, t terms, runs int, peer bool) ([]figure, error) {
	single := t
	single.group = false
	// One by one the rate does not depend on how many runs there are, beyond those
	// that keep the disk busy.
	alone := min(runs, peerRuns)
	return c.measure(ctx, func(ctx context.Context) ([]figure, error) {
		did, bodies, err := carried(ctx, t, runs, c.steps)
		if err != nil {
			return nil, err
		}
		grouped := t
		grouped.group = true
		group, err := bareRate(ctx, grouped, bodies, runs)
		if err != nil {
			return nil, err
		}
		oneByOne, err := bareRate(ctx, single, bodies, alone)
		if err != nil {
			return nil, err
		}
		rate := did.perSecond(runs * len(bodies))
		row := rows("durable", fmt.Sprintf("%d runs, %d shards", runs, t.shards))
		perRun := row("runs", "1/s", did.perSecond(runs)).beside(0, "")
		if peer {
			perRun = perRun.least(peerRate)
		}
		return []figure{
			row("transitions", "1/s", rate).beside(group, "bare loop with group commit").least(0.6),
			row("transitions", "1/s", rate).beside(oneByOne, fmt.Sprintf("bare loop one by one, %d runs", alone)).least(2),
			perRun,
		}, nil
	})
}
