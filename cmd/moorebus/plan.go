package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/plan"
	"github.com/moorebus/moorebus/internal/print"
)

func planCommand() *cobra.Command {
	var l plan.Load
	var model, call time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "plan --runs-per-day N --steps N --tokens N",
		Short: "Compute what a load needs: disk, memory, processes, connections",
		Long: `Plan computes what a load needs, and explains each number. It needs no bus connection. It
uses measured coefficients, which docs/operations/capacity.md lists. A plan is accurate to
a factor of two: measure your own load before you buy machines.

A step is a reply of the model that calls tools. The tokens of a run are those of its task,
the model's replies and the tools' results, each counted once. The provider bills more,
since it counts the entire context for each reply.`,
		Example: `  moorebus plan --runs-per-day 50000 --steps 8 --tokens 6000 --retain 90 --replicas 3
  moorebus plan --runs-per-day 1000 --steps 20 --tokens 40000 --calls 60 --model-time 12s -o json`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&l.RunsPerDay, "runs-per-day", 0, "runs that start in a day; required")
	flags.IntVar(&l.Steps, "steps", 0, "replies of the model that call tools, in each run; required")
	flags.IntVar(&l.Tokens, "tokens", 0, "tokens of text that each run adds; required")
	flags.IntVar(&l.Calls, "calls", 0, "calls of tools in each run (default one for each step)")
	flags.DurationVar(&call, "call-time", time.Second, "how long a tool takes")
	flags.DurationVar(&model, "model-time", 5*time.Second, "how long the model takes for a reply")
	flags.IntVar(&l.Retain, "retain", 30, "`days` that runs stay in the log")
	flags.IntVar(&l.Replicas, "replicas", 1, "servers that store each event: 1, 3 or 5")
	flags.Float64Var(&l.Peak, "peak", 3, "peak rate, as a `factor` of the day's mean")
	print.AddOutputFlag(cmd, &output, print.Table, print.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := print.ParseFormat(output, print.Table, print.JSON)
		if err != nil {
			return err
		}
		for _, name := range []string{"runs-per-day", "steps", "tokens"} {
			if !flags.Changed(name) {
				return cli.Usage("say --%s", name)
			}
		}
		if !flags.Changed("calls") {
			l.Calls = l.Steps
		}
		l.CallTime, l.ModelTime = call.Seconds(), model.Seconds()
		planned, err := plan.For(l)
		if err != nil {
			return cli.Usage("%w", err)
		}
		if format == print.JSON {
			return print.WriteJSON(cmd.OutOrStdout(), planned)
		}
		rows := make([][]string, len(planned.Lines))
		for i, line := range planned.Lines {
			rows[i] = []string{line.Text(), line.Amount(), line.How}
		}
		return print.WriteTable(cmd.OutOrStdout(), []string{"WHAT", "HOW MUCH", "HOW"}, rows)
	}
	return cmd
}
