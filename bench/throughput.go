package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// crowd is a load of many runs at once.
type crowd struct {
	repeat
	runs         []int
	steps, slots int
}

func (c *crowd) add(f *pflag.FlagSet, runs []int, slots, rounds int) {
	f.IntSliceVar(&c.runs, "runs", runs, "runs at once, one case for each number")
	f.IntVar(&c.steps, "steps", 10, "tool steps of each run")
	f.IntVar(&c.slots, "slots", slots, "deliveries of one consumer in work at once, of the roles and of the floor")
	c.repeat.add(f, rounds)
}

func (c *crowd) check() error {
	if err := positive(c.runs...); err != nil {
		return err
	}
	return positive(c.steps, c.slots, c.rounds)
}

// throughputBench is many runs at once under relaxed syncing.
func throughputBench() *benchmark {
	var c crowd
	var tcp bool
	return &benchmark{
		name: "throughput", short: "Many runs at once, relaxed syncing, beside the bare deliver-append-ack loop",
		flags: func(f *pflag.FlagSet) {
			c.add(f, []int{200, 1000}, defaultSlots, 3)
			f.BoolVar(&tcp, "tcp", false, "over the loopback instead of within the process")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if err := c.check(); err != nil {
				return nil, err
			}
			return throughput(ctx, c, terms{tcp: tcp, slots: c.slots})
		},
	}
}

func throughput(ctx context.Context, c crowd, t terms) (all []figure, err error) {
	for _, runs := range c.runs {
		figures, err := c.measure(ctx, func(ctx context.Context) ([]figure, error) {
			did, bodies, err := carried(ctx, t, runs, c.steps)
			if err != nil {
				return nil, err
			}
			floor, err := bareRate(ctx, t, bodies, runs)
			if err != nil {
				return nil, err
			}
			row := rows("throughput", fmt.Sprintf("%d runs, %s", runs, t))
			return []figure{
				row("transitions", "1/s", did.perSecond(runs*len(bodies))).beside(floor, "bare deliver, append, ack").least(0.6),
				row("runs", "1/s", did.perSecond(runs)).beside(floor/float64(len(bodies)), "the same"),
			}, nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, figures...)
	}
	return all, nil
}

// rows makes figures of one benchmark and case.
func rows(bench, at string) func(what, unit string, value float64) figure {
	return func(what, unit string, value float64) figure {
		return figure{Bench: bench, Case: at, What: what, Unit: unit, Value: value}
	}
}

// carried carries runs through its own installation, and returns what that
// took and the bodies of one of them.
func carried(ctx context.Context, t terms, runs, steps int) (did spent, bodies hops, err error) {
	in, err := startInstallation(ctx, t)
	if err != nil {
		return did, nil, err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	var ids []string
	did, err = meter(func() (err error) {
		ids, err = carry(ctx, in.bus, in.host, runs, steps)
		return err
	})
	if err != nil {
		return did, nil, err
	}
	bodies, err = bodiesOf(ctx, in.bus, ids[runs-1], steps)
	return did, bodies, err
}
