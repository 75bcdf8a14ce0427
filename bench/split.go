package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/wire"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/spf13/pflag"
)

// splitRoles are the commands that make an installation, each a process.
var splitRoles = []string{"gateway", "planner", "actor", "observer"}

// splitBench is one process for each role, beside all of them in one.
func splitBench() *benchmark {
	var c crowd
	var fsync []string
	return &benchmark{
		name: "split", short: "A process for each role over TCP, beside all roles in one process",
		flags: func(f *pflag.FlagSet) {
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
			bin, err := os.MkdirTemp("", "moorebus-bench-bin-")
			if err != nil {
				return nil, err
			}
			defer func() { _ = os.RemoveAll(bin) }()
			if err := buildCommands(ctx, bin, splitRoles...); err != nil {
				return nil, err
			}
			for _, when := range fsync {
				t := terms{syncAlways: when == "always", group: true, slots: c.slots}
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
			row := rows("split", fmt.Sprintf("%d runs, %s", runs, t.syncing()))
			return []figure{
				row("transitions", "1/s", apart).beside(together.perSecond(runs*len(bodies)), "all roles in one process").least(0.6),
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
	in, err := install(ctx, t)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	processes, err := startRoles(bin, in, t)
	defer func() { err = errors.Join(err, endAll(processes)) }()
	if err != nil {
		return 0, err
	}
	if err := awaitOffers(ctx, in.bus, processes); err != nil {
		return 0, err
	}
	// The first run of a process is slow: its pages are not in memory.
	if _, err := carry(ctx, in.bus, in.host, warmUp, steps); err != nil {
		return 0, err
	}
	did, err := meter(func() error {
		_, err := carry(ctx, in.bus, in.host, runs, steps)
		return err
	})
	if err != nil {
		return 0, errors.Join(err, tails(processes))
	}
	return did.perSecond(runs * transitions(steps)), nil
}

// tails is what the processes said last.
func tails(processes []*process) error {
	var said error
	for _, p := range processes {
		said = errors.Join(said, fmt.Errorf("%s said: %s", p.name, p.tail()))
	}
	return said
}

func startRoles(bin string, in *installation, t terms) (all []*process, err error) {
	env := []string{"NATS_URL=" + in.server.ClientURL()}
	for _, name := range splitRoles {
		args := []string{"--concurrency", strconv.Itoa(t.withDefaults().slots), "--log-level", "warn"}
		if name == "gateway" {
			args = append(args, "--listen", "127.0.0.1:0")
		}
		p, err := startProcess(bin, in.dir, name, args, env)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// offersTime bounds the wait for processes to be there.
const offersTime = 30 * time.Second

// awaitOffers waits until the tool and the model that runs need are announced.
func awaitOffers(ctx context.Context, bus *natsbus.Bus, processes []*process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, offersTime, fmt.Errorf("no tool or model was announced within %s", offersTime))
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		tools, err := bus.Tools(ctx)
		if err != nil {
			return err
		}
		models, err := bus.Providers(ctx)
		if err != nil {
			return err
		}
		tool := func(spec events.ToolSpec) bool { return spec.Name == builtin.Calculator }
		if slices.ContainsFunc(tools, tool) && slices.Contains(models, wire.Scripted) {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, p := range processes {
			select {
			case <-p.ended:
				return fmt.Errorf("%s ended before it was there", p.name)
			default:
			}
		}
	}
}
