package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func traceCommand() *cobra.Command {
	var state, file string
	var o runprint.Options
	cmd := &cobra.Command{
		Use:   "trace RUN",
		Short: "Show the events of a run, or those of one state",
		Long: `Trace prints the events of a run, one per line, like show, tap and replay. It reads the
bus, the data directory, or with --file an export of moorebus export.`,
		Example: `  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001
  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001 --state planning -o json
  moorebus trace 0198c5a0-5a6b-7c00-8000-000000000001 --file runs.jsonl`,
		Args: cobra.ExactArgs(1),
	}
	flags := addClientFlags(cmd, print.Text, print.JSON, print.Table) // table is what it was called before
	flags.offerRuns(cmd, 1)
	cmd.Flags().StringVar(&state, "state", "", "only the events of this `state`")
	cmd.Flags().StringVar(&file, "file", "", "read from this `file` instead of a bus")
	addReasoningFlag(cmd, &o.Reasoning)
	cli.Complete(cmd, "state", stateNames()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := cli.CheckRuns(args); err != nil {
			return err
		}
		o.In = events.State(state)
		if file == "" {
			return flags.use(cmd, reads, func(ctx context.Context, c *client) error {
				id, err := c.FindRun(ctx, args[0])
				if err != nil {
					return err
				}
				return c.trace(ctx, c.Log, c.run(id), o)
			})
		}
		return traceFile(cmd, flags, file, args[0], o)
	}
	return cmd
}

// traceFile writes the trace of a run in an export.
func traceFile(cmd *cobra.Command, flags *clientFlags, file, run string, o runprint.Options) (err error) {
	c, _, err := flags.client(cmd)
	if err != nil {
		return err
	}
	f, err := filelog.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if torn := f.Torn(); torn != nil {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), torn)
	}
	if run, err = print.FindRun(cmd.Context(), run, print.FinderOf(f.Runs(), c.Namespace)); err != nil {
		return err
	}
	return c.trace(cmd.Context(), f, events.NewRun(c.Namespace, run, f.Shards()), o)
}

func (c *client) trace(ctx context.Context, log journal.Log, run events.Run, o runprint.Options) error {
	if err := checkState(c.machine.Table(), o.In); err != nil {
		return err
	}
	o.JSON, o.Color = c.Format == print.JSON, c.Color
	return runprint.Run(ctx, c.Out, log, c.machine, run, o)
}

// checkState returns a usage error for a state that the run's table does not have. Empty
// means every state.
func checkState(table *reducer.Table, state events.State) error {
	if states := table.States(); state != "" && !slices.Contains(states, state) {
		return cli.Usage("--state: %q is not a state of the run; use %s", state, strings.Join(texts(states), ", "))
	}
	return nil
}

func texts(states []events.State) []string {
	all := make([]string, len(states))
	for i, s := range states {
		all[i] = string(s)
	}
	return all
}
