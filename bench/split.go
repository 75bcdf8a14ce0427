package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/spf13/pflag"
)

// splitBench is one process for each role, beside all of them in one.
func splitBench() *benchmark {
	var c crowd
	var fsync []string
	var built string
	return &benchmark{
		name: "split", short: "A process for each role over TCP, beside all roles in one process",
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&built, "bin", "", "directory of the built commands (default: they are built)")
			c.add(f, []int{200}, defaultSlots, 3)
			f.StringSliceVar(&fsync, "fsync", []string{"relaxed", "always"}, "when the log goes to the disk, always or relaxed, one case for each")
		},
		run: func(ctx context.Context) (all []figure, err error) {
			if err := c.check(); err != nil {
				return nil, err
			}
			for _, when := range fsync {
				if when != "always" && when != "relaxed" {
					return nil, cli.Usage("--fsync is always or relaxed, not %q", when)
				}
			}
			bin, remove, err := builtCommands(ctx, built)
			if err != nil {
				return nil, err
			}
			defer remove()
			for _, when := range fsync {
				t := terms{syncAlways: when == "always", group: when == "always", slots: c.slots}
				figures, err := split(ctx, c, t, bin)
				if err != nil {
					return nil, err
				}
				all = append(all, figures...)
			}
			return all, nil
		},
	}
}

func split(ctx context.Context, c crowd, t terms, bin string) (all []figure, err error) {
	for _, runs := range c.runs {
		figures, err := c.measure(ctx, func(ctx context.Context) ([]figure, error) {
			apart, err := apartRate(ctx, t, bin, runs, c.steps)
			if err != nil {
				return nil, err
			}
			together, bodies, err := carried(ctx, t, runs, c.steps)
			if err != nil {
				return nil, err
			}
			bare, err := bareApartRate(ctx, t, bodies, runs)
			if err != nil {
				return nil, err
			}
			row := rows("split", fmt.Sprintf("%d runs, %s", runs, t.syncing()))
			return []figure{
				row("transitions", "1/s", apart).beside(together.perSecond(runs*len(bodies)), "all roles in one process").least(0.6),
				row("transitions", "1/s", apart).beside(bare, "bare loop, a process for each state"),
			}, nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, figures...)
	}
	return all, nil
}

// apartRate is how many transitions per second the processes make. This process
// has the server, starts the runs and watches for their ends, as it does where all
// roles are in it.
func apartRate(ctx context.Context, t terms, bin string, runs, steps int) (rate float64, err error) {
	slots := t.withDefaults().slots
	concurrency := []string{"--concurrency", strconv.Itoa(slots)}
	f, err := startFleet(ctx, bin, t, natsbus.InitOptions{}, concurrency...)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.startRoles(roleCommands[1:], concurrency...); err != nil {
		return 0, err
	}
	if err := f.awaitOffers(ctx); err != nil {
		return 0, err
	}
	host, err := newHost(f.bus, slots)
	if err != nil {
		return 0, err
	}
	// The first run of a process is slow: its pages are not in memory.
	if _, err := carry(ctx, f.bus, host, warmUp, steps); err != nil {
		return 0, err
	}
	did, err := meter(func() error {
		_, err := carry(ctx, f.bus, host, runs, steps)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%w%s", err, f.said())
	}
	return did.perSecond(runs * transitions(steps)), nil
}

// awaitOffers waits until the tool and the model that runs need are announced.
func (f *fleet) awaitOffers(ctx context.Context) error {
	var failed error
	for _, p := range f.processes {
		err := p.await(ctx, "there", func() bool {
			tools, err := f.bus.Tools(ctx)
			if failed = err; err != nil {
				return true
			}
			models, err := f.bus.Providers(ctx)
			if failed = err; err != nil {
				return true
			}
			tool := func(spec events.ToolSpec) bool { return spec.Name == builtin.Calculator }
			return slices.ContainsFunc(tools, tool) && slices.Contains(models, providers.Scripted)
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	return nil
}
