package main

import (
	"context"

	"github.com/spf13/pflag"
)

// splitBench is one process for each role, beside all of them in one.
func splitBench() *benchmark {
	var s userSettings
	var rounds int
	return &benchmark{
		name: "split", short: "A server and a process for each role, over HTTP, beside all of it in one process and beside the bare loop in processes",
		flags: func(f *pflag.FlagSet) {
			s.add(f, 3, []string{layoutDev, layoutSplit}, []string{fsyncDefault, fsyncRelaxed}, []string{modelScripted})
			f.IntVar(&rounds, "floor-rounds", 3, "rounds of the bare loop with a process for each state; 0: none")
		},
		run: func(ctx context.Context) ([]figure, error) {
			all, err := s.measureAll(ctx, "split")
			if err != nil || rounds < 1 {
				return all, err
			}
			for _, fsync := range s.fsync {
				floor, err := splitFloor(ctx, repeat{rounds: rounds, detail: s.detail}, fsync, s.atOnce, s.steps)
				if err != nil {
					return nil, err
				}
				all = append(all, floor...)
			}
			return all, nil
		},
	}
}

// splitFloor is the cost of the processes alone.
func splitFloor(ctx context.Context, r repeat, fsync string, runs, steps int) ([]figure, error) {
	t := terms{syncAlways: fsync != fsyncRelaxed}
	_, bodies, err := carried(ctx, terms{}, 1, steps)
	if err != nil {
		return nil, err
	}
	return r.measure(ctx, func(ctx context.Context) ([]figure, error) {
		bare, err := bareApartRate(ctx, t, bodies, runs)
		if err != nil {
			return nil, err
		}
		return []figure{rows("split", "bare loop, a process for each state, "+t.syncing())("runs", "1/s", bare/float64(len(bodies)))}, nil
	})
}
