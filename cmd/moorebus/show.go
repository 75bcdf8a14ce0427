package main

import (
	"context"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/console"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/spf13/cobra"
)

func showCommand() *cobra.Command {
	var at uint64
	var memory bool
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run: its events, its answer or error",
		Long: `Show prints a run's state, its events one per line, and its answer, its error, or what
it waits for. --at shows it as of that event. --memory prints its whole memory
instead, in JSON or YAML.`,
		Example: `  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001 --at 7 --memory
  moorebus show 0198c5a0-5a6b-7c00-8000-000000000001 -o json | jq -r .answer`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, console.Text, console.JSON, console.YAML)
	cmd.Flags().Uint64Var(&at, "at", 0, "show the run after its event `n` (default: the last one)")
	cmd.Flags().BoolVar(&memory, "memory", false, "print the memory")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("at") && at == 0 {
			return cli.Usage("--at: events are counted from 1")
		}
		return flags.use(cmd, reads, func(ctx context.Context, c *client) error { return c.show(ctx, args[0], at, memory) })
	}
	return cmd
}

func (c *client) show(ctx context.Context, id string, at uint64, memory bool) error {
	records, err := c.control.Events(ctx, c.namespace, id, 1)
	if err != nil {
		return err
	}
	run, mem, err := console.ReadRun(ctx, runlog.NewFold(c.Bus, c.machine, c.run(id)), at, records)
	switch {
	case err != nil:
		return err
	case run.N < at:
		return cli.Usage("--at: the run has %d events, so it is 1 to %d", run.N, run.N)
	case memory:
		return console.Write(c.out, c.format, mem)
	}
	return run.Write(c.out, c.format, c.color)
}
