package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/pflag"
)

// latencyBench is one run at a time, transition by transition.
func latencyBench() *benchmark {
	var r repeat
	var runs, steps int
	return &benchmark{
		name: "latency", short: "A lone run, transition by transition, beside the bare hop (deliver, append, ack)",
		flags: func(f *pflag.FlagSet) {
			f.IntVar(&runs, "runs", 100, "runs, one after the other")
			f.IntVar(&steps, "steps", 10, "tool steps of each run")
			r.add(f, 3)
		},
		run: func(ctx context.Context) (all []figure, err error) {
			if err := positive(runs, steps, r.rounds); err != nil {
				return nil, err
			}
			for _, t := range []terms{
				{syncAlways: true, group: true}, {syncAlways: true, group: true, tcp: true}, {}, {tcp: true},
			} {
				figures, err := r.measure(ctx, func(ctx context.Context) ([]figure, error) { return latency(ctx, t, runs, steps) })
				if err != nil {
					return nil, err
				}
				all = append(all, figures...)
			}
			return all, nil
		},
	}
}

// warmUp is how many runs go before those that are measured.
const warmUp = 3

func latency(ctx context.Context, t terms, runs, steps int) ([]figure, error) {
	ours, bodies, err := loneRuns(ctx, t, runs, steps)
	if err != nil {
		return nil, err
	}
	// A lone append goes alone with group commit too.
	t.group = false
	theirs, err := loneHops(ctx, t, bodies, runs)
	if err != nil {
		return nil, err
	}
	bound := 2.0
	if t.syncAlways {
		bound = 1.3
	}
	row := rows("latency", t.String())
	return []figure{
		row("median transition", "µs", micros(ours, 0.5)).beside(micros(theirs, 0.5), "bare hop").most(bound),
		row("p99 transition", "µs", micros(ours, 0.99)).beside(micros(theirs, 0.99), "bare hop"),
	}, nil
}

// loneRuns returns the times between the moments at which the server stored two
// events of a run in sequence.
func loneRuns(ctx context.Context, t terms, runs, steps int) (times []time.Duration, bodies hops, err error) {
	in, err := startInstallation(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	for i := range warmUp + runs {
		ids, err := carry(ctx, in.bus, in.host, 1, steps)
		if err != nil {
			return nil, nil, err
		}
		if i < warmUp {
			continue
		}
		records, err := recordsOf(ctx, in.bus, ids[0])
		if err != nil {
			return nil, nil, err
		}
		bodies = nil
		stored := make([]time.Time, len(records))
		for i, rec := range records {
			stored[i] = rec.Stored
			bodies = append(bodies, rec.Body)
		}
		times = between(times, stored)
	}
	return times, bodies, nil
}

// loneHops is the same of the bare loop.
func loneHops(ctx context.Context, t terms, h hops, runs int) (times []time.Duration, err error) {
	n, err := startNode(ctx, t)
	if err != nil {
		return nil, err
	}
	defer n.close()
	f, err := startFloor(ctx, n, t, h)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	for i := range warmUp + runs {
		if err := f.carry(ctx, i, 1); err != nil {
			return nil, err
		}
		if stored := f.takeStored(); i >= warmUp {
			times = between(times, stored)
		}
	}
	return times, nil
}

// between adds the differences of moments in sequence.
func between(times []time.Duration, moments []time.Time) []time.Duration {
	for i := 1; i < len(moments); i++ {
		times = append(times, moments[i].Sub(moments[i-1]))
	}
	return times
}

// micros is a quantile in microseconds.
func micros(times []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[int(q*float64(len(sorted)-1))].Nanoseconds()) / 1e3
}
